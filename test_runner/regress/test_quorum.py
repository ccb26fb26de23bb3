"""A standby with a journal receives WAL itself, and a commit that waits for two servers survives the loss of one of
them with its disk, together with the server that wrote it."""

import contextlib
import os
import shutil
import signal
import time

import pytest

from fixtures import lsn as lsns
from fixtures.computes import stay_where_it_is
from fixtures.fleet import TAKEOVER, Writer, standby_name, store_dir
from fixtures.load import load
from fixtures.tokens import Signer, write_certificate
from fixtures.wait import wait_until

JOURNAL = {"durability": "journal", "checkpoint_timeout": "1h"}
STANDBYS = "SELECT string_agg(application_name, ',' ORDER BY application_name) FROM pg_stat_replication"


def begin(make_fleet, make_computes, *args, count=2, settings=None, prepare=None):
    """A compute on a branch whose commits wait for the servers of a fleet, each of which receives its WAL."""
    fleet = make_fleet(count, settings={**JOURNAL, **(settings or {})}, prepare=prepare)
    for standby in fleet.servers[1:]:
        fleet.make_standby(standby)
    computes = make_computes(fleet.servers[0])
    computes.servers = fleet.servers
    compute = computes.start("dev", "--branch", "dev", "--wait-for-pageserver", *args)
    for standby in fleet.servers[1:]:
        fleet.wait_for_standby(standby, compute, compute.timeline)
    return fleet, computes, compute


class Guard:
    """Both ports of all servers of a fleet ask for TLS and tokens."""

    def __init__(self, directory):
        directory.mkdir()
        self.signer = Signer()
        self.certificate, key, self.trusting = write_certificate(directory)
        self.settings = {
            "enable_tls_page_service_api": True, "enable_tls_http_api": True, "ssl_cert_file": str(self.certificate),
            "ssl_key_file": str(key), "http_auth_type": "JWT", "pg_auth_type": "JWT",
            "auth_validation_public_key_path": str(self.signer.write_public(directory / "key.pem")),
        }

    def prepare(self, server):
        server.tls, server.ca_file = self.trusting, self.certificate
        server.token = server.secret(self.signer.admin())


def lose(server):
    """The process ends, and its disk is lost. The bucket is elsewhere."""
    server.kill()
    for name in ("tenants", "journal"):
        shutil.rmtree(server.workdir / name)


def end_at_once(pid: int, compute):
    """Ends all processes of a compute's Postgres: nothing more is sent."""
    for process in [pid, *compute.children()]:
        # Those that are left end by themselves once the first one is gone.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def forget_files(compute):
    """Its disk is lost."""
    compute.await_crash()
    shutil.rmtree(compute.data, ignore_errors=True)


def replace(fleet, left, make_computes, name="other"):
    """Another compute on the branch of one whose host is lost, at the server that is left."""
    computes = make_computes(left, name)
    computes.servers = [left]
    return computes.start("heir", "--branch", "dev", "--wait-for-pageserver", "--replace")


def test_two_of_two_survive_the_owner_with_its_disk_and_the_compute(make_fleet, make_computes):
    """Everything that was acknowledged is on the branch, from the journal of the standby."""
    fleet, computes, compute = begin(make_fleet, make_computes, "--quorum", "2")
    first, second = fleet.servers
    names = ["pageserver", standby_name(first), standby_name(second)]
    assert compute.sql("SHOW synchronous_standby_names") == f"ANY 2 ({', '.join(names)})"
    assert compute.sql(STANDBYS) == f"pageserver,{standby_name(second)}"
    with load(compute), Writer(compute, "acknowledged") as writer:
        # Of a transaction that is on its way nothing is told.
        writer.wait_for_rows(12)
        lose(first)
        compute.kill()
    forget_files(compute)
    rows = len(writer.rows)
    fleet.wait_for_owner(second)
    heir = replace(fleet, second, make_computes)
    assert heir.sql(f"SELECT count(*) FROM acknowledged WHERE i <= {rows}") == str(rows)
    balanced = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)"
    assert heir.sql(balanced) == "t" and rows > 10
    heir.sql("INSERT INTO acknowledged VALUES (-1)")
    heir.stop()


def test_two_of_two_survive_the_standby_with_its_disk_and_the_compute(make_fleet, make_computes):
    """And while the standby is away commits wait, as two are to have them."""
    fleet, computes, compute = begin(make_fleet, make_computes, "--quorum", "2")
    first, second = fleet.servers
    with Writer(compute, "acknowledged") as writer:
        writer.wait_for_rows(12)
        lose(second)
        time.sleep(0.5)
        before = len(writer.rows)
        time.sleep(1)
        assert len(writer.rows) == before, "acknowledged by one server"
        compute.kill()
    forget_files(compute)
    rows = len(writer.rows)
    first.kill()
    first.start()
    heir = replace(fleet, first, make_computes)
    assert heir.sql(f"SELECT count(*) FROM acknowledged WHERE i <= {rows}") == str(rows) and rows > 10
    heir.stop()


