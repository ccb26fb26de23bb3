"""A compute's options persist until they are changed, can be changed while it runs, and invalid ones are reported."""

import os
import socket
import threading
import time

import pytest

from fixtures.followed import follow_new
from fixtures.computes import Compute
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.slow_link import SlowLink
from fixtures.wait import wait_until

# Small buffers, so that relations are read from the page server again and again.
SMALL = ["--set", "shared_buffers=1MB"]
ALL = "SELECT count(*), sum(abalance) FROM pgbench_accounts"


@pytest.fixture(scope="module")
def followed(make_postgres, make_pageserver):
    followed = follow_new(make_postgres, make_pageserver, "told")
    followed.pageserver.allow(POSTGRES_IS_GONE)
    return followed


@pytest.fixture
def computes(followed, make_computes):
    return make_computes(followed.pageserver)


class DeadAddress:
    """Accepts connections and never answers, like a machine whose disk or network has died."""

    def __init__(self, port: int):
        self.listener = socket.create_server(("127.0.0.1", port))
        self.taken: list[socket.socket] = []
        threading.Thread(target=self.take, daemon=True).start()

    def take(self):
        while True:
            try:
                self.taken.append(self.listener.accept()[0])
            except OSError:
                return

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for taken in self.taken:
            taken.close()


def start_behind_a_link(computes, name: str) -> tuple[Compute, DeadAddress]:
    """A compute whose page server's address has died since its start; almost nothing of its tables has been read."""
    with SlowLink.to_port(computes.pageserver.pg_port, 0).open() as link:
        computes.page_port, port = link.port, link.port
        compute = computes.start(name, "--branch", name, *SMALL)
        compute.sql("CREATE TABLE kept AS SELECT generate_series(1, 1000) AS i")
    return compute, DeadAddress(port)


def page_service(computes) -> list[str]:
    return ["--page-service", f"host=127.0.0.1 port={computes.pageserver.pg_port} user=compute"]


def test_a_running_compute_moves_to_another_address(computes):
    compute, dead = start_behind_a_link(computes, "moves")
    try:
        reading = compute.start_sql(ALL)
        time.sleep(3)
        assert reading.poll() is None, "nobody could have answered"
        computes.refuse("set", "moves", "--page-service", "nonsense", names="page service")
        assert "moves knows" in computes.ok("set", "moves", *page_service(computes)).summary
        out, _ = reading.communicate(timeout=20)
        assert out.strip() == "100000|0", out
    finally:
        dead.close()
    computes.page_port = None
    assert compute.stop() == compute.timeline.last_record_lsn()


def test_a_compute_stops_in_time_whatever_hangs(computes):
    compute, dead = start_behind_a_link(computes, "hangs")
    try:
        reading = compute.start_sql(ALL)
        time.sleep(1)
        begun = time.monotonic()
        # A checkpoint has to read pages that it partly overwrites, and a backend that waits for such a page does not
        # end.
        done = computes.pagectl("compute", "stop", "hangs", "--timeout", "8s")
        assert time.monotonic() - begun < 11, done.text
        print(done.text)
        reading.wait(10)
        assert compute.state() in ("crashed", "stopped")
        assert done.code == 0 or "--page-service" in done.stderr, done.text
    finally:
        dead.close()
    computes.page_port = None
    compute.start(*page_service(computes))
    assert compute.sql("SELECT count(*) FROM kept") == "1000"
    assert compute.sql(ALL) == "100000|0"
    assert compute.stop() == compute.timeline.last_record_lsn()


def test_what_was_told_holds_and_is_listed(computes):
    done = computes.ok("start", "told", "--branch", "told", "--wait-for-pageserver", "--set", "work_mem=7MB")
    assert "is lost with both together" in done.summary
    compute = Compute(computes, "told")
    told = computes.about("told")
    assert told["told"] == "--wait-for-pageserver --set 'work_mem=7MB'" and told["trouble"] is None, told
    assert "--wait-for-pageserver" in computes.ok("list").stdout
    compute.stop()
    compute.start()
    assert compute.sql("SHOW synchronous_standby_names") == "pageserver" and compute.sql("SHOW work_mem") == "7MB"
    computes.refuse("set", "told", "--unset", "jit", names="not set")
    computes.refuse("set", "told", "--set", "nonsense", names="no setting")
    changes = ["--unset", "work_mem", "--wait-for-pageserver=false", "--set", "jit=off"]
    assert "stopped and started" in computes.ok("set", "told", *changes).summary
    assert computes.about("told")["told"] == "--set 'jit=off'"
    compute.stop()
    computes.ok("set", "told", "--set", "jit=on", "--listen", "127.0.0.1")
    compute.start()
    assert compute.sql("SHOW synchronous_standby_names") == "" and compute.sql("SHOW jit") == "on"
    assert compute.sql("SHOW work_mem") == "4MB" and compute.sql("SHOW listen_addresses") == "127.0.0.1"
    computes.refuse("set", "nobody", "--listen", "", names="no compute")


