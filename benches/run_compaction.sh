#!/usr/bin/env bash
# Reads, writes and space while a history grows, with compaction and without. Writes JSON, a table and curves.
# BENCH_COMPACTION_MIB and BENCH_COMPACTION_PAGES set the size, BENCH_COMPACTION_ONLY=zipf runs a part.
# Ingest goes as fast as it can, then, in RESULTS/paced, at the 60 MiB/s that the contract asks for;
# BENCH_COMPACTION_RATE limits it to other MiB/s, and there is one run. RUST_LOG=engine=info logs what history goes. To
# look closer, run the benchmark alone with BENCH_COMPACTION_ON=1: only with compaction, which makes no table.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-benches/results}" && cd "${1:-benches/results}" && pwd)
measure() {
    mkdir -p "$1"
    BENCH_RESULTS=$1 cargo bench --locked -p pageserver --bench bench_compaction
    "${PYTHON:-.venv/bin/python}" benches/report_compaction.py "$1"
}

measure "$results"
# And at the rate that the contract asks for, unless one was given.
[ -n "${BENCH_COMPACTION_RATE:-}" ] || BENCH_COMPACTION_RATE=60 measure "$results/paced"
