#!/usr/bin/env bash
# Values that are read while more are written, several timelines at once, image layers and downloads. Writes JSON and a
# table. BENCH_MORE_MIB and BENCH_MORE_ROUNDS (at least 3) make it smaller.
# BASELINE names another program that is a criterion benchmark with the ids of bench_ingest (they may go on after ours),
# and that reads while it writes: it runs in turn with our cases that do so too, A B B A. BASELINE_VERSION says what it
# is, if `PROGRAM --version` does not.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-benches/results}" && cd "${1:-benches/results}" && pwd)
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}/tmp" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
more=$target/more
rm -rf "$more"
mkdir -p "$more/rounds"
# Everything on the disk of the build.
export CARGO_TARGET_TMPDIR=$target/tmp

ours() {
    mkdir "$more/$1"
    BENCH_RESULTS=$more/$1 cargo bench --locked -p pageserver --bench bench_ingest_more -- "${@:2}"
}

theirs() {
    CRITERION_HOME=$more/rounds/$1-baseline "$BASELINE" --bench
}

ours 1
if [ -n "${BASELINE:-}" ]; then
    { "$BASELINE" --version 2>/dev/null || true; } | head -n 1 >"$more/rounds/baseline-version"
    [ -z "${BASELINE_VERSION:-}" ] || echo "$BASELINE_VERSION" >"$more/rounds/baseline-version"
    theirs 2
    theirs 3
    ours 4 reads=true
fi
"${PYTHON:-.venv/bin/python}" benches/report_ingest_more.py --target "$more" --out "$results"
