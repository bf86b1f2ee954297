#!/bin/sh
# A small shop: it takes orders, and a worker sends mails, makes pictures smaller and writes a report.
# Usage: examples/laravel/run.sh, beside a running `tickr dev` (or with TICKR_URL and TICKR_TOKEN of another tickr).
set -eu
cd "$(dirname "$0")"
command -v php >/dev/null || { echo "php is not installed" >&2; exit 3; }
export TICKR_URL="${TICKR_URL:-http://127.0.0.1:7070}"
SHOP_DIR=$(mktemp -d)
export SHOP_DIR
worker=
trap '[ -z "$worker" ] || kill "$worker" 2>/dev/null; wait; rm -rf "$SHOP_DIR"' EXIT
php artisan tickr:declare
php artisan tickr:work --slots=2 --tries=3 &
worker=$!
php artisan shop:order "${1:-3}"
