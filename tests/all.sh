#!/bin/sh
# Runs every test. The chaos runs beside the others, because both wait more than they work, and prints its result after
# them. `cargo test` without this script runs the same tests one program after the other.
set -eu

cd "$(dirname "$0")/.."
log=$(mktemp)
# A shell lets its background programs ignore Ctrl-C, so they get a signal of their own.
trap 'rm -f "$log"; trap "" TERM; kill 0' INT TERM HUP

cargo test --no-run
cargo test --test chaos >"$log" 2>&1 &
chaos=$!
failed=0
cargo test -- --skip chaos || failed=$?
wait "$chaos" || failed=$?
cat "$log"
rm -f "$log"
exit "$failed"
