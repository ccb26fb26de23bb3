#!/usr/bin/env bash
# Wide rows with 14 indexes: loads by 1 and 5 connections, first and second runs of queries, on a compute and on a plain
# directory. Writes JSON and a table. BENCH_WIDE_ARGS are arguments of wide_load.py: '--rows 20000 --rounds 2 --reads 2'
# takes a minute and 1 GB of disk, the default (500,000 rows) a quarter of an hour and 10 GB.
# PYTHON is one that has what test_runner/requirements.txt names. TEST_PROFILE names another profile than release.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-benches/results}" && cd "${1:-benches/results}" && pwd)
python=${PYTHON:-.venv/bin/python}
export TEST_PROFILE=${TEST_PROFILE:-release}
cargo build --locked --profile "$TEST_PROFILE" --bin pageserver --bin pagectl --bin compute-fs
read -ra args <<<"${BENCH_WIDE_ARGS:-}"
"$python" benches/wide_load.py "${args[@]}" --out "$results"
"$python" benches/report_wide.py "$results"
