"""Installation: servers and runtimes from Debian's packages, packages from npm, drivers built by cargo. Nothing is
installed into the repository."""

import filecmp
import glob
import os
import shutil
import subprocess

from places import BUILD, DRIVERS, NODE, ROOT
from processes import Failed, run_shown
from servers import find

# Debian's PostgreSQL makes and starts a server of the system, unless this is there before it is installed.
CREATE_CLUSTER = "/etc/postgresql-common/createcluster.d/tickr-compare.conf"
INSTALL = f"""
set -eu
mkdir -p {os.path.dirname(CREATE_CLUSTER)}
echo 'create_main_cluster = false' >{CREATE_CLUSTER}
trap 'rm -f {CREATE_CLUSTER}' EXIT
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update || echo 'the package lists could not be refreshed; trying those that are there' >&2
# One peer's packages may not exist here; those of the others may.
for packages; do
    apt-get -qq -y --no-install-recommends install $packages || true
done
"""
MANIFESTS = {"cargo": f"{DRIVERS}/rust/Cargo.toml", "tickr": f"{DRIVERS}/tickr/Cargo.toml"}


def install(peers, say):
    """Install and build for these peers. Return those that can run, and the reasons why others cannot, by name."""
    packages = (packages_of([need for need in peer.needs if not is_here(need)]) for peer in peers)
    install_packages([" ".join(one) for one in packages if one], say)
    left_out = {}
    for peer in peers:
        absent = [need for need in peer.needs if not is_here(need)]
        if absent:
            left_out[peer.name] = describe(absent)
    builds = {peer.build for peer in peers if peer.build and peer.name not in left_out}
    for what in sorted(builds):
        try:
            build(what, say)
        except Failed as failed:
            left_out.update({peer.name: str(failed) for peer in peers if peer.build == what})
    return [peer for peer in peers if peer.name not in left_out], left_out


def is_here(need):
    if need.file.startswith("/"):
        return any(glob.glob(pattern) for pattern in need.file.split("|"))
    return find(*need.file.split("|")) is not None


def packages_of(needs):
    return sorted({need.package for need in needs if need.package})


def describe(absent):
    """Return what is missing, and the command that brings it."""
    packages = packages_of(absent)
    text = "missing: " + ", ".join(need.file.split("|")[0] for need in absent)
    if packages:
        text += f"; install with: sudo apt-get install --no-install-recommends {' '.join(packages)}"
    if any(need.file == "cargo" for need in absent):
        text += "; install Rust from https://rustup.rs"
    return text


def install_packages(packages, say):
    """Install lists of packages with root's rights, if this process has them or sudo gives them without a password."""
    if not packages or not shutil.which("apt-get"):
        return
    sudo = []
    if os.getuid() != 0:
        sudo = ["sudo", "-n"]
        if not shutil.which("sudo") or subprocess.run([*sudo, "true"], capture_output=True, check=False).returncode:
            return
    say(f"installing {' '.join(dict.fromkeys(' '.join(packages).split()))}")
    run_shown([*sudo, "sh", "-c", INSTALL, "install", *packages], ROOT, breakable=False)


def build(what, say):
    if what == "npm":
        return install_from_npm(say)
    if what == "tickr":
        copy_lock(f"{ROOT}/Cargo.lock", f"{DRIVERS}/tickr/Cargo.lock")
    say(f"building {MANIFESTS[what].removeprefix(ROOT + '/')} (the first time takes minutes)")
    # The copy of tickr's lock file still has to get the driver itself.
    locked = ["--locked"] if what == "cargo" else []
    run(["cargo", "build", "--release", *locked, "--manifest-path", MANIFESTS[what], "--target-dir", BUILD])


def copy_lock(original, copy):
    """Give the driver of tickr the dependencies with which tickr is shipped, unless it has them."""
    if not os.path.exists(copy) or os.path.getmtime(copy) < os.path.getmtime(original):
        shutil.copyfile(original, copy)


def install_from_npm(say):
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout.strip()
    if int(version.lstrip("v").split(".")[0] or 0) < 20:
        raise Failed(f"Node.js is {version}; BullMQ's client needs 20 or newer")
    lock = f"{NODE}/package-lock.json"
    if os.path.exists(f"{NODE}/node_modules/.package-lock.json") and same(lock, f"{DRIVERS}/node/package-lock.json"):
        return
    say("fetching BullMQ from the npm registry")
    os.makedirs(NODE, exist_ok=True)
    for name in "package.json", "package-lock.json":
        shutil.copyfile(f"{DRIVERS}/node/{name}", f"{NODE}/{name}")
    run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=NODE)


def same(one, other):
    return os.path.exists(one) and filecmp.cmp(one, other, shallow=False)


def run(command, cwd=ROOT):
    if run_shown(command, cwd):
        raise Failed(f"`{' '.join(command[:2])}` failed; its output is above")