@pytest.mark.parametrize("mode", ["lazy", "copy"])
def test_a_compute_that_only_reads_is_not_promoted(computes, mode):
    name = f"reader-{mode}"
    reader = computes.start(name, "--read-only", *(["--copy"] if mode == "copy" else []))
    refused = reader.run("psql", *reader.connection(), "-c", "SELECT pg_promote()", check=False)
    assert refused.returncode != 0 and "promote" in refused.stderr, refused
    reader.sql("ALTER SYSTEM SET promote_trigger_file = '/tmp/there-is-no-such-file'")
    reader.sql("SELECT pg_reload_conf()")
    assert reader.sql("SHOW promote_trigger_file") == ""
    assert reader.sql("SELECT pg_is_in_recovery()") == "t" and computes.about(name)["trouble"] is None
    reader.stop()
    reader.start()
    refused = reader.run("psql", *reader.connection(), "-c", "SELECT pg_promote()", check=False)
    assert refused.returncode != 0 and reader.sql("SELECT pg_is_in_recovery()") == "t"
    # Whoever may remove Postgres' files can do this, but not unnoticed.
    os.unlink(reader.data / "promote")
    assert reader.sql("SELECT pg_promote()") == "t"
    assert "it was promoted" in computes.about(name)["trouble"]
    assert "goes nowhere" in computes.ok("list").stdout
    computes.ok("stop", name)
    computes.refuse("start", name, names="it was promoted")


def test_a_compute_whose_wal_does_not_arrive_is_in_trouble(computes):
    compute = computes.start("alone", "--branch", "alone")
    assert computes.about("alone")["trouble"] is None
    compute.sql("CREATE ROLE other SUPERUSER LOGIN REPLICATION")
    rename = ["-h", str(compute.dir), "-p", str(compute.port), "-U", "other", "-d", "postgres"]
    compute.run("psql", *rename, "-c", "ALTER ROLE postgres RENAME TO renamed")
    compute.run("psql", *rename, "-c", "SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
    trouble = wait_until(lambda: computes.about("alone")["trouble"], 5, what="trouble")
    assert 'role "postgres" does not exist' in trouble
    compute.run("psql", *rename, "-c", "ALTER ROLE renamed RENAME TO postgres")
    wait_until(lambda: computes.about("alone")["trouble"] is None, 40, what="a page server that follows again")
    compute.stop()
    done = computes.ok("start", "alone", "--set", "max_wal_senders=0")
    assert "the page server does not take its WAL" in done.summary and "stays on this machine" in done.summary
    assert "does not take its WAL" in computes.about("alone")["trouble"]
    computes.refuse("stop", "alone", "--timeout", "4s", names="start it again")
    assert computes.ok("start", "alone", "--set", "max_wal_senders=10").summary
    assert computes.about("alone")["trouble"] is None
    compute.stop()


def test_a_compute_that_registers_again_keeps_its_connection(computes):
    """Its start registers it before Postgres runs, and once more when it does: that must not cut off who came first."""
    compute = computes.start("twice", "--branch", "twice")
    timeline, slots = compute.timeline, "SELECT slot_name FROM pg_replication_slots"
    body = {**timeline.info()["walreceiver"]["writer"], "slot": compute.sql(slots)}
    body["connstr"] = computes.about("twice")["connstr"]
    senders = lambda: compute.sql("SELECT string_agg(pid::text, ' ') FROM pg_stat_replication")
    before = senders()
    timeline.server.http.put(f"{timeline.path}/writer", body)
    assert senders() == before and computes.about("twice")["trouble"] is None
    timeline.server.http.put(f"{timeline.path}/writer", {**body, "connstr": f"{body['connstr']} connect_timeout=9"})
    wait_until(lambda: senders() not in ("", before), 20, what="a connection to the new address")
    compute.stop()


def test_a_start_that_fails_leaves_nothing_and_says_why(followed, computes):
    lsn = followed.catch_up()
    again = ["start", "fails", "--branch", "fails", "--at", lsn]
    said = computes.refuse(*again, "--set", "shared_preload_libraries=there_is_none", names="FATAL")
    assert 'could not access file "there_is_none"' in said
    assert computes.names() == [] and computes.pagectl("branch", "delete", "fails").code != 0
    said = computes.refuse(*again, "--superuser", "nobody", names="say with --superuser")
    assert 'follows the cluster as user "postgres"' in said
    compute = computes.start(*again[1:])
    assert compute.sql("SELECT 1") == "1"
