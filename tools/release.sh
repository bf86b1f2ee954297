#!/bin/sh
# Makes the files of a release: release.sh TAG, such as release.sh v0.1.0. It checks that the tag is that of Cargo.toml and
# names a commit, makes the packages of a fresh copy of that commit, twice, and compares the two. It uploads and signs
# nothing; it says what is left to do. TARGETS has the targets, x86_64-unknown-linux-musl unless it is set.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
tag=${1:?give the tag, such as v0.1.0}
targets=${TARGETS:-x86_64-unknown-linux-musl}
out=$root/target/release-$tag

main() {
    cd "$root"
    commit=$(git rev-parse --verify --quiet "refs/tags/$tag^{commit}") || fail "there is no tag $tag"
    version=$(git show "$commit:Cargo.toml" | sed -n 's/^version = "\(.*\)"$/\1/p' | head -n 1)
    [ "$tag" = "v$version" ] || fail "the tag is $tag, and Cargo.toml of that commit has $version"
    ! git show "$commit:CHANGELOG.md" | grep -q "^## $version (unreleased)" ||
        fail "CHANGELOG.md still calls $version unreleased"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM
    rm -rf "$out"
    mkdir -p "$out" "$work/src"
    git archive "$commit" | tar -xf - -C "$work/src"
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit")
    export SOURCE_DATE_EPOCH
    # The paths of this machine do not belong into a binary, and would differ from one build to the next.
    export RUSTFLAGS="--remap-path-prefix=$work/src=/tickr --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
    for target in $targets; do
        for time in first second; do
            build "$target" "$time" || fail "the $time build for $target failed"
        done
        diff "$work/packages-first/SHA256SUMS" "$work/packages-second/SHA256SUMS" ||
            fail "two builds for $target are not the same"
        cp "$work"/packages-first/* "$out/"
    done
    (cd "$out" && rm -f SHA256SUMS && sha256sum -- * >"$work/sums" && mv "$work/sums" SHA256SUMS)
    (cd "$out" && ls -l && cat SHA256SUMS)
    cat <<LEFT
The files of $tag are in $out. What is left, by hand:
  1. make test-packages with TICKR_TEST_PACKAGES=$out, as root
  2. sign SHA256SUMS with the key of the project
  3. publish the files, push the image, and set the version of deploy/helm/tickr/Chart.yaml
LEFT
}

# Build the target $1 in a folder of its own, and make the packages of that binary in packages-$2.
build() {
    (
        cd "$work/src"
        export CARGO_TARGET_DIR="$work/$2" TARGET="$1" OUT="$work/packages-$2"
        cargo build --locked --release --bin tickr --target "$1" || exit 1
        export TICKR_BINARY="$CARGO_TARGET_DIR/$1/release/tickr"
        sh tools/package.sh
    )
}

fail() {
    echo "release: $*" >&2
    exit 1
}

main "$@"
