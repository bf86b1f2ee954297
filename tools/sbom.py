#!/usr/bin/env python3
"""Print the packages that are in the binary, as CycloneDX 1.5 in JSON: sbom.py VERSION.

The packages are those of `cargo tree`, for the target in TARGET, without the dependencies of tests and of build scripts.
`cargo metadata` has their licences, and more packages: those of features that only tests turn on. Called by
tools/package.sh.
"""

import collections
import hashlib
import json
import os
import subprocess
import sys
import time
import uuid

TARGET = os.environ.get("TARGET", "x86_64-unknown-linux-musl")


def cargo(*words):
    return subprocess.run(["cargo", *words, "--locked"], check=True, stdout=subprocess.PIPE, text=True).stdout


def main():
    version = sys.argv[1]
    metadata = json.loads(cargo("metadata", "--format-version", "1", "--filter-platform", TARGET))
    tree = cargo("tree", "--package", "tickr", "--edges", "normal", "--prefix", "none", "--target", TARGET)
    inside = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    packages = {
        package["id"]: package
        for package in metadata["packages"]
        if (package["name"], f"v{package['version']}") in inside
    }
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = next(id for id, package in packages.items() if package["name"] == "tickr" and package["source"] is None)

    needs = {}
    waiting = collections.deque([root])
    while waiting:
        id = waiting.popleft()
        if id in needs:
            continue
        # `kind` is null for what the program itself uses, else "dev" or "build".
        normal = (dep for dep in nodes[id]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"]))
        used = [dep["pkg"] for dep in normal if dep["pkg"] in packages]
        needs[id] = used
        waiting.extend(used)

    def reference(id):
        package = packages[id]
        return f"pkg:cargo/{package['name']}@{package['version']}"

    def component(id):
        package = packages[id]
        found = {
            "type": "library",
            "bom-ref": reference(id),
            "name": package["name"],
            "version": package["version"],
            "purl": reference(id),
        }
        if package.get("license"):
            found["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        return found

    libraries = sorted((id for id in needs if id != root), key=reference)
    tickr = component(root) | {"type": "application", "version": version}
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)), "component": tickr},
        "components": [component(id) for id in libraries],
        "dependencies": [
            {"ref": reference(id), "dependsOn": sorted({reference(used) for used in needs[id]})}
            for id in [root, *libraries]
        ],
    }
    # The same content has the same number.
    digest = hashlib.sha256(json.dumps(bom, sort_keys=True).encode()).digest()
    bom["serialNumber"] = f"urn:uuid:{uuid.UUID(bytes=digest[:16], version=4)}"
    json.dump(bom, sys.stdout, indent=1, sort_keys=True)
    print()


main()
