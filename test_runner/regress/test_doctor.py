"""`pagectl doctor`, `completion` and `man`: what helps an operator on a new machine."""

import json
import subprocess

import pytest

from fixtures.followed import follow_new
from fixtures.pagectl import Pagectl
from fixtures.pageserver import POSTGRES_IS_GONE

OF_THE_MACHINE = {"kernel", "io_uring", "locked memory", "open files", "clock", "FUSE", "Postgres"}
NOBODY = "http://127.0.0.1:1"
S3_THAT_IS_GONE = f"""
remote_storage = "s3://bucket/store"
remote_storage_endpoint = "{NOBODY}"
remote_storage_allow_http = true
remote_storage_retry_deadline = "1s"
"""


@pytest.fixture
def ctl(pagectl_binary, work_dir):
    (work_dir / "store").mkdir()
    return Pagectl(pagectl_binary, work_dir / "store")


def findings(done) -> dict[str, dict]:
    return {finding["check"]: finding for finding in json.loads(done.stdout)["checks"]}


def looked_at(ctl, *args) -> dict[str, dict]:
    return findings(ctl.ok("--json", "--server", NOBODY, "doctor", *args))


def settings(ctl, text: str):
    (ctl.workdir / "pageserver.toml").write_text(text)


def test_a_server_with_all_that_it_needs(make_postgres, make_pageserver, make_store, pagectl_binary):
    store = make_store("directory")
    followed = follow_new(make_postgres, make_pageserver, "healthy", settings=store.settings("healthy"))
    server = followed.pageserver.allow(POSTGRES_IS_GONE)
    followed.catch_up()
    ctl = Pagectl(pagectl_binary, server.workdir)
    at = ["--server", f"http://127.0.0.1:{server.http_port}"]
    found = findings(ctl.ok("--json", *at, "doctor"))
    assert OF_THE_MACHINE < set(found) and {"working directory", "disk", "settings"} < set(found)
    assert found["pageserver"]["state"] == "good" and "1 timelines" in found["pageserver"]["found"]
    # A machine that has much to do may be slow to list it, which is a warning.
    assert found["bucket"]["state"] != "failed" and "1 tenants" in found["bucket"]["found"], found["bucket"]
    assert found["origin"]["state"] == "good" and "is streaming" in found["origin"]["found"], found["origin"]
    assert "15 (" in found["Postgres"]["found"]
    said = ctl.ok(*at, "doctor")
    assert "ok       disk" in said.stdout and said.summary.endswith("0 failed")
    with store.away():
        away = findings(ctl.ok("--json", *at, "doctor"))["bucket"]
        assert away["state"] == "warning" and "not there" in away["found"] and "mount" in away["advice"], away


def test_what_is_not_there_is_told_with_what_to_do(ctl):
    found = looked_at(ctl)
    assert found["pageserver"]["state"] == "warning" and "--server" in found["pageserver"]["advice"]
    assert found["settings"]["state"] == "good" and "pageserver init" in found["settings"]["found"]
    assert all(finding["advice"] for finding in found.values() if finding["state"] != "good")
    settings(ctl, 'remote_storage = "none"\n')
    assert "lost with this disk" in looked_at(ctl)["bucket"]["advice"]
    settings(ctl, S3_THAT_IS_GONE)
    gone = ctl.refuse("--server", NOBODY, "doctor", names=["FAILED +bucket", "1 checks failed"])
    assert "->" in gone.stdout, "it says what to do"
    settings(ctl, "page_cash_size = 7\n")
    ctl.refuse("--server", NOBODY, "doctor", names=["FAILED +settings", "page_cash_size"])
    assert list(ctl.workdir.iterdir()) == [ctl.workdir / "pageserver.toml"], "it leaves nothing"


def test_a_directory_that_cannot_be_written_to(ctl):
    """Nor can root write to /proc."""
    ctl.workdir = "/proc/self"
    ctl.refuse("--server", NOBODY, "doctor", names=["FAILED +working directory", "--workdir"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_name_the_commands(ctl, shell):
    script = ctl.ok("completion", shell).stdout
    assert "verify-redo" in script and "branch" in script
    if shell == "bash":
        asked = f"{script}\nCOMP_WORDS=(pagectl com) COMP_CWORD=1; _pagectl pagectl com pagectl; echo ${{COMPREPLY[@]}}"
        said = subprocess.run(["bash"], input=asked, capture_output=True, text=True, check=True).stdout
        assert set(said.split()) == {"compute", "compact", "completion"}, said


def test_each_command_has_a_man_page(ctl):
    ctl.refuse("man", ctl.workdir / "missing", names=["missing"])
    ctl.ok("man", ctl.workdir)
    pages = {path.name for path in ctl.workdir.iterdir()}
    assert {"pagectl.1", "pagectl-doctor.1", "pagectl-branch-create.1", "pagectl-compute-start.1"} <= pages, pages
    text = (ctl.workdir / "pagectl-compute-start.1").read_text()
    assert ".TH" in text and "wait" in text
