#!/usr/bin/env bash
# Pages over TCP by 1 to 128 connections, from a server in a process of its own. Writes JSON, a table and a curve.
# BENCH_LOAD_PAGES sets the size (131072 pages are 1 GiB), BENCH_LOAD_SECONDS how long each row is measured.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-benches/results}" && cd "${1:-benches/results}" && pwd)
BENCH_RESULTS=$results cargo bench --locked -p pageserver --bench bench_load
"${PYTHON:-.venv/bin/python}" benches/report_load.py "$results"
