#!/bin/sh
# Starts the worker of the shop, sells one picture, and waits for its three jobs. Needs a running `tickr dev`.
set -eu
cd "$(dirname "$0")"
export TICKR_URL="${TICKR_URL:-http://127.0.0.1:7070}"
[ -d ../../clients/typescript/node_modules ] || (cd ../../clients/typescript && npm ci --ignore-scripts --no-audit --no-fund)
[ -f ../../clients/typescript/dist/index.js ] || (cd ../../clients/typescript && npm run --silent build)
[ -d node_modules/tickr ] || npm install --ignore-scripts --no-audit --no-fund
node declare.js
node worker.js &
worker=$!
trap 'kill "$worker" 2>/dev/null || true' EXIT
node shop.js
kill -TERM "$worker"
trap - EXIT
wait "$worker"
