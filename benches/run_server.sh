#!/usr/bin/env bash
# Pages over TCP, opening of many layers, intake of WAL from a live server against a standby. Writes JSON and a table.
# BENCH_INTAKE_ARGS are arguments of wal_intake.py, such as '--gib 0.5 --rounds 2'. PYTHON is one that has what
# test_runner/requirements.txt names.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-benches/results}" && cd "${1:-benches/results}" && pwd)
python=${PYTHON:-.venv/bin/python}
export BENCH_RESULTS=$results
cargo build --locked --release --bin pageserver
cargo bench --locked -p pageserver --bench bench_get_page
cargo bench --locked -p pageserver --bench bench_restart
read -ra intake <<<"${BENCH_INTAKE_ARGS:-}"
"$python" benches/wal_intake.py "${intake[@]}" --out "$results"
"$python" benches/report_server.py "$results"
