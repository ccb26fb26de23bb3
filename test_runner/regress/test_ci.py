"""Branches for CI: connection strings, branches that begin anew, the plugin for pytest, and the examples' own steps."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import yaml

from fixtures.gateway import PASSWORD, follow_with_password

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN = REPOSITORY / "pytest_branches"
EXAMPLES = REPOSITORY / "docs" / "ci"


@pytest.fixture(scope="module")
def followed(make_postgres, make_pageserver):
    return follow_with_password(make_postgres, make_pageserver, "ci",
                                "CREATE TABLE accounts (id int, balance int)",
                                "INSERT INTO accounts VALUES (1, 10), (2, 20)")


@pytest.fixture
def computes(followed, make_computes):
    return make_computes(followed.pageserver)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The plugin, installed from a wheel into a directory of its own."""
    place = tmp_path_factory.mktemp("plugin")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", place / "wheels", PLUGIN], check=True, timeout=300)
    (wheel,) = (place / "wheels").glob("pytest_branches-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", place / "site", wheel], check=True, timeout=300)
    # Building leaves them beside the sources.
    for left in ("build", "src/pytest_branches.egg-info"):
        subprocess.run(["rm", "-rf", PLUGIN / left], check=True)
    return place / "site"


@pytest.fixture
def surroundings(computes, installed, tmp_path) -> dict:
    """What a job of CI has: pagectl, pytest with the plugin, and a program that migrates the database."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "pagectl").symlink_to(computes.binary)
    executable(programs / "pytest", f'exec {sys.executable} -m pytest -p no:cacheprovider {PLUGIN}/example "$@"')
    executable(tmp_path / "migrate", 'exec psql -Xqc "ALTER TABLE accounts ADD COLUMN new int" "$1"')
    return {**computes.environment(), "PGPASSWORD": PASSWORD, "PYTHONPATH": str(installed),
            "PYTHONDONTWRITEBYTECODE": "1", "PATH": f"{programs}:{os.environ['PATH']}"}


def executable(path: Path, command: str):
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def branch_names(computes) -> set[str | None]:
    return {branch["name"] for branch in json.loads(computes.pagectl("--json", "branch", "list").stdout)["branches"]}


def test_a_url_is_all_that_is_printed(computes, make_gateway, surroundings):
    gateway = make_gateway(computes)
    at = ["--gateway", f"127.0.0.1:{gateway.port}"]
    made = computes.pagectl("branch", "create", "pr-1", "--print-url", *at)
    url = made.stdout.strip()
    assert made.code == 0 and url == computes.pagectl("branch", "url", "pr-1", *at).stdout.strip(), made.text
    with psycopg.connect(url, password=PASSWORD) as connection:
        assert connection.execute("SELECT count(*) FROM accounts").fetchone() == (2,)
    assert computes.pagectl("branch", "create", "pr-1", "--print-url", *at).code == 1, "it exists"


def test_a_branch_begins_anew(followed, computes, make_gateway):
    gateway = make_gateway(computes)
    computes.pagectl("branch", "create", "again")
    early = followed.catch_up()
    gateway.sql("again", "DROP TABLE accounts")
    followed.postgres.sql("CREATE TABLE later ()")
    followed.catch_up()
    done = computes.pagectl("branch", "reset", "again")
    assert done.code == 1 and "the compute again runs on the branch again" in done.stderr, done.text
    with psycopg.connect(gateway.connstr("again")) as connection:
        done = computes.pagectl("branch", "reset", "again", "--force")
        assert done.code == 0 and "begins anew" in done.stdout, done.text
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert gateway.sql("again", "SELECT count(*) FROM accounts, later") == "0"
    done = computes.pagectl("branch", "reset", "again", "--force", "--to", early)
    assert done.code == 0, done.text
    assert gateway.sql("again", "SELECT sum(balance), to_regclass('later') IS NULL FROM accounts") == "30|t"
    done = computes.pagectl("branch", "reset", "again", "--force", "--to", "F/0")
    assert done.code == 1 and "again stays as it is" in done.stderr, done.text
    assert gateway.sql("again", "SELECT sum(balance) FROM accounts") == "30", "nothing has gone"
    root = followed.timeline.info()["name"] or followed.timeline.id
    done = computes.pagectl("branch", "reset", root)
    assert done.code == 1 and "was not made of another branch" in done.stderr, done.text


def test_each_test_has_a_branch_of_its_own(computes, make_gateway, surroundings, tmp_path):
    gateway = make_gateway(computes)
    before = branch_names(computes)
    command = ["pytest", "-v", "--branch-dbname", "postgres"]
    environment = {**surroundings, "PAGECTL_GATEWAY": f"127.0.0.1:{gateway.port}"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout + done.stderr
    assert branch_names(computes) == before and computes.names() == [], "nothing is left behind"
    # A failed test's branch may be kept, and what is wrong with pagectl is said.
    failing = tmp_path / "test_fails.py"
    failing.write_text("def test_fails(branch):\n    assert not branch.name\n")
    kept = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--keep-branches", failing],
                          env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    (left,) = branch_names(computes) - before
    assert kept.returncode == 1 and f"branch {left} is left: postgresql://" in kept.stdout, kept.stdout
    assert computes.pagectl("branch", "delete", left).code == 0
    wrong = subprocess.run([*command, "--branch-from", "nowhere"], env=environment, cwd=tmp_path, capture_output=True,
                           text=True, timeout=300)
    assert wrong.returncode == 1 and "there is no branch nowhere" in wrong.stdout, wrong.stdout


def run_steps(steps: list[str], cwd: Path, environment: dict):
    """Runs the steps of a job, each by a shell of its own, until one fails."""
    known = cwd / "known"
    known.touch()
    for step in steps:
        lines = (line.partition("=") for line in known.read_text().splitlines())
        environment = {**environment, "GITHUB_ENV": str(known), **{name: value for name, _, value in lines}}
        # A process that a step leaves must not keep the pipes open.
        with open(cwd / "step.log", "w+") as log:
            done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", step], env=environment, cwd=cwd, stdout=log,
                                  stderr=subprocess.STDOUT, timeout=300)
            log.seek(0)
            assert done.returncode == 0, f"{step}\n{log.read()}"


def test_the_example_for_github(computes, surroundings, tmp_path):
    workflow = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text())
    jobs = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in workflow["jobs"].items()}
    environment = {**surroundings, "BRANCH": "pr-7"}
    # Opened, pushed to, closed.
    for job in ("test", "test", "delete"):
        run_steps(jobs[job], tmp_path, environment)
        assert ("pr-7" in branch_names(computes)) == (job == "test")
    assert computes.names() == []


def test_the_example_for_gitlab(computes, surroundings, tmp_path):
    pipeline = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text())
    environment = {**surroundings, "BRANCH": "mr-7"}
    test, delete = pipeline["test"], pipeline["delete-branch"]
    for script in (test["script"], test["after_script"], test["script"], test["after_script"], delete["script"]):
        # One shell runs all lines of a script.
        run_steps(["\n".join(script)], tmp_path, environment)
    assert "mr-7" not in branch_names(computes) and computes.names() == []
