"""A branch is detached from its ancestor while it is written, and the ancestor goes."""

import json
import threading

from fixtures import lsn as lsns
from fixtures.computes import amcheck, stay_where_it_is
from fixtures.copies import checksums
from fixtures.followed import follow_new, rel_of
from fixtures.pagectl import Pagectl
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.pagestream import Refused, get_page
from fixtures.stored import QUICK, wipe
from fixtures.wait import wait_until

# Layers small enough that what is inherited becomes many of them; nothing is removed but on request.
SMALL = {
    "checkpoint_distance": 1024 * 1024, "compaction_threshold": 2, "compaction_target_size": 512 * 1024,
    "gc_period": "1000days", "gc_pause_after_attach": "1ms",
}


class Remote(Pagectl):
    """`pagectl --server URL --json`."""

    def __init__(self, binary, server):
        super().__init__(binary, server.workdir)
        self.server = server

    def command(self, *args) -> list[str]:
        return [str(self.binary), "--server", f"http://127.0.0.1:{self.server.http_port}", "--json", *map(str, args)]

    def json(self, *args) -> dict:
        return json.loads(self.ok(*args).stdout)


class Commits(threading.Thread):
    """Commits rows one after the other, and counts those that were acknowledged."""

    def __init__(self, pg):
        super().__init__()
        self.pg, self.done, self.ended = pg, 0, threading.Event()

    def run(self):
        while not self.ended.is_set():
            self.pg.sql(f"INSERT INTO commits SELECT {self.done + 1}")
            self.done += 1

    def more(self, count=5):
        """Waits for so many more."""
        target = self.done + count
        wait_until(lambda: self.done >= target or not self.is_alive(), 60, what="commits")
        assert self.is_alive(), "commits fail"

    def end(self) -> int:
        self.ended.set()
        self.join()
        return self.done


def refused_below(branch, rel, lsn):
    """Before its beginning nothing is read, and the reason is given."""
    earlier = lsns.parse(lsn) - 8
    with branch.stream() as stream:
        try:
            stream.ask(get_page(rel, 0, earlier, earlier))
        except Refused as refused:
            assert "detached" in str(refused) and lsn in str(refused), refused
        else:
            raise AssertionError(f"{earlier} is read")
    body = {"new_timeline_id": "cd" * 16, "ancestor_timeline_id": branch.id, "ancestor_start_lsn": lsns.show(earlier)}
    branch.server.http.refuse("POST", f"/v1/tenant/{branch.tenant}/timeline", body, status=406, names=["detached"])


def test_a_branch_that_is_written_goes_its_own_way(
    make_postgres, make_pageserver, make_store, make_computes, pagectl_binary
):
    store = make_store("directory")
    settings = {**QUICK, **store.settings("detached"), **SMALL}
    followed = follow_new(make_postgres, make_pageserver, "detached", scale=3, settings=settings)
    server, main = followed.pageserver.allow(POSTGRES_IS_GONE), followed.timeline
    stay_where_it_is(server)
    computes, remote = make_computes(server), Remote(pagectl_binary, server)
    followed.postgres.bench(2000)
    accounts = rel_of(followed.postgres, "pgbench_accounts")
    followed.catch_up()
    writer = computes.start("writer", "--branch", "dev", "--copy")
    writer.sql("CREATE TABLE commits (n int)")
    branch = writer.timeline
    point = branch.info()["ancestor_lsn"]
    # The ancestor goes on, too.
    followed.postgres.bench(1000)
    server.http.refuse("DELETE", main.path, status=412, names=[branch.id])
    server.http.refuse("PUT", f"{main.path}/detach_ancestor", status=412, names=["not a branch"])
    commits = Commits(writer)
    commits.start()
    commits.more()
    said = remote.json("timeline", "detach", "dev")
    assert (said["ancestor_timeline_id"], said["detached_lsn"]) == (None, point), said
    commits.more()
    # Again, it changes nothing.
    layers = branch.info()["layer_count"]
    answer = server.http.put(f"{branch.path}/detach_ancestor?detach_behavior=multi-level-and-no-reparent")
    assert answer == {"reparented_timelines": []} and branch.info()["layer_count"] <= layers + 5
    assert branch.info()["walreceiver"]["state"] == "streaming"
    main.delete()
    assert not any(main.id in name and "-v2-" in name for name in store.objects("detached"))
    commits.more()
    refused_below(branch, accounts, point)
    writer.bench(1000)
    count = commits.end()
    assert writer.sql("SELECT count(*) FROM commits") == str(count)
    written = checksums(writer)
    end = writer.stop()
    print(followed.assert_files_equal(end, branch, writer.data))
    server.http.put(f"{branch.path}/checkpoint")
    wait_until(lambda: branch.info()["remote_consistent_lsn"] == branch.info()["last_record_lsn"], 60,
               what="all of it in the bucket")
    # From the bucket alone.
    server.stop()
    wipe(server)
    server.start()
    timelines = server.http.get(f"/v1/tenant/{branch.tenant}/timeline")
    assert [timeline["timeline_id"] for timeline in timelines] == [branch.id], timelines
    print(followed.assert_files_equal(end, branch, writer.data))
    refused_below(branch, accounts, point)
    heir = computes.start("heir", "--branch", "dev", "--copy")
    assert checksums(heir) == written and heir.sql("SELECT count(*) FROM commits") == str(count)
    amcheck(heir)
    heir.bench(500)
    end = heir.stop()
    followed.assert_files_equal(end, branch, heir.data)
    server.http.put(f"{branch.path}/compact")
    followed.assert_files_equal(end, branch, heir.data)


def test_a_damaged_ancestor_keeps_the_branch(make_postgres, make_pageserver, pagectl_binary):
    followed = follow_new(make_postgres, make_pageserver, "damaged-ancestor", settings=SMALL)
    server, main = followed.pageserver.allow(POSTGRES_IS_GONE, "WARN.*", "ERROR.*"), followed.timeline
    followed.postgres.bench(500)
    lsn = followed.stop_postgres()
    main.wait_for_lsn(lsn)
    server.http.put(f"{main.path}/checkpoint")
    branch = main.branch(lsn)
    server.stop()
    largest = max(main.dir().glob("*-v2-*"), key=lambda path: path.stat().st_size)
    intact = largest.read_bytes()
    damaged = bytearray(intact)
    # Blocks of values, whatever else the file has.
    for at in range(len(intact) // 8, len(intact) // 2, 4096):
        damaged[at] ^= 0x40
    # Here, and in the bucket, which is a directory of the server.
    copies = [path for path in server.workdir.rglob(largest.name) if path.is_file()]
    assert len(copies) == 2, copies
    for copy in copies:
        copy.write_bytes(damaged)
    server.start()
    remote = Remote(pagectl_binary, server)
    remote.refuse("timeline", "detach", branch.id, names=[largest.name, "checksum"])
    assert branch.info()["ancestor_timeline_id"] == main.id
    # With the file as it was, it goes on where it stopped.
    server.stop()
    for copy in copies:
        copy.write_bytes(intact)
    server.start()
    remote = Remote(pagectl_binary, server)
    assert remote.json("timeline", "detach", branch.id)["detached_lsn"] == lsn
    main.delete()
    followed.assert_files_equal(lsn, branch)
    server.restart()
    followed.assert_files_equal(lsn, branch)
