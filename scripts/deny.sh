#!/usr/bin/env bash
# Licences, bans and sources of all dependencies; advisories too where their database can be reached.
set -euo pipefail
cd "$(dirname "$0")/.."

CARGO_DENY_VERSION=0.20.2

cargo deny --version 2>/dev/null | grep -q "^cargo-deny $CARGO_DENY_VERSION$" ||
    cargo install --locked --quiet --debug "cargo-deny@$CARGO_DENY_VERSION"
cargo deny check --hide-inclusion-graph licenses bans sources
if cargo deny fetch db 2>/dev/null; then
    cargo deny check advisories
else
    missing="advisories were NOT CHECKED, their database is out of reach from here"
    echo "deny: $missing" | tee -a "${SKIPPED_TESTS:-/dev/null}" >&2
fi
