"""A missing prerequisite is a failure; with ALLOW_SKIP=1 it is a skip that is listed with its reason."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).resolve().parents[1]

SKIPPING = """
import pytest

@pytest.fixture
def lacking():
    pytest.skip("no such server")

def test_by_fixture(lacking):
    pass

def test_inside():
    pytest.skip("no such right")

@pytest.mark.skip(reason="marked so")
def test_by_mark():
    pass

@pytest.mark.skipif(True, reason="some condition")
def test_by_condition():
    pass

def test_by_import():
    pytest.importorskip("no_such_module")

@pytest.mark.xfail(strict=True)
def test_that_is_known_to_fail():
    assert False

def test_that_runs():
    pass
"""
MODULE = """
import pytest
pytest.importorskip("no_such_module")
"""
REASONS = {
    "by_fixture": "no such server", "inside": "no such right", "by_mark": "marked so", "by_condition": "some condition",
    "by_import": "could not import 'no_such_module'",
}
WORKERS = pytest.mark.parametrize("workers", [0, 2])


def run(work_dir: Path, text: str, workers: int, allow: str | None) -> tuple[int, str, str]:
    """pytest on one file: its exit code, its output, and what was listed."""
    (work_dir / "test_it.py").write_text(text)
    (work_dir / "pytest.ini").write_text("[pytest]\n")
    listed = work_dir / "listed" / "skips"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_") and name != "ALLOW_SKIP"}
    # Loading unneeded plugins takes seconds.
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    env |= {"PYTHONPATH": str(RUNNER), "SKIPPED_TESTS": str(listed)} | ({"ALLOW_SKIP": allow} if allow else {})
    plugins = ["-p", "xdist", "-p", "fixtures.skips", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, "-n", str(workers), "."]
    done = subprocess.run(command, cwd=work_dir, env=env, capture_output=True, text=True, timeout=120)
    print(done.stdout, done.stderr)
    return done.returncode, done.stdout, listed.read_text() if listed.exists() else ""


@pytest.mark.parametrize(("workers", "allow"), [(0, None), (0, "0"), (2, None)])
def test_a_skip_is_a_failure(work_dir, workers, allow):
    code, said, listed = run(work_dir, SKIPPING, workers, allow)
    assert code == 1 and not listed
    # Some report it before they begin, which counts as an error.
    assert not re.search(r"\d skipped", said) and "1 passed" in said and "1 xfailed" in said
    for name, reason in REASONS.items():
        assert re.search(f"test_{name} _.*(\n.*)?\n(E  +)?did not run: {reason}", said), name
    assert "ALLOW_SKIP=1" in said and "make setup" in said


@WORKERS
def test_an_allowed_skip_is_listed(work_dir, workers):
    code, said, listed = run(work_dir, SKIPPING, workers, "1")
    assert code == 0 and "5 skipped" in said and "1 passed" in said and "1 xfailed" in said
    lines = sorted(listed.splitlines())
    assert len(lines) == len(REASONS), lines
    for name, reason in REASONS.items():
        assert sum(line.startswith(f"test_it.py::test_{name}: {reason}") for line in lines) == 1, (name, lines)


@WORKERS
def test_a_module_that_is_skipped_is_no_exception(work_dir, workers):
    code, said, listed = run(work_dir, MODULE, workers, None)
    assert code != 0 and "no_such_module" in said and "ALLOW_SKIP=1" in said and not listed
    code, said, listed = run(work_dir, MODULE, workers, "1")
    assert "error" not in said and listed.startswith("test_it.py: could not import 'no_such_module'")
    assert len(listed.splitlines()) == 1
