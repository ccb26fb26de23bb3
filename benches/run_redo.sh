#!/usr/bin/env bash
# Records WAL of all record types and of pgbench, measures redo of it, and a stock server's. Writes JSON and a table.
# BENCH_REDO_QUICK=1 takes a minute.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-benches/results}" && cd "${1:-benches/results}" && pwd)
recorded=$(mktemp -d /tmp/bench-redo-XXXXXX)
trap 'rm -rf "$recorded"' EXIT
transactions=200000 rounds=3
if [ -n "${BENCH_REDO_QUICK:-}" ]; then transactions=20000 rounds=1; fi
benches/redo/record_wal.py --workload all "$recorded/types"
benches/redo/record_wal.py --workload pgbench --transactions "$transactions" "$recorded/pgbench"
REDO_TYPES=$recorded/types REDO_WAL=$recorded/pgbench BENCH_RESULTS=$results \
    cargo bench --locked -p redo --bench bench_redo
benches/redo_standby.py "$recorded/pgbench" --rounds "$rounds" --out "$results"
python3 benches/report_redo.py "$results"
