#!/usr/bin/env bash
# One writer, many readers, by where the bucket is. Writes JSON and a table.
# BENCH_SWMR_ARGS are arguments of swmr.py: '--mib 200 --budget-mib 128 --rounds 2 --seconds 6' takes two minutes.
# PYTHON is one that has what test_runner/requirements.txt names. TEST_PROFILE names another profile than release.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-benches/results}" && cd "${1:-benches/results}" && pwd)
python=${PYTHON:-.venv/bin/python}
export TEST_PROFILE=${TEST_PROFILE:-release}
cargo build --locked --profile "$TEST_PROFILE" --bin pageserver --bin pagectl
read -ra args <<<"${BENCH_SWMR_ARGS:-}"
"$python" benches/swmr.py "${args[@]}" --out "$results"
"$python" benches/report_swmr.py "$results"
