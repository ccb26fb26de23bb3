#!/usr/bin/env bash
# Records WAL of all record types and of pgbench, measures redo of it, and a stock server's. Writes JSON and a table.
# BENCH_REDO_QUICK=1 takes a minute. PYTHON is one that has what test_runner/requirements.txt names.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-benches/results}" && cd "${1:-benches/results}" && pwd)
python=${PYTHON:-.venv/bin/python}
recorded=$(mktemp -d /tmp/bench-redo-XXXXXX)
trap 'rm -rf "$recorded"' EXIT
transactions=200000 rounds=3
if [ -n "${BENCH_REDO_QUICK:-}" ]; then transactions=20000 rounds=1; fi
"$python" benches/redo/record_wal.py --workload all "$recorded/types"
"$python" benches/redo/record_wal.py --workload pgbench --transactions "$transactions" "$recorded/pgbench"
REDO_TYPES=$recorded/types REDO_WAL=$recorded/pgbench BENCH_RESULTS=$results \
    cargo bench --locked -p redo --bench bench_redo
"$python" benches/redo_standby.py "$recorded/pgbench" --rounds "$rounds" --out "$results"
"$python" benches/report_redo.py "$results"
