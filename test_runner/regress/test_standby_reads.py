"""Reads from a standby: the same pages as the owner has, as of each LSN that this has, whatever the owner does."""

import random
import time

import pytest

from fixtures import lsn as lsns
from fixtures.compare import compare_files
from fixtures.fleet import TAKEOVER
from fixtures.followed import rel_of
from fixtures.libpq import Closed, ServerError
from fixtures.load import load
from fixtures.pageserver import Timeline
from fixtures.pagestream import Refused, get_page
from fixtures.wait import wait_until

OPTIONS = "-c pageserver.standby_reads=on"
ROWS = "CREATE TABLE t AS SELECT g AS i, repeat('x', 300) AS filler FROM generate_series(1, 20000) g"


def fleet_of_two(make_fleet, **settings):
    fleet = make_fleet(settings={"durability": "journal", **settings})
    fleet.make_standby(fleet.servers[1])
    return fleet


def at_standby(fleet) -> Timeline:
    return fleet.timeline(fleet.servers[1], fleet.followed.timeline)


def opened(server) -> int:
    return int(server.http.metrics()["pageserver_standby_reads_opened_total"])


def end_of(pg) -> int:
    return lsns.parse(pg.sql("SELECT pg_current_wal_flush_lsn()"))


def test_a_standby_has_the_same_pages(make_fleet):
    """All of them, as of the end, which only its journal has; without being asked to, it serves nothing."""
    fleet = fleet_of_two(make_fleet, checkpoint_timeout="1h", checkpoint_distance=256 << 20, bucket_tail_interval="1h")
    first, second = fleet.servers
    followed, pg = fleet.followed, fleet.followed.postgres
    timeline = at_standby(fleet)
    with pytest.raises(ServerError, match="not the owner"):
        timeline.stream()
    pg.sql(ROWS)
    before = end_of(pg)
    table = rel_of(pg, "t")
    with timeline.stream(options=OPTIONS) as stream:
        # What is not there yet is waited for.
        old = stream.ask(get_page(table, 100, before, before))
        pg.bench(100)
        pg.sql("UPDATE t SET filler = 'y' WHERE i % 3 = 0")
        now = end_of(pg)
        assert stream.ask(get_page(table, 100, before, before)) == old != stream.ask(get_page(table, 100, now, now))
        assert stream.ask(get_page(table, 100)) != old, "the newest is not the newest"
    lsn = followed.stop_postgres()
    bucket = fleet.standing(second, followed.timeline)["bucket_lsn"]
    assert lsns.parse(bucket) < before, "the journal was not needed"
    with timeline.stream(timeout=120, options=OPTIONS) as stream:
        report = compare_files(stream, pg.data, lsn)
    assert not report.different and report.equal > 1000, str(report)
    assert opened(second) == 1 and opened(first) == 0
    # Nobody else has noticed.
    assert fleet.state(first) == "Active" and fleet.state(second) == "Standby"
    followed.assert_files_equal(lsn)


class Reader:
    """Reads random pages of tables at the owner and at the standby; comes again when it is sent away."""

    def __init__(self, fleet):
        self.fleet, self.pg = fleet, fleet.followed.postgres
        self.random = random.Random(20261129)
        self.stream = None
        self.came, self.equal = 0, 0

    def at_standby(self, request, timeout=20.0):
        begun = time.monotonic()
        while True:
            try:
                if self.stream is None:
                    self.stream = at_standby(self.fleet).stream(options=OPTIONS)
                    self.came += 1
                return self.stream.ask(request)
            except (Closed, ServerError, OSError):
                self.stream = None
                assert time.monotonic() - begun < timeout, "the standby does not answer"

    def compare(self, *tables: str, pages=100):
        end, rels = end_of(self.pg), [rel_of(self.pg, table) for table in tables]
        with self.fleet.followed.timeline.stream() as owner:
            for _ in range(pages):
                request = get_page(self.random.choice(rels), self.random.randrange(30), end, end)
                assert owner.ask(request) == self.at_standby(request), request
                self.equal += 1


def test_the_owner_compacts_and_removes(make_fleet):
    """Layers that were open at the standby are removed: readers come again, and go on with what there is now."""
    fleet = fleet_of_two(make_fleet, checkpoint_distance=1 << 20, compaction_threshold=2)
    first, second = fleet.servers
    pg, timeline = fleet.followed.postgres, fleet.followed.timeline
    reader = Reader(fleet)
    with load(pg):
        for _ in range(6):
            reader.compare("pgbench_accounts", "pgbench_tellers", "pgbench_branches", "pgbench_history")
            first.http.put(f"{timeline.path}/checkpoint")
            first.http.put(f"{timeline.path}/compact")
            wait_until(lambda: lsns.parse(timeline.info()["remote_consistent_lsn"]) > 0, 20, what="an upload")
    print(f"{reader.equal} pages are equal, {opened(second)} times opened, {reader.came} connections")
    assert reader.equal == 600 and opened(second) >= 1
    # A branch that is made later is read as well, and one that was deleted is not.
    branch = timeline.branch()
    copy = Timeline(second, branch.tenant, branch.id)
    rel, end = rel_of(pg, "pgbench_accounts"), lsns.parse(branch.info()["last_record_lsn"])
    with branch.stream() as owner:
        page = owner.ask(get_page(rel, 1, end, end))

    def read():
        try:
            with copy.stream(options=OPTIONS) as stream:
                return stream.ask(get_page(rel, 1, end, end))
        except (ServerError, Refused, Closed):
            return None

    assert wait_until(read, 20, what="the branch at the standby") == page
    first.http.call("DELETE", branch.path)
    wait_until(lambda: read() is None, 20, what="the branch to be gone")


def test_reads_go_on_while_nobody_owns_the_tenant(make_fleet, make_computes):
    """A compute that may read from a standby waits for no takeover; after that the standby is the owner."""
    fleet = fleet_of_two(make_fleet)
    first, second = fleet.servers
    computes = make_computes(first)
    computes.servers = fleet.servers
    compute = computes.start("dev", "--branch", "dev")
    owner, standby = computes.environment()["PAGECTL_PAGE_SERVICE"].split(",")
    computes.ok("set", "dev", "--page-service", f"{standby} options='{OPTIONS}',{owner}")
    # Its file system looks twice a second.
    time.sleep(1.5)
    assert compute.sql("SELECT count(bid) FROM pgbench_tellers") == "10"
    assert opened(second) == 1, "the owner was read"
    first.kill()
    begun = time.monotonic()
    assert compute.sql("SELECT count(filler) FROM pgbench_accounts") == "100000"
    took = time.monotonic() - begun
    print(f"100,000 rows {took:.2f} s after the owner was killed, takeover_after is {TAKEOVER} s")
    assert fleet.state(second) == "Standby" or took < TAKEOVER, "they waited for the takeover"
    fleet.wait_for_owner(second)
    assert compute.sql("SELECT count(abalance) FROM pgbench_accounts WHERE aid % 7 = 1") != "0"
    compute.stop()
