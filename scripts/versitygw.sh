#!/usr/bin/env bash
# Prints where versitygw is, an S3 server that keeps objects as files. If need be it is built first, with Go: that takes
# some minutes.
set -euo pipefail
VERSION=v1.8.0
dir=${VERSITYGW_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/pageserver-versitygw/$VERSION}
if [ ! -x "$dir/versitygw" ]; then
    command -v go >/dev/null || { echo "versitygw is built from source: install Go, or set VERSITYGW_DIR" >&2; exit 1; }
    build=$(mktemp -d)
    trap 'chmod -R u+w "$build" && rm -rf "$build"' EXIT
    echo "building versitygw $VERSION" >&2
    export GOPATH="$build/path" GOBIN="$build/bin" GOFLAGS=-mod=mod
    go install "github.com/versity/versitygw/cmd/versitygw@$VERSION" >&2
    mkdir -p "$dir"
    mv "$build/bin/versitygw" "$dir/versitygw.new"
    mv "$dir/versitygw.new" "$dir/versitygw"
fi
echo "$dir/versitygw"
