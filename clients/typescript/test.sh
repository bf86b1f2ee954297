#!/bin/sh
# Runs all checks of this client. Against a running server: set TICKR_URL, and TICKR_MYSQL_URL for the outbox. With
# TICKR_BIN, a tickr program with the command `conformance`, the conformance program is checked as well.
set -eu
cd "$(dirname "$0")"
for program in node npm; do
    if ! command -v "$program" >/dev/null 2>&1; then
        echo "$program is not installed" >&2
        exit 3
    fi
done
if [ "$(node -p 'Number(process.versions.node.split(".")[0]) >= 20')" != true ]; then
    echo "node 20 or newer is not installed" >&2
    exit 3
fi
export npm_config_cache="${npm_config_cache:-${XDG_CACHE_HOME:-$HOME/.cache}/tickr/npm}"
[ -d node_modules/typescript ] || npm ci --ignore-scripts --no-audit --no-fund
rm -rf dist build
npm run --silent build
npm run --silent build:test
node --test build/test/*.test.js
if [ -n "${TICKR_BIN:-}" ]; then
    "$TICKR_BIN" conformance -- node "$PWD/conformance.mjs"
fi
