#!/usr/bin/env bash
# On what the write path spends its time, with and without a bucket. Writes JSON and tables. BENCH_ATTRIBUTION_ARGS are
# arguments of attribution.py, such as '--gib 0.1 --scale 2 --rounds 1'; without any it takes some 5 minutes and 6 GB of
# disk. PYTHON is one that has what test_runner/requirements.txt names. TEST_PROFILE names another profile than release.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-benches/results}" && cd "${1:-benches/results}" && pwd)
python=${PYTHON:-.venv/bin/python}
export TEST_PROFILE=${TEST_PROFILE:-release}
cargo build --locked --profile "$TEST_PROFILE" --bin pageserver --bin pagectl
read -ra args <<<"${BENCH_ATTRIBUTION_ARGS:-}"
"$python" benches/attribution.py "${args[@]}" --out "$results"
"$python" benches/report_attribution.py "$results"
