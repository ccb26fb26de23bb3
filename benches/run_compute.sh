#!/usr/bin/env bash
# Stock Postgres computes: first answer, local disk, cold scans, pgbench against a plain directory. Writes JSON and a
# table. BENCH_COMPUTE_ARGS are arguments of compute_figures.py: '--mib 256 1024 --scale 10 --seconds 10' takes a few
# minutes and 4 GB of disk; without any, 20 GB of data are made, and 50 GB of disk are needed for a while.
# Then the same on a pageserver whose disk was lost, with an S3 server; BENCH_COMPUTE_COLD_ARGS are arguments of
# compute_cold.py, such as '--mib 256 --starts 2'. BENCH_COMPUTE_ONLY=cold leaves the others out.
# PYTHON is one that has what test_runner/requirements.txt names. TEST_PROFILE names another profile than release.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-benches/results}" && cd "${1:-benches/results}" && pwd)
python=${PYTHON:-.venv/bin/python}
export TEST_PROFILE=${TEST_PROFILE:-release}
cargo build --locked --profile "$TEST_PROFILE" --bin pageserver --bin pagectl --bin compute-fs
read -ra args <<<"${BENCH_COMPUTE_ARGS:-}"
read -ra cold_args <<<"${BENCH_COMPUTE_COLD_ARGS:-}"
if [[ ${BENCH_COMPUTE_ONLY:-} != cold ]]; then
    "$python" benches/compute_figures.py "${args[@]}" --out "$results"
    "$python" benches/report_compute.py "$results/compute.json"
fi
"$python" benches/compute_cold.py "${cold_args[@]}" --out "$results"
"$python" benches/report_compute.py "$results/compute-cold.json"
