#!/bin/sh
# Runs every test. The chaos runs beside the others, because both wait more than they work, and prints its result after
# them. `cargo test` without this script runs the same tests one program after the other.
# The last lines repeat why tests failed, because a log of CI is often cut in its middle.
set -eu

cd "$(dirname "$0")/.."
log=$(mktemp)
said=$(mktemp)
# A shell lets its background programs ignore Ctrl-C, so they get a signal of their own.
trap 'rm -f "$log" "$said"; trap "" TERM; kill 0' INT TERM HUP

# The line of a panic tells where a test failed; the frames of an async runtime would bury it.
export RUST_BACKTRACE=0
cargo test --no-run
cargo test --test chaos >"$log" 2>&1 &
chaos=$!
failed=0
{ cargo test -- --skip chaos 2>&1 || echo failed >"$log.failed"; } | tee "$said"
wait "$chaos" || failed=$?
cat "$log"
if [ -e "$log.failed" ]; then
	failed=1
	rm -f "$log.failed"
	echo 'Why tests failed:'
	grep -A 4 'panicked at' "$said" | tail -n 200
fi
rm -f "$log" "$said"
exit "$failed"
