#!/bin/sh
# A small shop: it takes orders, and a worker sends mails, makes pictures smaller and writes a report.
# Usage: examples/rails/run.sh, beside a running `tickr dev` (or with TICKR_URL and TICKR_TOKEN of another tickr).
set -eu
cd "$(dirname "$0")"
command -v ruby >/dev/null || { echo "ruby is not installed" >&2; exit 3; }
ruby -e 'require "action_mailer"' 2>/dev/null || { echo "actionmailer is not installed" >&2; exit 3; }
export TICKR_URL="${TICKR_URL:-http://127.0.0.1:7070}"
SHOP_DIR=$(mktemp -d)
export SHOP_DIR
worker=
trap '[ -z "$worker" ] || kill "$worker" 2>/dev/null; wait; rm -rf "$SHOP_DIR"' EXIT
library=../../clients/ruby
ruby -I "$library/lib" "$library/exe/tickr-active-job" --kind active_job_shop --declare
ruby -I "$library/lib" "$library/exe/tickr-active-job" --kind active_job_shop --require ./shop.rb \
    --queues shop,shop_mailers --threads 3 &
worker=$!
ruby -I "$library/lib" order.rb "${1:-3}"
