#!/bin/sh
# Runs every test, and the chaos after all others: beside tests with long backlogs, jobs of the chaos do not recover in
# the time that two cores allow. The last lines repeat why tests failed, because a log of CI is often cut in its middle.
set -eu

cd "$(dirname "$0")/.."
said=$(mktemp)
trap 'rm -f "$said" "$said.failed"' EXIT
trap 'exit 130' INT TERM HUP

# The line of a panic tells where a test failed; the frames of an async runtime would bury it.
export RUST_BACKTRACE=0
failed=0
{ cargo test -- --skip chaos 2>&1 || echo failed >"$said.failed"; } | tee "$said"
cargo test --test chaos || failed=$?
if [ -e "$said.failed" ]; then
	failed=1
	echo 'Why tests failed:'
	grep -A 4 'panicked at' "$said" | tail -n 200
fi
exit "$failed"
