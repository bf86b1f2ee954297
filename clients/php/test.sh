#!/bin/sh
# Runs every check of the PHP client. TICKR_URL adds the tests against a server, TICKR_MYSQL_URL those of the outbox,
# and TICKR_BIN the conformance tests.
cd "$(dirname "$0")" || exit 1
for program in php phpunit; do
    command -v "$program" >/dev/null || { echo "$program is not installed" >&2; exit 3; }
done
php -m | grep -qx pcntl || { echo "the PHP extension pcntl is not installed" >&2; exit 3; }

find . -name '*.php' -not -path './vendor/*' -print0 |
    xargs -0 -n 1 -P 4 php -d error_reporting=-1 -l >/dev/null || exit 1
if command -v composer >/dev/null; then
    composer validate --strict --no-check-publish --no-check-version --no-interaction composer.json || exit 1
fi
if command -v phpstan >/dev/null; then
    phpstan analyse --no-progress --level 5 src || exit 1
fi

# The suites wait most of the time, so they run beside each other.
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
for suite in unit server laravel; do
    (TMPDIR="$dir" phpunit --testsuite "$suite" >"$dir/$suite.out" 2>&1; echo $? >"$dir/$suite.code") &
done
wait
failed=0
for suite in unit server laravel; do
    echo "== $suite"
    cat "$dir/$suite.out"
    [ "$(cat "$dir/$suite.code")" = 0 ] || failed=1
done
[ "$failed" = 0 ] || exit 1

if [ -n "${TICKR_BIN:-}" ]; then
    "$TICKR_BIN" conformance -- php "$PWD/conformance.php" || exit 1
fi
