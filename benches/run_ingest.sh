#!/usr/bin/env bash
# Runs the ingest benchmark and, in the same run and directory, what the disk itself gives; writes table and plot.
set -euo pipefail
cd "$(dirname "$0")/.."
results=${1:-benches/results}
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$results"
rm -f "$target/tmp/bench_ingest_cpu.jsonl"
cargo bench --locked -p pageserver --bench device_limit
cp "$target/tmp/device_limit.json" "$target/tmp/device_limit_before.json"
cargo bench --locked -p pageserver --bench bench_ingest
cargo bench --locked -p pageserver --bench device_limit
cargo bench --locked -p pageserver --bench bench_layer_read
python3 benches/report.py --target "$target" --out "$results"
