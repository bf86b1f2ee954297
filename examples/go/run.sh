#!/bin/sh
# Starts the worker of the shop, sells one picture, and waits for its three jobs. Needs a running `tickr dev`.
set -eu
cd "$(dirname "$0")"
export TICKR_URL="${TICKR_URL:-http://127.0.0.1:7070}"
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
go build -o "$built/shop" .
"$built/shop"
