"""The first command in README succeeds and leaves nothing behind."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.programs import REPOSITORY


@pytest.mark.parametrize("store", ["directory", "weed"])
def test_the_demo_verifies_every_page_and_cleans_up(store, pagectl_binary, pageserver_binary, work_dir, module_dir):
    sockets = set(os.listdir("/tmp"))
    picture = module_dir / "layers.svg"
    env = {
        **os.environ, "PAGECTL": str(pagectl_binary), "PAGESERVER": str(pageserver_binary), "TMPDIR": str(work_dir),
        "DEMO_PICTURE": str(picture), "DEMO_STORE": store, "VENV": str(Path(sys.executable).parent.parent),
    }
    done = subprocess.run(["scripts/demo.sh"], cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every page rebuilt from WAL is what Postgres itself has" in done.stdout.splitlines()[-1]
    assert any("different" in line for line in done.stdout.splitlines()), done.stdout
    assert "left of store: pageserver.toml" in done.stdout.splitlines(), done.stdout
    # The accounts at the earlier moment, as the server had them then and as the compute of that moment has them.
    found = [line for line in done.stdout.splitlines() if " accounts with " in line]
    assert ["200000 accounts" in line for line in found] == [True, False, True, True], done.stdout
    # The last one is what the printed connection string leads to, after the loss of the disk.
    assert found[-1] == f"through the gateway: {found[2].removeprefix('there: ')}", done.stdout
    assert re.search(r"^psql 'host=127.0.0.1 port=\d+ .*options=-cbranch=main@20\d\d-", done.stdout, re.M), done.stdout
    assert re.search(r"^the console, .*: http://127.0.0.1:\d+/$", done.stdout, re.M), done.stdout
    assert "press Enter" not in done.stdout, "nobody is asked where nobody is"
    assert "now: 0 accounts with" in done.stdout and "pagectl compute start rescue" in done.stdout
    assert str(picture) in done.stdout and "<svg" in picture.read_text()
    assert os.listdir(work_dir) == [], "the demo leaves files"
    assert not [name for name in set(os.listdir("/tmp")) - sockets if name.startswith("pgdemo.")]


@pytest.mark.slow
def test_the_load_goes_on_when_the_owner_is_killed(pagectl_binary, pageserver_binary, work_dir):
    sockets = set(os.listdir("/tmp"))
    env = {**os.environ, "PAGECTL": str(pagectl_binary), "PAGESERVER": str(pageserver_binary), "TMPDIR": str(work_dir),
           "FLEET_SECONDS": "16"}
    command = ["scripts/demo_fleet.sh"]
    done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No client saw an error" in done.stdout.splitlines()[-1]
    assert "number of failed transactions: 0" in done.stdout, done.stdout
    assert os.listdir(work_dir) == [], "the demo leaves files"
    assert not [name for name in set(os.listdir("/tmp")) - sockets if name.startswith("pgfleet.")]


def test_a_demo_that_cannot_start_says_what_to_run(work_dir):
    env = {**os.environ, "PAGECTL": str(work_dir / "absent")}
    done = subprocess.run(["scripts/demo.sh"], cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "make build" in done.stderr
