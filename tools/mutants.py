#!/usr/bin/env python3
"""Take out several safeguards in one build, and run the tests of each by itself.

    python3 tools/mutants.py                     all safeguards of tests/mutations.sh, twelve in a build
    python3 tools/mutants.py --size 20 canary    those whose name or test matches this expression, twenty in a build

`make mutants` takes one safeguard out at a time, and each build takes minutes. Here the safeguards of one build change
different files. A test that stays green proves nothing, as there. A test that turns red may owe it to another safeguard
of its build, so the program prints where it failed: read that, and run `make mutants` for the doubtful ones.

It works in a worktree of HEAD in target/mutants, and appends its results to target/mutants/results.tsv. Safeguards that
this file has are not run again, so an interrupted run goes on. Remove the file to begin anew. Python 3.8 or newer.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACE = ROOT / "target" / "mutants"
TREE = PLACE / "tree"
RESULTS = PLACE / "results.tsv"
# Tests that start examples, as in tests/mutations.sh.
STARTS_EXAMPLES = re.compile(
    "rollout::|examples::|embedding|a_binary_with_kinds_of_its_own|panics::a_check_that_panics|metrics::samples_take_no_memory"
)
# Longest time of the tests of one safeguard, in seconds.
PATIENCE = 600


def safeguards():
    """Let a shell read the list, which is a script: each is a name, cuts of (files, old text, new text), and tests."""
    script = (ROOT / "tests" / "mutations.sh").read_text()
    body = script.split("\nmutants() {\n", 1)[1]
    body = re.split(r"\n}\n+(?:#[^\n]*\n)*[a-z]+\(\) \{\n", body, maxsplit=1)[0]
    listing = "mutant() { printf '%s\\0' \"$@\" @END@; }\nmutants() {\n" + body + "\n}\nmutants\n"
    said = subprocess.run(["sh"], input=listing.encode(), stdout=subprocess.PIPE, check=True).stdout.decode()
    found, words = [], []
    for word in said.split("\0"):
        if word != "@END@":
            words.append(word)
            continue
        name, rest, cuts = words[0], words[1:], []
        while len(rest) >= 3 and rest[0].startswith(("internal/", "cmd/", "tools/")):
            cuts.append((rest[0].split(), rest[1], rest[2]))
            rest = rest[3:]
        found.append((name, cuts, rest))
        words = []
    return found


def files_of(one):
    return {name for files, _, _ in one[1] for name in files}


def groups_of(chosen, size):
    """Share the safeguards out, so that those of one group cut different files."""
    groups = []
    for one in chosen:
        for group in groups:
            if len(group) < size and not any(files_of(one) & files_of(other) for other in group):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def git(*words):
    return subprocess.run(["git", *words], cwd=TREE, check=True, stdout=subprocess.PIPE, text=True).stdout


def restore():
    changed = git("diff", "--name-only").split()
    if changed:
        git("checkout", "--", *changed)
    for name in changed:
        # The source must be newer than the build of the mutant, so that cargo builds it again.
        os.utime(TREE / name)


def cut(one):
    """Change the sources. Return what is wrong with the entry, if anything is."""
    for files, old, new in one[1]:
        for name in files:
            text = (TREE / name).read_text()
            if old not in text:
                return f"{name} does not say {old}"
            (TREE / name).write_text(text.replace(old, new))
    return None


def build(ready):
    env = dict(os.environ, CARGO_TARGET_DIR=str(PLACE / "together"), CARGO_PROFILE_DEV_DEBUG="0")

    def cargo(*words):
        return subprocess.run(["cargo", *words], cwd=TREE, env=env, capture_output=True, text=True)

    said = cargo("test", "--no-run", "--test", "suite")
    (PLACE / "build.log").write_text(said.stdout + said.stderr)
    if said.returncode:
        return None
    # Some tests start examples.
    if any(STARTS_EXAMPLES.search(test) for one in ready for test in one[2]) and cargo("build", "--examples").returncode:
        return None
    return re.search(r"Executable .*\((.*)\)", said.stderr).group(1)


def tell(one, verdict, why=""):
    with RESULTS.open("a") as results:
        results.write("\t".join([one[0], verdict, " ".join(one[2]), why]) + "\n")
    print(f"{verdict:8} {one[0]}  {why}", flush=True)


def run(suite, one):
    # Without CARGO the suite takes the programs that were built with the safeguards taken out.
    env = {key: value for key, value in os.environ.items() if key != "CARGO"}
    try:
        said = subprocess.run(
            [suite, "--exact", *one[2]], cwd=TREE, env=dict(env, RUST_BACKTRACE="0"), timeout=PATIENCE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        ).stdout
    except subprocess.TimeoutExpired:
        return tell(one, "hangs")
    log = PLACE / "logs" / (re.sub(r"[^a-z0-9]", "-", one[0].lower()) + ".log")
    log.parent.mkdir(exist_ok=True)
    log.write_text(said)
    counts = re.search(r"(\d+) passed; (\d+) failed", said)
    failed = int(counts.group(2)) if counts else 0
    verdict = "no end" if not counts else "red" if failed == len(one[2]) else "in part" if failed else "GREEN"
    where = re.search(r"panicked at ([^\n]*)\n([^\n]*)", said)
    return tell(one, verdict, f"{where.group(1)} {where.group(2)}"[:200] if where else "")


def results():
    return [line.split("\t") for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def main():
    asked = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    asked.add_argument("which", nargs="?", default="", help="an expression; the safeguards whose name or test matches")
    asked.add_argument("--size", type=int, default=12, help="safeguards in one build")
    asked = asked.parse_args()
    PLACE.mkdir(parents=True, exist_ok=True)
    known = {line[0] for line in results()}
    asked_for = re.compile(asked.which)
    chosen = [one for one in safeguards() if one[0] not in known and asked_for.search(" ".join([one[0], *one[2]]))]
    waiting = groups_of(chosen, asked.size)
    print(f"{len(chosen)} safeguards in {len(waiting)} builds", flush=True)
    if not TREE.exists():
        subprocess.run(["git", "worktree", "add", "--detach", str(TREE), "HEAD"], cwd=ROOT, check=True)
    while waiting:
        group = waiting.pop(0)
        restore()
        ready = []
        for one in group:
            wrong = cut(one)
            if wrong:
                tell(one, "no cut", wrong)
            else:
                ready.append(one)
        began = time.monotonic()
        suite = build(ready) if ready else None
        print(f"built {len(ready)} together in {time.monotonic() - began:.0f} s", flush=True)
        if suite:
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(lambda one: run(suite, one), ready))
        elif len(ready) > 1:
            # One of them does not build. Halve the group until it is alone.
            waiting[:0] = [ready[: len(ready) // 2], ready[len(ready) // 2 :]]
        elif ready:
            tell(ready[0], "no build")
    restore()
    bad = [line for line in results() if line[1] != "red"]
    if bad:
        print("to be looked at:", *("\t".join(line) for line in bad), sep="\n", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
