#!/usr/bin/env bash
# Which code between branches the simulation reaches: SEEDS worlds (10,000), from FIRST_SEED on, each once. Needs a
# nightly toolchain, as fuzzing does, and c++filt; builds everything once more, with counters (12 minutes). Writes
# docs/sim-coverage.md.
set -euo pipefail
cd "$(dirname "$0")/.."
seeds=${SEEDS:-10000} first=${FIRST_SEED:-1} python=${PYTHON:-python3}
target=$PWD/target/sim-coverage
profiles=$target/profiles
rustup component add --toolchain nightly llvm-tools
tools=$(rustc +nightly --print sysroot)/lib/rustlib/$(rustc +nightly -vV | sed -n 's/^host: //p')/bin
export RUSTFLAGS="-C instrument-coverage -Z coverage-options=branch" CARGO_TARGET_DIR=$target
# Counters of build scripts and macros would lie about.
LLVM_PROFILE_FILE=/dev/null cargo +nightly build --locked --workspace --profile tested --bin sim
rm -rf "$profiles"
mkdir -p "$profiles"
# All processes add to the same few files.
LLVM_PROFILE_FILE=$profiles/%4m.profraw "$target/tested/sim" "$first" --count "$seeds" | tee "$target/sim.txt"
# llvm-cov, which could tell lines, crashes on this program.
"$tools/llvm-profdata" merge "$profiles"/*.profraw -o "$target/sim.profdata"
"$tools/llvm-profdata" show --all-functions --counts "$target/sim.profdata" >"$target/functions.txt"
"$python" scripts/sim_coverage.py "$target/functions.txt" "$target/sim.txt" docs/sim-coverage.md
