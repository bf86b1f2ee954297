#!/bin/sh
# Runs every check of the Ruby client. TICKR_URL adds the tests against a server, TICKR_MYSQL_URL those of the outbox,
# and TICKR_BIN the conformance tests.
cd "$(dirname "$0")" || exit 1
command -v ruby >/dev/null || { echo "ruby is not installed" >&2; exit 3; }
ruby -e 'require "minitest"' 2>/dev/null || { echo "minitest is not installed" >&2; exit 3; }

for file in $(find lib exe test conformance.rb -type f); do
    ruby -wc "$file" >/dev/null || exit 1
done
if command -v rubocop >/dev/null && [ -f .rubocop.yml ]; then
    rubocop || exit 1
fi

# The suites wait most of the time, so they run beside each other.
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
suites="parts client worker server active_job"
for suite in $suites; do
    (TMPDIR="$dir" ruby -W1 "test/${suite}_test.rb" >"$dir/$suite.out" 2>&1; echo $? >"$dir/$suite.code") &
done
wait
failed=0
for suite in $suites; do
    echo "== $suite"
    cat "$dir/$suite.out"
    [ "$(cat "$dir/$suite.code")" = 0 ] || failed=1
done
[ "$failed" = 0 ] || exit 1

if [ -n "${TICKR_BIN:-}" ]; then
    "$TICKR_BIN" conformance -- ruby "$PWD/conformance.rb" || exit 1
fi
