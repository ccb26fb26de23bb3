#!/usr/bin/env bash
# Runs targets of the Makefile one after the other, all of them whatever fails: scripts/run_all.sh TARGET...
# TARGET+TARGET are run at the same time: what the first one says is shown as it says it, of the others when they have
# ended. Says at the end what was skipped and which failed, and exits with 0 only if none did.
#   MAKE        how make is called (make)
#   ALLOW_SKIP  with 1, tests are skipped that lack something; they fail without
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT
# Where tests and checks note what they have not done, and why.
export SKIPPED_TESTS=$said/.skipped
trap 'kill $(jobs -p) 2>/dev/null; exit 130' INT TERM

results=()
failed=()

run() {
    ${MAKE:-make} --no-print-directory "$1"
}

# A target that has ended: its name, when it began, and how it ended.
note() {
    local result=passed
    [ "$3" = 0 ] || { result=FAILED; failed+=("$1"); }
    results+=("$(printf '%-14s %s after %d s' "$1" "$result" $((SECONDS - $2)))")
}

run_together() {
    local began=$SECONDS first=$1 target pids=()
    shift
    for target in "$@"; do
        say "make $target, beside $first: what it says follows"
        run "$target" >"$said/$target" 2>&1 &
        pids+=($!)
    done
    say "make $first"
    run "$first"
    note "$first" "$began" $?
    for target in "$@"; do
        wait "${pids[0]}"
        note "$target" "$began" $?
        pids=("${pids[@]:1}")
        say "make $target"
        cat "$said/$target"
    done
}

for group in "$@"; do
    IFS=+ read -r -a targets <<<"$group"
    run_together "${targets[@]}"
done

say "summary"
printf '%s\n' "${results[@]}"
if [ -s "$SKIPPED_TESTS" ]; then
    echo "skips:"
    sort "$SKIPPED_TESTS" | sed 's/^/  /'
else
    echo "skips: none"
fi
if [ ${#failed[@]} -gt 0 ]; then
    echo "FAILED: ${failed[*]}"
    exit 1
fi
echo "all passed"
