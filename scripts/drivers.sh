#!/usr/bin/env bash
# Prints a directory with what the programs in test_runner/drivers need, by language: `node` with its modules, `go` with
# the program as it was built, `java` with the driver's archive. What is missing, or is of other versions, is fetched
# and built first.
set -euo pipefail
cd "$(dirname "$0")/.."
JDBC=42.7.14
JDBC_SHA256=73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c
. scripts/go.sh

sources=$PWD/test_runner/drivers
named=$(cat "$sources"/node/package-lock.json "$sources"/go/{go.*,main.go} scripts/{drivers,go}.sh | sha256sum)
dir=${DRIVERS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/pageserver-drivers}/${named:0:16}
if [ ! -e "$dir" ]; then
    for tool in node npm java javac; do
        command -v "$tool" >/dev/null || { echo "drivers: no $tool; run make setup" >&2; exit 1; }
    done
    echo "fetching drivers" >&2
    mkdir -p "$(dirname "$dir")"
    build=$(mktemp -d "$(dirname "$dir")/new.XXXXXX")
    tools=$(mktemp -d)
    trap 'rm -rf "$build" "$tools"' EXIT
    find_go "$tools"
    mkdir "$build"/{node,go,java}
    cp "$sources"/node/package*.json "$build/node"
    npm ci --prefix "$build/node" --ignore-scripts --no-audit --no-fund >&2
    go build -C "$sources/go" -mod=readonly -o "$build/go/query" . >&2
    jar=postgresql-$JDBC.jar
    curl -sSf "https://repo1.maven.org/maven2/org/postgresql/postgresql/$JDBC/$jar" -o "$build/java/postgresql.jar"
    echo "$JDBC_SHA256  $build/java/postgresql.jar" | sha256sum --check --quiet >&2
    chmod 0755 "$build"
    # Somebody else may have been faster.
    mv -T "$build" "$dir" 2>/dev/null || [ -e "$dir" ]
fi
echo "$dir"
