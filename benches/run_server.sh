#!/usr/bin/env bash
# Pages over TCP, opening of many layers, intake of WAL from a live server against a standby. Writes JSON and a table.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-benches/results}" && cd "${1:-benches/results}" && pwd)
target=${CARGO_TARGET_DIR:-target}
export BENCH_RESULTS=$results
cargo build --locked --release --bin pageserver
cargo bench --locked -p pageserver --bench bench_get_page
cargo bench --locked -p pageserver --bench bench_restart
benches/wal_intake.py --pageserver "$target/release/pageserver" --out "$results"
python3 benches/report_server.py "$results"