@pytest.mark.parametrize("how", ["standby", "by-hand"])
def test_two_of_two_survive_the_new_owner_with_its_disk_and_the_compute(how, make_fleet, make_computes):
    """A standby has taken over, and the bucket does not have what it had: the journal of the former owner does."""
    settings = {"checkpoint_distance": 256 << 20, "bucket_tail_interval": "1h"}
    fleet, computes, compute = begin(make_fleet, make_computes, "--quorum", "2", settings=settings)
    first, second = fleet.servers
    for server in fleet.servers:
        server.allow(r"(WARN|ERROR).*(is away|bucket|not uploaded|not flushed|hot layers|remote_storage)")
    compute.sql("CREATE TABLE t (i int, filler text)")
    compute.sql("INSERT INTO t SELECT g, repeat('x', 900) FROM generate_series(1, 40000) g")
    end = lsns.parse(compute.sql("SELECT pg_current_wal_flush_lsn()"))
    first.kill()
    fleet.wait_for_owner(second)
    # It puts all into the bucket at once: now it cannot.
    objects = store_dir(second)
    hidden = objects.rename(objects.with_name(objects.name + "-away"))
    lose(second)
    compute.kill()
    hidden.rename(objects)
    forget_files(compute)
    first.start()
    path = f"/v1/tenant/{fleet.tenant}/location_config"
    if how == "by-hand":
        first.http.put(path, {"mode": "AttachedSingle"})
    else:
        first.http.put(path, {"mode": "Secondary"})
    fleet.wait_for_owner(first)
    last = fleet.timeline(first, compute.timeline).info()["last_record_lsn"]
    assert lsns.parse(last) >= end, (last, end)
    assert "was in the journal" in first.log_text()
    heir = replace(fleet, first, make_computes)
    assert heir.sql("SELECT count(*), max(i) FROM t") == "40000|40000"
    heir.stop()


def test_one_of_two_goes_on_without_the_owner(make_fleet, make_computes):
    """With the default the standby's word is enough while the owner does nothing; and what it has it takes in when it
    takes over, also after its own process has ended, and although the compute is lost with its disk."""
    fleet, computes, compute = begin(make_fleet, make_computes)
    first, second = fleet.servers
    assert compute.sql("SHOW synchronous_standby_names").startswith("ANY 1 (pageserver, ")
    pid = compute.pid()
    with Writer(compute, "acknowledged") as writer:
        writer.acknowledged_after(time.monotonic())
        os.kill(first.process.pid, signal.SIGSTOP)
        paused = time.monotonic()
        committed = writer.acknowledged_after(paused) - paused
        end_at_once(pid, compute)
        second.kill()
        lose(first)
    rows = len(writer.rows)
    assert committed < TAKEOVER / 2, f"a commit waited for {committed} s"
    forget_files(compute)
    second.start()
    fleet.wait_for_owner(second)
    heir = replace(fleet, second, make_computes)
    assert heir.sql(f"SELECT count(*) FROM acknowledged WHERE i <= {rows}") == str(rows) and rows > 3
    heir.stop()


def test_what_the_bucket_has_the_journal_of_a_standby_lets_go(make_fleet, make_computes):
    """It follows a server as well, goes on after a restart and after it was away, and stops where its journal is
    full."""
    settings = {**JOURNAL, "journal_size": 64 << 20, "checkpoint_distance": 16 << 20}
    fleet = make_fleet(settings=settings)
    first, second = fleet.servers
    pg, timeline = fleet.followed.postgres, fleet.followed.timeline
    second.allow(r"WARN.*the journal is full")
    fleet.make_standby(second)
    fleet.wait_for_standby(second, pg, timeline)
    files = lambda: len(list((second.workdir / "journal").glob("*")))
    pg.sql("CREATE TABLE t (i int, filler text)")
    fill = "INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 40000) g"
    for _ in range(6):
        pg.sql(fill)
    fleet.wait_for_standby(second, pg, timeline)
    first.http.put(f"{timeline.path}/checkpoint")
    wait_until(lambda: files() <= 5, 60, what="the journal of the standby to be cut")
    metrics = second.http.metrics()
    assert metrics["pageserver_standby_given_up_total"] == 0
    # It was away, and more was written than what it has is worth: it goes on from what it has.
    second.stop()
    pg.sql(fill)
    second.start()
    fleet.wait_for_standby(second, pg, timeline)
    status = fleet.standing(second, timeline)
    assert status["state"] in ("streaming", "catching_up") and status["name"] == standby_name(second), status
    # The bucket has more than the standby when it is back: it begins there.
    second.stop()
    pg.sql(fill)
    first.http.put(f"{timeline.path}/checkpoint")
    second.start()
    fleet.wait_for_standby(second, pg, timeline)
    assert pg.sql(STANDBYS) == f"pageserver,{standby_name(second)}"


