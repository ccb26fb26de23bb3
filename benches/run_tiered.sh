#!/usr/bin/env bash
# Pages of layers that are in a bucket: a directory, and an S3 server that is started here. Writes JSON and tables.
# BENCH_TIERED_QUICK=1 takes some minutes. PYTHON is one that has what test_runner/requirements.txt names.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-benches/results}" && cd "${1:-benches/results}" && pwd)
python=${PYTHON:-.venv/bin/python}
export BENCH_RESULTS=$results
cargo bench --locked -p pageserver --bench bench_tiered --no-run
"$python" benches/with_s3.py cargo bench --locked -p pageserver --bench bench_tiered
"$python" benches/report_tiered.py "$results"
