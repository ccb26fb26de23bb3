#!/usr/bin/env bash
# Reads, writes and space while a history grows, with compaction and without. Writes JSON, a table and curves.
# BENCH_COMPACTION_MIB and BENCH_COMPACTION_PAGES set the size, BENCH_COMPACTION_ONLY=zipf runs a part.
# BENCH_COMPACTION_RATE limits ingest to so many MiB/s; RUST_LOG=engine=info logs what history goes. To look closer, run
# the benchmark alone with BENCH_COMPACTION_ON=1: only with compaction, which makes no table.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-benches/results}" && cd "${1:-benches/results}" && pwd)
BENCH_RESULTS=$results cargo bench --locked -p pageserver --bench bench_compaction
"${PYTHON:-.venv/bin/python}" benches/report_compaction.py "$results"
