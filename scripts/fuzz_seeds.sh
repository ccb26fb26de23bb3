#!/usr/bin/env bash
# Writes seeds for the fuzz targets: real records, the pages that they change, and what our own encoders write. Records
# WAL of a Postgres 15, and of other servers named as arguments (directories with initdb, pg_ctl, postgres).
#   PYTHON     one that has what test_runner/requirements.txt names
#   FUZZ_HOME  as in fuzz.sh
#   FEW        with 1, the few seeds that the tests run with are written anew, to libs/fuzzed/tests/seeds
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
home=$(realpath -m "${FUZZ_HOME:-$target/fuzz}")
python=${PYTHON:-.venv/bin/python}
recorded=$(mktemp -d /tmp/fuzz-seeds-XXXXXX)
trap 'rm -rf "$recorded"' EXIT
out=("$home/seeds")
if [ "${FEW:-}" = 1 ]; then
    rm -rf libs/fuzzed/tests/seeds
    out=(--few libs/fuzzed/tests/seeds)
fi
seeds=(cargo run --quiet --locked --profile tested -p fuzzed --example seeds -- "${out[@]}")
number=0
dirs=()
for bin in "${@:-}"; do
    for full_page_writes in off on; do
        number=$((number + 1))
        "$python" benches/redo/record_wal.py ${bin:+--bin "$bin"} --full-page-writes "$full_page_writes" \
            "$recorded/$number"
        dirs+=("$recorded/$number")
    done
done
"${seeds[@]}" "${dirs[@]}"
