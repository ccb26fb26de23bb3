#!/usr/bin/env bash
# What memory a pageserver takes, idle, loaded and while WAL comes, whether that or the rate changes as its store grows,
# and what a crash costs. Writes JSON, a table and a curve. BENCH_MEMORY_ARGS are arguments of memory.py: '--mib 90
# --wal-mib 64 192 --step-mib 64 --reads 8000' takes a minute and 1.5 GB of disk; '--mib 1024 5120 10240 --wal-mib 1024
# 4096 8192 --most-gib 70' is more than the default, which takes half an hour and some 30 GB.
# PYTHON is one that has what test_runner/requirements.txt names. TEST_PROFILE names another profile than release.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-benches/results}" && cd "${1:-benches/results}" && pwd)
python=${PYTHON:-.venv/bin/python}
export TEST_PROFILE=${TEST_PROFILE:-release}
cargo build --locked --profile "$TEST_PROFILE" --bin pageserver --bin pagectl
read -ra args <<<"${BENCH_MEMORY_ARGS:-}"
"$python" benches/memory.py "${args[@]}" --out "$results"
"$python" benches/report_memory.py "$results"
