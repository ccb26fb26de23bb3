#!/usr/bin/env bash
# Open, fresh read, write and visible, by where the bucket is and by size. Writes JSON and a table.
# BENCH_SURFACE_ARGS are arguments of surface.py: '--mib 64 --scale 1 --rounds 2 --writes 5' takes a minute.
# PYTHON is one that has what test_runner/requirements.txt names. TEST_PROFILE names another profile than release.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-benches/results}" && cd "${1:-benches/results}" && pwd)
python=${PYTHON:-.venv/bin/python}
export TEST_PROFILE=${TEST_PROFILE:-release}
cargo build --locked --profile "$TEST_PROFILE" --bin pageserver --bin pagectl --bin compute-fs
read -ra args <<<"${BENCH_SURFACE_ARGS:-}"
"$python" benches/surface.py "${args[@]}" --out "$results"
"$python" benches/report_surface.py "$results"
