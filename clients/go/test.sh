#!/bin/sh
# Runs all checks of this client. Against a running server: set TICKR_URL, and TICKR_MYSQL_URL for the outbox. With
# TICKR_BIN, a tickr program with the command `conformance`, the conformance program is checked as well.
set -eu
cd "$(dirname "$0")"
if ! command -v go >/dev/null 2>&1; then
    echo "go is not installed" >&2
    exit 3
fi
# What is built stays in the user's cache, which makes the next run faster. In /tmp it would belong to the first user.
export GOPATH="${XDG_CACHE_HOME:-$HOME/.cache}/tickr/go"
export GOCACHE="$GOPATH/cache"
unformatted=$(gofmt -l .)
if [ -n "$unformatted" ]; then
    echo "gofmt would change: $unformatted" >&2
    exit 1
fi
go vet ./...
# The race detector needs a C compiler.
race=
if [ "$(go env CGO_ENABLED)" = 1 ] && command -v "$(go env CC)" >/dev/null 2>&1; then race=-race; fi
go test -count=1 -timeout 120s $race ./...
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
if [ -n "${TICKR_URL:-}" ] && [ -n "${TICKR_MYSQL_URL:-}" ]; then
    cp outboxtest/go.mod "$temporary/go.mod"
    # Of Debian's package golang-github-go-sql-driver-mysql-dev. Without it, go downloads the driver.
    driver=/usr/share/gocode/src/github.com/go-sql-driver/mysql
    [ ! -d "$driver" ] || go mod edit -replace "github.com/go-sql-driver/mysql=$driver" "$temporary/go.mod"
    (cd outboxtest && GOFLAGS=-mod=mod go test -modfile="$temporary/go.mod" -count=1 -timeout 60s ./...)
else
    echo "outboxtest is left out: TICKR_URL and TICKR_MYSQL_URL are not set"
fi
if [ -n "${TICKR_BIN:-}" ]; then
    go build -o "$temporary/conformance" ./conformance
    "$TICKR_BIN" conformance -- "$temporary/conformance"
fi
