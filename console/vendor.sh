#!/usr/bin/env bash
# Copies what the console uses from npm into src/vendor, as package-lock.json names it: needed only after a change of
# versions there, since the copies are committed. With --check only says whether they are what it would copy.
set -euo pipefail
cd "$(dirname "$0")"
npm ci --silent --ignore-scripts --no-audit --no-fund
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
# Browsers know no names of packages: they are asked for as files. Maps to sources are not served.
plain() { sed -e 's|from *"preact"|from"./preact.js"|g' -e '/^\/\/# sourceMappingURL=/d' "$1"; }
plain node_modules/preact/dist/preact.mjs >"$made/preact.js"
plain node_modules/preact/hooks/dist/hooks.mjs >"$made/hooks.js"
plain node_modules/htm/dist/htm.module.js >"$made/htm.js"
for name in preact htm; do
    echo "$name $(node -p "require('./node_modules/$name/package.json').version"):"
    cat "node_modules/$name/LICENSE"
done >"$made/LICENSES.txt"
if [ "${1:-}" = --check ]; then
    diff -r "$made" src/vendor && echo "console: src/vendor is what package-lock.json names"
else
    rm -rf src/vendor && mkdir src/vendor && cp "$made"/* src/vendor/ && chmod 644 src/vendor/*
fi
