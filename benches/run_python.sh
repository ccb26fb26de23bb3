#!/usr/bin/env bash
# Runs a benchmark that drives servers of its own, then makes its report: run_python.sh NAME [RESULTS]. Writes JSON and
# a table. What it measures and what its arguments mean, its program says with --help; BENCH_NAME_ARGS passes some. With
# these it takes a minute or two, and little disk:
#   BENCH_ASLEEP_ARGS='--mib 64 --branches 6 --before 2 --at-once 3'
#   BENCH_ATTRIBUTION_ARGS='--gib 0.1 --scale 2 --rounds 1'
#   BENCH_COMMIT_ARGS='--scale 1 --seconds 3 --rounds 1 --gib 0.1'
#   BENCH_CONSOLE_ARGS='--mib 30 --layers 300 --rounds 2 --seconds 2'
#   BENCH_FIRST_COPY_ARGS='--mib 64 128 --rounds 1'
#   BENCH_GATEWAY_ARGS='--mib 64 --wakes 2 --at-once 3 --rounds 2 --seconds 2 --idle 50'
#   BENCH_MEMORY_ARGS='--mib 90 --wal-mib 64 192 --step-mib 64 --reads 8000'
#   BENCH_MIXED_ARGS='--scale 2 --rounds 1 --seconds 2'
#   BENCH_REPLICA_ARGS='--mib 64 --starts 2 --seconds 5'
#   BENCH_SOCIAL_ARGS='--users 5000 --executions 2'
#   BENCH_SURFACE_ARGS='--mib 64 --scale 1 --rounds 2 --writes 5'
#   BENCH_SWMR_ARGS='--mib 200 --budget-mib 128 --rounds 2 --seconds 6'
#   BENCH_TAKEOVER_ARGS='--scale 2 --rounds 2 --layers 0'
#   BENCH_WIDE_ARGS='--rows 20000 --rounds 2 --reads 2'
# PYTHON is one that has what test_runner/requirements.txt names. TEST_PROFILE names another profile than release.
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1
case $name in
    social) program=benches/social/run.py ;;
    wide) program=benches/wide_load.py ;;
    *) program=benches/$name.py ;;
esac
results=$(mkdir -p "${2:-benches/results}" && cd "${2:-benches/results}" && pwd)
python=${PYTHON:-.venv/bin/python}
export TEST_PROFILE=${TEST_PROFILE:-release}
cargo build --locked --profile "$TEST_PROFILE" --bin pageserver --bin pagectl --bin compute-fs
variable=BENCH_${name^^}_ARGS
read -ra args <<<"${!variable:-}"
"$python" "$program" "${args[@]}" --out "$results"
"$python" "benches/report_$name.py" "$results"
