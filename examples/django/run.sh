#!/bin/sh
# Start the shop against a running tickr: its worker and its web page. `./run.sh check` also buys something, checks what
# the jobs did, and ends.
#
# TICKR_URL, TICKR_TOKEN: tickr; default http://127.0.0.1:7070 without a token. Its API key needs the scope admin,
#                         because the worker declares its kinds.
# PORT:                   port of the page, default 8000
# PYTHON:                 Python 3.10 or newer, default python3
# SHOP_DATA, SHOP_VENV:   folders for data and packages, default data and .venv beside this file
set -eu
cd "$(dirname "$0")"
PYTHON=${PYTHON:-python3}
PORT=${PORT:-8000}
VENV=${SHOP_VENV:-.venv}
TICKR_URL=${TICKR_URL:-http://127.0.0.1:7070}
export TICKR_URL PYTHONDONTWRITEBYTECODE=1

command -v "$PYTHON" > /dev/null 2>&1 || { echo "$PYTHON is not installed" >&2; exit 3; }
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$PYTHON is older than 3.10" >&2; exit 3; }

if ! [ -e "$VENV/ready" ]; then
    "$PYTHON" -m venv "$VENV"
    "$VENV/bin/pip" install --quiet --disable-pip-version-check -r requirements.txt
    # pip builds in the folder of the sources, so it gets a copy of them.
    copy=$(mktemp -d)
    cp -R ../../clients/python/pyproject.toml ../../clients/python/README.md ../../clients/python/src "$copy"
    "$VENV/bin/pip" install --quiet --disable-pip-version-check "$copy"
    rm -r "$copy"
    touch "$VENV/ready"
fi
python=$VENV/bin/python

"$python" manage.py migrate --verbosity 0
"$python" manage.py tickr_worker --declare --app shop.jobs:app --name shop &
worker=$!
"$python" manage.py runserver --noreload --insecure "127.0.0.1:$PORT" &
page=$!
stop() {
    trap - EXIT INT TERM
    kill -TERM "$worker" "$page" 2> /dev/null || true
    wait "$worker" "$page" 2> /dev/null || true
}
trap stop EXIT
trap 'exit 0' INT TERM

if [ "${1:-}" = check ]; then
    tries=0
    open="import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)"
    until "$python" -c "$open" "http://127.0.0.1:$PORT/" 2> /dev/null; do
        tries=$((tries + 1))
        [ "$tries" -lt 60 ] || { echo "the page does not answer" >&2; exit 1; }
        sleep 0.5
    done
    "$python" manage.py check_shop "http://127.0.0.1:$PORT/"
else
    echo "The shop is at http://127.0.0.1:$PORT/, its jobs are at $TICKR_URL. End it with Ctrl-C."
    wait "$page"
fi
