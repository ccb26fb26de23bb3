#!/usr/bin/env bash
# Writes seeds for the fuzz targets of decoder and redo: real records, and the pages that they change. Records WAL of a
# Postgres 15, and of other servers named as arguments (directories with initdb, pg_ctl, postgres).
#   FUZZ_HOME  as in fuzz.sh
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
home=$(realpath -m "${FUZZ_HOME:-$target/fuzz}")
recorded=$(mktemp -d /tmp/fuzz-seeds-XXXXXX)
trap 'rm -rf "$recorded"' EXIT
seeds=(cargo run --quiet --release --manifest-path libs/redo/fuzz/Cargo.toml --target-dir "$target/fuzz-seeds"
    --features seeds --bin seeds -- "$home/seeds")
number=0
for bin in "${@:-/usr/lib/postgresql/15/bin}"; do
    for full_page_writes in off on; do
        number=$((number + 1))
        benches/redo/record_wal.py --bin "$bin" --full-page-writes "$full_page_writes" "$recorded/$number"
        "${seeds[@]}" "$recorded/$number"
        rm -rf "${recorded:?}/$number"
    done
done
