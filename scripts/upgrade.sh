#!/usr/bin/env bash
# Builds the programs of an earlier commit as they are built for tests, and has a fleet go from them to those of this
# one, or a single server where the commit had no fleets yet: scripts/upgrade.sh COMMIT PYTHON. What was built stays in
# target/upgrade, some GB.
set -euo pipefail
cd "$(dirname "$0")/.."
base=$(git rev-parse --verify "$1^{commit}")
python=$2
target=$PWD/target/upgrade
sources=$target/sources
mkdir -p "$target"
if [ "$(git -C "$sources" rev-parse HEAD 2>/dev/null)" != "$base" ]; then
    git worktree remove --force "$sources" 2>/dev/null || rm -rf "$sources"
    git worktree prune
    git worktree add --detach "$sources" "$base"
fi
(cd "$sources" && CARGO_TARGET_DIR=$target/built cargo build --locked --profile tested \
    --bin pageserver --bin pagectl --bin compute-fs)
tests=from_earlier
grep -q '`durability`' "$sources/docs/configuration.md" || tests=from_before_journals
UPGRADE_FROM=$target/built/tested TEST_PROFILE=tested "$python" -m pytest test_runner/upgrade/$tests.py -s
