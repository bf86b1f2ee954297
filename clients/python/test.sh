#!/bin/sh
# Run the checks of the Python client.
#
# PYTHON:          the interpreter, default python3. Django, django-tasks and PyMySQL are used if it has them
# TICKR_URL:       server for the integration tests, with an open API or an admin key in TICKR_TOKEN
# TICKR_MYSQL_URL: its database, for the tests of the outbox
# TICKR_BIN:       program of tickr, for the conformance kit
set -eu
cd "$(dirname "$0")"
PYTHON=${PYTHON:-python3}
export PYTHONDONTWRITEBYTECODE=1

command -v "$PYTHON" > /dev/null 2>&1 || { echo "$PYTHON is not installed" >&2; exit 3; }
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || { echo "$PYTHON is older than 3.9" >&2; exit 3; }

cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
if "$PYTHON" -m ruff --version > /dev/null 2>&1; then
    "$PYTHON" -m ruff check --cache-dir "$cache/ruff" .
    "$PYTHON" -m ruff format --check --cache-dir "$cache/ruff" .
else
    echo "ruff is not installed: its checks are left out"
fi
if "$PYTHON" -c 'import mypy, django_tasks' > /dev/null 2>&1; then
    "$PYTHON" -m mypy --cache-dir "$cache/mypy"
else
    echo "mypy with django-tasks is not installed: the types are not checked"
fi

[ -n "${TICKR_URL:-}" ] || echo "TICKR_URL is unset: the integration tests are left out"
"$PYTHON" -m unittest discover -t . -s tests

if [ -n "${TICKR_BIN:-}" ]; then
    "$TICKR_BIN" conformance --parallel 8 -- "$PYTHON" conformance.py
    TICKR_CONFORMANCE_ASYNC=1 "$TICKR_BIN" conformance --parallel 8 -- "$PYTHON" conformance.py
fi
