#!/usr/bin/env python3
"""Make an image in the OCI format from a static binary: image.py BINARY VERSION ARCHITECTURE DOCUMENTS FILE.

The image has the binary, an account, two folders of that account and the licences; there is no system in it and no
shell. The same input gives the same bytes, and no container engine is needed. deploy/image/Containerfile makes the same
image with an engine. Called by tools/package.sh.
"""

import gzip
import hashlib
import io
import json
import os
import pathlib
import sys
import tarfile

IMAGE = pathlib.Path(__file__).resolve().parent.parent / "deploy" / "image"
USER = 10001
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def layer(binary, documents):
    """Return the tar of the file system."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:

        def add(name, mode, content=None, owner=0):
            info = tarfile.TarInfo(name)
            info.mode, info.mtime, info.uid, info.gid = mode, EPOCH, owner, owner
            if content is None:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))

        for folder in ("etc", "etc/tickr", "usr", "usr/bin", "usr/share", "usr/share/doc", "usr/share/doc/tickr", "var", "var/lib"):
            add(folder, 0o755)
        add("tmp", 0o1777)
        add("var/lib/tickr", 0o750, owner=USER)
        # The resolver reads `hosts`, to which an engine adds the addresses of the container.
        for name in ("passwd", "group", "hosts"):
            add(f"etc/{name}", 0o644, (IMAGE / name).read_bytes())
        add("usr/bin/tickr", 0o755, pathlib.Path(binary).read_bytes())
        for document in sorted(pathlib.Path(documents).iterdir()):
            if document.name.startswith("LICENSE") or document.suffix == ".json":
                add(f"usr/share/doc/tickr/{document.name}", 0o644, document.read_bytes())
    return buffer.getvalue()


def main():
    binary, version, architecture, documents, file = sys.argv[1:]
    plain = layer(binary, documents)
    packed = gzip.compress(plain, 6 if len(plain) < 100_000_000 else 1, mtime=0)
    blobs = {}

    def blob(content, kind):
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    def words(value):
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()

    labels = {
        "org.opencontainers.image.title": "tickr",
        "org.opencontainers.image.description": "A durable job runner for teams on MySQL",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
    }
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "WorkingDir": "/var/lib/tickr",
            "Env": ["PATH=/usr/bin", "TICKR_HTTP_ADDR=0.0.0.0:7070", "TICKR_LOG_FORMAT=json"],
            "Entrypoint": ["/usr/bin/tickr"],
            "Cmd": ["serve"],
            "ExposedPorts": {"7070/tcp": {}},
            "StopSignal": "SIGTERM",
            "Labels": labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]},
        "history": [{"created_by": "tools/image.py"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(words(config), "config.v1+json"),
        "layers": [blob(packed, "layer.v1.tar+gzip")],
        "annotations": labels,
    }
    named = blob(words(manifest), "manifest.v1+json")
    # podman and buildah read the first name, Docker with containerd the second.
    name = f"localhost/tickr:{version}"
    named["annotations"] = {"org.opencontainers.image.ref.name": name, "io.containerd.image.name": name}
    named["platform"] = {"architecture": architecture, "os": "linux"}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [named]}
    files = {"oci-layout": words({"imageLayoutVersion": "1.0.0"}), "index.json": words(index)}
    files |= {f"blobs/sha256/{digest}": content for digest, content in sorted(blobs.items())}
    with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.mode, info.mtime, info.size = 0o644, EPOCH, len(content)
            tar.addfile(info, io.BytesIO(content))


main()
