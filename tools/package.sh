#!/bin/sh
# Makes everything that a team without Rust installs tickr from, in target/packages: a Debian package, a tar.gz, an image
# in the OCI format, the list of what is inside (CycloneDX) and SHA256SUMS. The files depend on the sources, the version and
# the binary alone, not on the time or the folder. Called by `make package`.
#
# The environment may have:
#   TICKR_BINARY     a binary that is built already; nothing is built then
#   PROFILE          release (the default) or debug
#   TARGET           the target of the build; x86_64-unknown-linux-musl, a static binary, unless it is set
#   TICKR_VERSION    the version of the packages, for tests of upgrades; that of Cargo.toml unless it is set
#   OUT              the folder; target/packages unless it is set
set -eu
# The packages are for all accounts, also when the one that makes them keeps its own files to itself.
umask 022

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
out=${OUT:-$root/target/packages}
profile=${PROFILE:-release}
target=${TARGET:-x86_64-unknown-linux-musl}

main() {
    for program in python3 tar gzip sha256sum; do
        command -v "$program" >/dev/null || fail "$program is missing"
    done
    version=${TICKR_VERSION:-$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)}
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.lock)}
    export SOURCE_DATE_EPOCH
    [ -n "${TICKR_BINARY:-}" ] || build
    binary=${TICKR_BINARY:-$root/target/$target/$profile/tickr}
    [ -x "$binary" ] || fail "$binary is no program"
    architecture

    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM
    rm -rf "$out"
    mkdir -p "$out"
    documents

    say "the list of what is inside"
    python3 -B tools/sbom.py "$version" >"$out/tickr-$version-sbom.cdx.json"
    cp "$out/tickr-$version-sbom.cdx.json" "$work/doc/sbom.cdx.json"
    say "the archive"
    archive
    if command -v dpkg-deb >/dev/null; then
        say "the Debian package"
        sh tools/deb.sh "$binary" "$version" "$arch" "$work/doc" "$out/tickr_${version}_$arch.deb"
    else
        say "no Debian package, because dpkg-deb is missing"
    fi
    if [ "$linkage" = static ] || [ -n "${TICKR_BINARY:-}" ]; then
        say "the image"
        python3 -B tools/image.py "$binary" "$version" "$arch" "$work/doc" "$out/tickr-$version-$arch.oci.tar"
    else
        say "no image, because the binary needs the C library of a system; TARGET=x86_64-unknown-linux-musl makes a static one"
    fi
    (cd "$out" && sha256sum -- * >SHA256SUMS.new && mv SHA256SUMS.new SHA256SUMS)
    (cd "$out" && ls -l)
}

build() {
    command -v cargo >/dev/null || fail 'cargo is missing; install Rust from https://rustup.rs'
    case $target in
        *-musl)
            command -v musl-gcc >/dev/null || fail 'musl-gcc is missing; install the package musl-tools'
            [ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ] || rustup target add "$target" ||
                fail "the standard library of Rust for $target cannot be had; TARGET=x86_64-unknown-linux-gnu does without"
            ;;
    esac
    case $profile in
        release) cargo build --locked --release --bin tickr --target "$target" ;;
        debug) cargo build --locked --bin tickr --target "$target" ;;
        *) fail "unknown profile $profile (there are release and debug)" ;;
    esac
}

# The architecture as Debian calls it, and whether the binary needs libraries, both as the binary itself says.
architecture() {
    case $(od -An -tx1 -j18 -N2 "$binary" | tr -d ' ') in
        3e00) arch=amd64 ;;
        b700) arch=arm64 ;;
        *) fail "$binary is no program for x86_64 or aarch64" ;;
    esac
    if grep -qa 'ld-linux\|ld-musl' "$binary"; then linkage=dynamic; else linkage=static; fi
}

# The documents that every package has.
documents() {
    mkdir -p "$work/doc"
    cp README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE docs/INSTALL.md docs/OPERATIONS.md docs/CONFIGURATION.md "$work/doc/"
}

archive() {
    name=tickr-$version-linux-$arch
    mkdir -p "$work/$name"
    install -m 0755 "$binary" "$work/$name/tickr"
    cp "$work"/doc/* "$work/$name/"
    cp deploy/debian/tickr.service deploy/debian/tickr.toml deploy/debian/env "$work/$name/"
    install -m 0755 deploy/debian/tickr-as-service "$work/$name/tickr-as-service"
    # The unit has the place where an operator unpacks programs.
    sed -i 's,/usr/bin/tickr,/usr/local/bin/tickr,; /^Documentation=/d' "$work/$name/tickr.service"
    tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX,go-w \
        -C "$work" -cf - "$name" | gzip -n -"$(level)" >"$out/$name.tar.gz"
}

# A debug binary is large, and nothing ships it.
level() {
    if [ "$profile" = debug ]; then echo 1; else echo 9; fi
}

say() {
    echo "package: $*" >&2
}

fail() {
    say "$*"
    exit 1
}

main "$@"
