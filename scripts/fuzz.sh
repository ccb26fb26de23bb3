#!/usr/bin/env bash
# Runs fuzz targets: scripts/fuzz.sh [target...], all of them if none is named. Exits 1 if any found something.
#   FUZZ_SECONDS  how long each runs (60)
#   FUZZ_JOBS     how many run at a time (one less than there are cores)
#   FUZZ_HOME     where corpora, findings and logs are kept (target/fuzz)
# Needs a nightly toolchain and cargo-fuzz. Seeds that `make fuzz-seeds` left in FUZZ_HOME/seeds are used,
# besides the few in libs/fuzzed/tests/seeds.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60}
cores=$(nproc)
jobs=${FUZZ_JOBS:-$((cores > 1 ? cores - 1 : 1))}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
home=$(realpath -m "${FUZZ_HOME:-$target/fuzz}")
crate=libs/fuzzed/fuzz
# The few that the tests run with.
seeds=$(realpath libs/fuzzed/tests/seeds)

wanted=" $* "
targets=()
for file in "$crate"/fuzz_targets/*.rs; do
    name=$(basename "$file" .rs)
    if [ $# -eq 0 ] || [[ $wanted == *" $name "* ]]; then
        cargo +nightly fuzz build --fuzz-dir "$crate" --target-dir "$home/target" -O "$name"
        targets+=("$name")
    fi
done

# One allocation above 1 MiB is a finding, and so is an input that takes a minute.
run_one() {
    local name=$1 home=$2 seconds=$3 seeds=$4
    mkdir -p "$home/corpus/$name" "$home/found/$name" "$home/log" "$home/seeds/$name"
    if "$home"/target/*/release/"$name" -max_total_time="$seconds" -max_len=20000 -malloc_limit_mb=1 -timeout=60 \
        -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$home/found/$name/" \
        "$home/corpus/$name" "$home/seeds/$name" "$seeds/$name" >"$home/log/$name.log" 2>&1; then
        runs=$(grep -o 'number_of_executed_units: .*' "$home/log/$name.log" | cut -d' ' -f2)
        echo "$name: nothing found in $runs runs"
    else
        echo "$name: see $home/log/$name.log and $home/found/$name"
        return 1
    fi
}
export -f run_one
printf '%s\n' "${targets[@]}" |
    xargs -P "$jobs" -I{} nice -n 19 bash -c 'run_one "$@"' run_one {} "$home" "$seconds" "$seeds"
