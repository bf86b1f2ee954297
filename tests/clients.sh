#!/bin/sh
# Runs the tests of the libraries in clients/, each against a real tickr with private servers, the conformance kit against
# each of them, and their samples in examples/:
#
#   make test-clients                  all of them
#   make test-clients ARGS='php go'    these
#
# A library whose language is not installed is left out, and the last line says so. With TICKR_INSTALL_LANGUAGES=1,
# root on Debian gets the languages first.
set -eu

cd "$(dirname "$0")/.."
root=$PWD
dir=$root/target/tmp/clients
server=''

stop() {
    [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server" || :; }
    rm -rf "$dir"
}
trap stop EXIT
trap 'exit 130' INT TERM

cargo build --bin tickr
TICKR_BIN=$root/target/debug/tickr
export TICKR_BIN
rm -rf "$dir"
mkdir -p "$dir"
"$TICKR_BIN" dev --no-samples --dir "$dir/data" --http-addr 127.0.0.1:0 >"$dir/log" 2>&1 &
server=$!
looks=0
until grep -q 'tickr verify' "$dir/log" 2>/dev/null; do
    looks=$((looks + 1))
    if [ "$looks" -gt 600 ] || ! kill -0 "$server" 2>/dev/null; then
        echo 'tickr did not start:' >&2
        cat "$dir/log" >&2
        exit 1
    fi
    sleep 0.2
done
. "$dir/data/env"
# Every call needs an API key, so that the tests with two of them run too.
TICKR_TOKEN=$("$TICKR_BIN" api-keys create clients --scope admin --yes)
export TICKR_URL TICKR_MYSQL_URL TICKR_TOKEN
# The Python of `install.sh --client-python`.
[ -z "${TICKR_PYTHON:-}" ] || export PYTHON="$TICKR_PYTHON"

# Run the tests and the sample of one library. Its output and its exit code go to files.
run() {
    code=0
    timeout 600 sh "clients/$1/test.sh" >"$dir/$1" 2>&1 || code=$?
    if [ $code = 0 ]; then
        case $1 in
        go) sample='go/run.sh' ;;
        php) sample='laravel/run.sh' ;;
        python) sample='django/run.sh check' ;;
        ruby) sample='rails/run.sh' ;;
        typescript) sample='node/run.sh' ;;
        esac
        # shellcheck disable=SC2086 # a script and its argument
        timeout 300 sh examples/$sample >>"$dir/$1" 2>&1 || code=$?
    fi
    echo $code >"$dir/$1.code"
}

# They wait most of the time, so two of them run at once.
first=''
for client in ${*:-$(ls clients)}; do
    run "$client" &
    if [ -z "$first" ]; then
        first=$!
    else
        wait $first $!
        first=''
    fi
done
[ -z "$first" ] || wait "$first"

passed='' left='' failed=''
for client in ${*:-$(ls clients)}; do
    echo "== clients/$client"
    case $(cat "$dir/$client.code") in
    0)
        tail -n 3 "$dir/$client"
        passed="$passed $client"
        ;;
    3)
        tail -n 1 "$dir/$client"
        left="$left $client"
        ;;
    *)
        cat "$dir/$client"
        failed="$failed $client"
        ;;
    esac
done

# What the clients left behind must be in order as well.
"$TICKR_BIN" verify || failed="$failed verify"
echo "clients: passed:${passed:- none}; left out:${left:- none}; failed:${failed:- none}"
[ -z "$failed" ]
