#!/usr/bin/env bash
# Runs the ingest benchmark and, in the same run and directory, what the disk itself gives; writes table and plot.
# BASELINE names another program that is a criterion benchmark with the same ids (they may go on after ours): it runs in
# turn with ours, in rounds A B B A, and the table has the ratio. It is called with --bench, and finds in CRITERION_HOME
# where criterion keeps its results. BASELINE_VERSION says what it is, if `PROGRAM --version` does not.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-benches/results}" && cd "${1:-benches/results}" && pwd)
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
rounds=$target/rounds
rm -rf "$rounds"
mkdir -p "$rounds" "$target/tmp"

ours() {
    CRITERION_HOME=$rounds/$1-ours cargo bench --locked -p pageserver --bench bench_ingest
}

theirs() {
    awk '{ print $1 }' /proc/loadavg >>"$rounds/baseline-load"
    CRITERION_HOME=$rounds/$1-baseline "$BASELINE" --bench
}

device_limit() {
    cargo bench --locked -p pageserver --bench device_limit
    mv "$target/tmp/device_limit.json" "$target/tmp/device_limit_$1.json"
}

device_limit before
ours 1
if [ -n "${BASELINE:-}" ]; then
    { "$BASELINE" --version 2>/dev/null || true; } | head -n 1 >"$rounds/baseline-version"
    [ -z "${BASELINE_VERSION:-}" ] || echo "$BASELINE_VERSION" >"$rounds/baseline-version"
    theirs 2
    theirs 3
    ours 4
fi
device_limit after
cargo bench --locked -p pageserver --bench bench_layer_read
python3 benches/report_ingest.py --target "$target" --out "$results"
