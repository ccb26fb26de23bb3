"""What pagectl requests from a running server: for which timeline, as of when, and its warnings."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fixtures.followed import follow_new
from fixtures.pagectl import Pagectl
from fixtures.pageserver import POSTGRES_IS_GONE, connection_string, new_id

FOLLOW_WARNS = r"WARN.*synchronous_standby_names"


def remote(binary, port: int, work_dir) -> Pagectl:
    """pagectl for a running server; its directory is unused."""

    class Remote(Pagectl):
        def command(self, *args):
            return [str(self.binary), "--server", f"http://127.0.0.1:{port}", *map(str, args)]

    return Remote(binary, work_dir)


@pytest.fixture(scope="module")
def followed(make_postgres, make_pageserver):
    followed = follow_new(make_postgres, make_pageserver, "operated")
    followed.pageserver.allow(POSTGRES_IS_GONE)
    return followed


@pytest.fixture
def ctl(followed, pagectl_binary, work_dir) -> Pagectl:
    return remote(pagectl_binary, followed.pageserver.http_port, work_dir)


def test_a_branch_is_named_where_there_are_several(followed, ctl, pagectl_binary):
    main = followed.timeline
    shown = ctl.ok("--json", "timeline", "info")
    assert json.loads(shown.stdout)["timeline_id"] == main.id, "the only one needs no name"
    # A tenant without timelines does not matter, and a tenant with one timeline needs no --timeline.
    ctl.ok("tenant", "create")
    assert json.loads(ctl.ok("--json", "--tenant", main.tenant, "timeline", "info").stdout)["timeline_id"] == main.id
    time.sleep(1.1)
    followed.postgres.sql("CREATE TABLE later ()")
    followed.catch_up()
    dev = json.loads(ctl.ok("--json", "branch", "create", "dev").stdout)
    commands = (["lsn-at", "1 seconds ago"], ["timeline", "branch"], ["checkpoint"], ["layers"], ["timeline", "info"])
    for command in commands:
        # It does not guess which one, but says how to name it.
        ctl.refuse(*command, names=["2 timelines", "--timeline", "dev", main.id])
        ctl.ok("--timeline", "dev", *command)
        ctl.ok("--timeline", main.id, *command)
        ctl.ok("--timeline", "dev", "--tenant", main.tenant, *command)
        ctl.refuse("--timeline", "test", *command, names=["no timeline test", "dev"])
        ctl.refuse("--timeline", "dev", "--tenant", new_id(), *command, names=["not found|no timeline"])
        ctl_branches = json.loads(ctl.ok("--json", "branch", "list").stdout)["branches"]
        for made in ctl_branches:
            if made["timeline_id"] not in (main.id, dev["timeline_id"]):
                ctl.ok("--timeline", made["timeline_id"], "timeline", "delete")
    of_dev = json.loads(ctl.ok("--json", "--timeline", "dev", "timeline", "info").stdout)
    assert of_dev["timeline_id"] == dev["timeline_id"] and of_dev["name"] == "dev"
    ctl.refuse("--timeline", "test", "follow", "host=/nonexistent user=x", names=["32 hexadecimal digits"])
    # The same on the directory.
    followed.pageserver.stop()
    store = Pagectl(pagectl_binary, followed.pageserver.workdir)
    store.refuse("status", names=["2 timelines", "dev"])
    assert dev["timeline_id"] in store.ok("--json", "--timeline", "dev", "status").stdout
    assert main.id in store.ok("--json", "--timeline", main.id, "status").stdout
    followed.pageserver.start()
    ctl = remote(pagectl_binary, followed.pageserver.http_port, followed.pageserver.workdir)
    ctl.ok("--timeline", "dev", "timeline", "delete")
    ctl.ok("timeline", "info")


class Recorder(BaseHTTPRequestHandler):
    """A server that has one timeline, and records its requests."""

    asked: list[str] = []

    def answer(self, body):
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        timeline = {"tenant_id": "a" * 32, "timeline_id": "b" * 32, "ancestor_timeline_id": None, "name": None}
        if self.path == "/v1/tenant":
            self.answer([{"id": "a" * 32}])
        elif self.path.endswith("/timeline"):
            self.answer([{**timeline, "last_record_lsn": "0/2000"}])
        else:
            self.asked.append(self.path)
            self.answer({"lsn": "0/1000", "kind": "present", "relations": [], "common_lsn": "0/1000"})

    def do_POST(self):
        self.asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.answer({"timeline_id": "c" * 32, "ancestor_timeline_id": "b" * 32, "ancestor_lsn": "0/1000"})

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("command", [
    ["branch", "create", "dev", "--at", "4 seconds ago"],
    ["branch", "diff", "b" * 32, "--other-at", "4 seconds ago"],
    ["timeline", "branch", "--at-time", "4 seconds ago"],
    ["lsn-at", "4 seconds ago"],
], ids=lambda command: "-".join(command[:2]).replace(" ", "_"))
def test_how_long_ago_is_left_to_the_servers_clock(pagectl_binary, work_dir, command):
    server = HTTPServer(("127.0.0.1", 0), Recorder)
    Recorder.asked.clear()
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        remote(pagectl_binary, server.server_port, work_dir).ok(*command)
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
    asked = " ".join(Recorder.asked)
    assert "4 seconds ago" in asked or "4%20seconds%20ago" in asked, asked


def test_how_long_ago_is_found_by_the_server(followed, ctl):
    pg = followed.postgres
    before = pg.sql("SELECT pg_current_wal_insert_lsn()")
    time.sleep(2)
    pg.sql("CREATE TABLE recent ()")
    followed.catch_up()
    found = json.loads(ctl.ok("--json", "lsn-at", "1s ago").stdout)
    last = json.loads(ctl.ok("--json", "timeline", "info").stdout)["last_record_lsn"]
    assert found["kind"] in ("present", "future") and before <= found["lsn"] <= last, (before, found, last)
    ctl.refuse("lsn-at", "12 parsecs ago", names=["12 parsecs ago", "10 minutes ago"])
    ctl.refuse("branch", "create", "old", "--at", "100 years ago", names=["before 1970"])


@pytest.mark.parametrize("level, told", [
    ("remote_write", "not of both together"),
    ("remote_apply", "not of both together"),
    ("on", "waits until its WAL is in the bucket"),
    ("local", None),
])
def test_following_warns_of_what_synchronous_commits_are_worth(
    make_postgres, make_pageserver, pagectl_binary, work_dir, level, told
):
    pg = make_postgres(f"synchronous-{level}", max_replication_slots=10).start()
    pg.configure(synchronous_standby_names="'FIRST 1 (other, pageserver)'", synchronous_commit=level)
    pg.sql("SELECT pg_reload_conf()")
    server = make_pageserver(f"synchronous-{level}").start().allow(POSTGRES_IS_GONE)
    if told:
        server.allow(FOLLOW_WARNS)
    ctl = remote(pagectl_binary, server.http_port, work_dir)
    done = ctl.ok("--json", "follow", connection_string(pg))
    warnings = json.loads(done.stdout)["status"]["warnings"]
    if told:
        assert told in done.stderr and [told in one for one in warnings] == [True], done.text
        assert f"synchronous_commit = {level}" in done.stderr
        assert told in server.log_text()
    else:
        assert not warnings and "synchronous" not in done.stderr, done.text
    server.stop()
    pg.stop(mode="immediate")
