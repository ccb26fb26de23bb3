#!/usr/bin/env bash
# Six queries of a social network whose data is only in S3, by what is in memory. Writes JSON and a table.
# BENCH_SOCIAL_ARGS are arguments of social/run.py, such as '--users 5000 --executions 2'. The database is kept below
# /tmp for later runs, 3 GB, unless --remove is among them. PYTHON is one that has what test_runner/requirements.txt
# names. TEST_PROFILE names another profile than release.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-benches/results}" && cd "${1:-benches/results}" && pwd)
python=${PYTHON:-.venv/bin/python}
export TEST_PROFILE=${TEST_PROFILE:-release}
cargo build --locked --profile "$TEST_PROFILE" --bin pageserver --bin pagectl --bin compute-fs
read -ra args <<<"${BENCH_SOCIAL_ARGS:-}"
"$python" benches/social/run.py "${args[@]}" --out "$results"
"$python" benches/report_social.py "$results"