def test_a_standby_whose_journal_is_full_holds_nobody_up(make_fleet, make_computes):
    """It says so, and receives nothing; commits for which one server is enough go on. When the bucket has more it goes
    on by itself, and what it has counts."""
    # The bucket has nothing until it is told to.
    settings = {"checkpoint_distance": 512 << 20, "bucket_tail_interval": "1h"}
    fleet, computes, compute = begin(make_fleet, make_computes, settings=settings)
    first, second = fleet.servers
    limit = 64 << 20
    stay_where_it_is(second)
    second.configure(journal_size=limit)
    second.restart()
    fleet.wait_for_standby(second, compute, compute.timeline)
    size = lambda: sum(one.stat().st_size for one in (second.workdir / "journal").glob("*"))  # noqa: E731
    with Writer(compute, "acknowledged") as writer:
        compute.sql("CREATE TABLE much AS SELECT g, repeat('x', 900) FROM generate_series(1, 120000) g")
        full = lambda: second.http.metrics()["pageserver_standby_full_total"]  # noqa: E731
        wait_until(lambda: full() >= 1, 30, what="a full journal of the standby")
        assert compute.sql(STANDBYS) == "pageserver"
        writer.acknowledged_after(time.monotonic())
        status = fleet.standing(second, compute.timeline)
        assert "journal_size" in status["error"] and status["lag_bytes"] is None, status
        # One segment more may have been begun, and spare ones stay.
        assert limit < size() <= limit + (limit >> 1), size()
        first.http.put(f"{compute.timeline.path}/checkpoint")
        fleet.wait_for_standby(second, compute, compute.timeline, 60)
        assert compute.sql(STANDBYS) == f"pageserver,{standby_name(second)}"
        assert second.http.metrics()["pageserver_standby_given_up_total"] == 0
        killed = time.monotonic()
        first.kill()
        fleet.wait_for_owner(second)
        writer.acknowledged_after(killed)
    writer.check()
    assert compute.sql("SELECT count(*) FROM much") == "120000"
    compute.stop()


@pytest.mark.parametrize("how", ["open", "guarded"])
def test_what_only_the_standby_has_is_brought_to_the_owner(how, make_fleet, make_computes, work_dir):
    """The owner is paused while the standby acknowledges, and then the compute is lost with its disk: whoever replaces
    it brings what the standby has to the owner. What the lost compute wrote is not mixed up with what comes then, when
    the standby has taken over in the end. Also where all of them ask for TLS and tokens."""
    guard = Guard(work_dir / "guard") if how == "guarded" else None
    settings = {**(guard.settings if guard else {}), "takeover_after": "8s"}
    fleet, computes, compute = begin(make_fleet, make_computes, settings=settings, prepare=guard and guard.prepare)
    first, second = fleet.servers
    compute.sql("CREATE TABLE t (i int, filler text)")
    pid = compute.pid()
    # Not for as long as it takes to take over.
    os.kill(first.process.pid, signal.SIGSTOP)
    paused = time.monotonic()
    try:
        # More than connections have room for.
        compute.sql("INSERT INTO t SELECT g, repeat('x', 900) FROM generate_series(1, 10000) g")
        end_at_once(pid, compute)
    finally:
        os.kill(first.process.pid, signal.SIGCONT)
    print(f"the owner was paused for {time.monotonic() - paused:.2f} s")
    forget_files(compute)
    wait_until(lambda: fleet.state(first) == "Active", 10, what="the owner to go on")
    before = fleet.timeline(first, compute.timeline).info()["last_record_lsn"]
    journaled = fleet.standing(second, compute.timeline)["journaled_lsn"]
    assert lsns.parse(before) + 1_000_000 < lsns.parse(journaled), (before, journaled)
    others = make_computes(first, "others")
    others.servers = fleet.servers
    heir = others.start("heir", "--branch", "dev", "--wait-for-pageserver", "--replace")
    assert heir.sql("SELECT count(*), max(i) FROM t") == "10000|10000"
    heir.sql("INSERT INTO t VALUES (10001)")
    fleet.wait_for_standby(second, heir, compute.timeline)
    heir.sql("INSERT INTO t VALUES (10002)")
    fleet.wait_for_standby(second, heir, compute.timeline)
    heir.kill()
    lose(first)
    fleet.wait_for_owner(second)
    last = replace(fleet, second, make_computes, "last")
    assert last.sql("SELECT count(*), max(i) FROM t") == "10002|10002"
    last.stop()
