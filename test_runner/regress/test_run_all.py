"""`make test`: a failing check hides no other, and the end lists the failures and the skips."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAKE = """#!/bin/sh
echo "target $2"
case "$2" in
    bad*) exit 2 ;;
    slow*) sleep 1 ;;
    lacks*) echo "$2: it lacks something" >>"$SKIPPED_TESTS" ;;
esac
"""


def run_all(work_dir, *targets: str) -> tuple[int, str]:
    fake = work_dir / "make"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    command = [str(ROOT / "scripts/run_all.sh"), *targets]
    done = subprocess.run(command, env={**os.environ, "MAKE": str(fake)}, capture_output=True, text=True, timeout=60)
    print(done.stdout, done.stderr)
    return done.returncode, done.stdout


def test_all_run_and_all_that_fail_are_named(work_dir):
    code, said = run_all(work_dir, "good", "bad", "slow+bad2+good2", "last")
    assert code == 1 and said.rstrip().endswith("FAILED: bad bad2")
    for target in ("good", "bad", "slow", "bad2", "good2", "last"):
        assert f"target {target}\n" in said, target
    assert re.search(r"^bad +FAILED after \d+ s$", said, re.M) and re.search(r"^good2 +passed after \d+ s$", said, re.M)
    code, said = run_all(work_dir, "good", "slow+good2")
    assert code == 0 and said.rstrip().endswith("all passed")


def test_what_was_skipped_is_listed(work_dir, monkeypatch):
    # Keeps these skips out of the list of the enclosing run.
    outer = work_dir / "outer"
    monkeypatch.setenv("SKIPPED_TESTS", str(outer))
    code, said = run_all(work_dir, "lacks2+good", "lacks1", "bad")
    assert code == 1
    assert "\nskips:\n  lacks1: it lacks something\n  lacks2: it lacks something\n" in said
    assert "skips: none" not in said and not outer.exists()
    code, said = run_all(work_dir, "good")
    assert code == 0 and "\nskips: none\nall passed" in said
