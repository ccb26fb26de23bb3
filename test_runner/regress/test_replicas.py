"""Replicas: hot standbys of a compute that copy nothing, and take its place."""

import os
import signal
import statistics
import time

from fixtures import lsn as lsns
from fixtures import workload
from fixtures.computes import amcheck
from fixtures.copies import checksums
from fixtures.fleet import Writer
from fixtures.followed import follow_new
from fixtures.load import load
from fixtures.wait import wait_until

# One row of each table's contents, so that any difference is seen.
BALANCED = """SELECT
        (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history)
    AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history)
    AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history)"""


def catch_up(primary, replica, timeout=60):
    """Waits until a replica has replayed what its primary has written so far."""
    end = lsns.parse(primary.sql("SELECT pg_current_wal_flush_lsn()"))
    replayed = "SELECT pg_last_wal_replay_lsn()"
    wait_until(lambda: lsns.parse(replica.sql(replayed)) >= end, timeout, every=0.02, what="a replica to catch up")


def assert_equal(primary, replica):
    """Every table of both has the same rows."""
    catch_up(primary, replica)
    assert checksums(replica) == checksums(primary)


def begin(make_postgres, make_pageserver, make_computes, name, *args, **how):
    followed = follow_new(make_postgres, make_pageserver, name, checksums=True, **how)
    computes = make_computes(followed.pageserver, name)
    return followed, computes, computes.start("dev", "--branch", "dev", *args)


def test_a_replica_of_every_version(make_postgres, make_pageserver, make_computes, pg_major):
    """It answers at once, with all that was there, with transactions that are on their way; and goes on from there."""
    followed, computes, dev = begin(
        make_postgres, make_pageserver, make_computes, f"replica{pg_major}", major=pg_major, scale=4
    )
    workload.ddl(dev)
    dev.sql("CREATE TABLE open (i int)")
    with dev.session() as one, dev.session() as two:
        for session in (one, two):
            session.sql("BEGIN")
        one.sql("INSERT INTO open VALUES (1)")
        two.sql("SAVEPOINT s")
        two.sql("INSERT INTO open VALUES (2)")
        began = time.monotonic()
        replica = computes.start("r1", "--replica-of", "dev")
        print(f"PostgreSQL {pg_major}: a replica after {time.monotonic() - began:.2f} s")
        # Readers leave hints about who has committed. Whoever is on the way has neither committed nor failed.
        assert replica.sql("SELECT count(*) FROM open") == "0"
        one.sql("COMMIT")
        two.sql("COMMIT")
    catch_up(dev, replica)
    assert replica.sql("SELECT sum(i) FROM open") == "3" and replica.sql("SELECT pg_is_in_recovery()") == "t"
    dev.bench(500)
    dev.sql("CREATE TABLE later AS SELECT generate_series(1, 1000) AS i; VACUUM; CREATE INDEX ON later (i)")
    assert_equal(dev, replica)
    about = computes.about("r1")
    assert (about["role"], about["primary"], about["trouble"]) == ("replica", "dev", None)
    assert "replica of dev" in computes.ok("list").summary
    assert computes.about("dev")["role"] == "primary"
    # It is nobody's writer, and nobody waits for it or keeps WAL for it when it is gone.
    writer = dev.timeline.info()["walreceiver"]["writer"]
    assert writer["name"] == "dev"
    names = dev.sql("SELECT string_agg(application_name, ',' ORDER BY application_name) FROM pg_stat_replication")
    assert names == "pageserver,replica_r1"
    done = replica.run("psql", *replica.connection(), "-c", "DELETE FROM open", check=False)
    assert "read-only transaction" in done.stderr
    done = replica.run("psql", *replica.connection(), "-c", "SELECT pg_promote()", check=False)
    assert 'could not create file "promote"' in done.stderr
    replica.stop()
    wait_until(
        lambda: dev.sql("SELECT count(*) FROM pg_replication_slots WHERE temporary") == "0", 20, what="its slot to go"
    )
    # A promotion in order loses nothing, and all of it is on the branch.
    replica.start()
    expected = checksums(dev)
    done = computes.json("promote", "r1")
    print(f"PostgreSQL {pg_major}: promoted after {done['ready_ms']} ms")
    assert checksums(replica) == expected and computes.about("r1")["role"] == "primary"
    replica.bench(200)
    amcheck(replica)
    computes.refuse("start", "dev", names="compute r1")
    assert dev.timeline.info()["walreceiver"]["writer"]["name"] == "r1"


def test_replicas_follow_a_load_and_one_takes_its_place(make_postgres, make_pageserver, make_computes):
    """Two replicas under load; the primary is killed; what was acknowledged is at the one that is promoted, and the
    other one follows it."""
    told = ["--wait-for-pageserver", "--set", "work_mem=5MB"]
    followed, computes, dev = begin(make_postgres, make_pageserver, make_computes, "load", *told, scale=10)
    with load(dev), Writer(dev, "acknowledged") as writer:
        writer.wait_for_rows(20)
        began = time.monotonic()
        one = computes.start("r1", "--replica-of", "dev")
        took = time.monotonic() - began
        two = computes.start("r2", "--replica-of", "dev", "--set", "work_mem=7MB")
        assert one.sql(BALANCED) == two.sql(BALANCED) == "t"
        lags = []
        for _ in range(40):
            row = writer.rows[-1][0]
            at = time.monotonic()
            while one.sql(f"SELECT count(*) FROM acknowledged WHERE i = {row}") == "0":
                assert time.monotonic() - at < 30
            lags.append(time.monotonic() - at)
        print(f"a replica under load after {took:.2f} s; a row is there {statistics.median(lags) * 1000:.0f} ms after "
              f"it was asked for, {max(lags) * 1000:.0f} at most")
        assert computes.about("r1")["lag_bytes"] is not None
        # One that stops and starts begins anew: what it has on its disk does not grow for ever.
        two.stop()
        two.start()
        assert two.sql(BALANCED) == "t" and two.sql("SHOW work_mem") == "7MB"
        one.kill()
        one.start()
        assert one.sql(BALANCED) == "t"
        dev.kill()
    rows = len(writer.rows)
    done = computes.json("promote", "r1")
    print(f"promoted after {done['ready_ms']} ms, {done['brought_bytes']} bytes by the replica: {done['warnings']}")
    assert one.sql(f"SELECT count(*) FROM acknowledged WHERE i <= {rows}") == str(rows)
    assert one.sql(BALANCED) == "t"
    # It goes on as its primary did, and that does not come back.
    assert one.sql("SHOW synchronous_standby_names") == "pageserver" and one.sql("SHOW work_mem") == "5MB"
    computes.refuse("start", "dev", names="compute r1")
    one.bench(500)
    assert computes.about("r2")["primary"] == "r1"
    assert_equal(one, two)
    computes.refuse("promote", "r1", names="no replica")
    end = one.stop()
    assert one.timeline.last_record_lsn() == end


def test_what_only_a_replica_has_is_brought_to_the_branch(make_postgres, make_pageserver, make_computes):
    """The primary is lost while the page server takes nothing in: the replica has what was committed meanwhile."""
    followed, computes, dev = begin(make_postgres, make_pageserver, make_computes, "only")
    dev.sql("CREATE TABLE t (i int, filler text)")
    replica = computes.start("r1", "--replica-of", "dev")
    process = followed.pageserver.process.pid
    replica.sql("SELECT count(*) FROM t")
    os.kill(process, signal.SIGSTOP)
    try:
        dev.sql("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i")
        catch_up(dev, replica)
        pid = int((dev.dir / "upper/postmaster.pid").read_text().split()[0])
        for one in [pid, *dev.children()]:
            os.kill(one, signal.SIGKILL)
    finally:
        os.kill(process, signal.SIGCONT)
    done = computes.json("promote", "r1")
    print(f"{done['brought_bytes']} bytes were brought in {done['ready_ms']} ms")
    assert done["brought_bytes"] > 1 << 20
    assert replica.sql("SELECT count(*), sum(i) FROM t") == f"20000|{20000 * 20001 // 2}"
    replica.bench(100)
    amcheck(replica)
    replica.stop()


def test_a_primary_that_does_not_answer_is_ended(make_postgres, make_pageserver, make_computes):
    """Its processes are suspended: it can neither stop nor write when they go on."""
    followed, computes, dev = begin(make_postgres, make_pageserver, make_computes, "hung")
    dev.sql("CREATE TABLE t AS SELECT 1 AS i")
    replica = computes.start("r1", "--replica-of", "dev")
    pids = [dev.pid(), *dev.children()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    done = computes.json("promote", "r1", "--stop-within", "2s")
    assert any("did not stop in order" in warning for warning in done["warnings"]), done
    assert not dev.children()
    assert replica.sql("SELECT count(*) FROM t") == "1"
    replica.sql("INSERT INTO t VALUES (2)")


def test_what_is_no_replica_is_refused(make_postgres, make_pageserver, make_computes):
    followed, computes, dev = begin(make_postgres, make_pageserver, make_computes, "none")
    computes.refuse("start", "r1", "--replica-of", "nobody", names="there is no compute")
    computes.refuse("start", "dev", "--replica-of", "dev", names="no replica")
    computes.refuse("start", "r1", "--replica-of", "dev", "--branch", "dev", names="--branch")
    computes.start("look", "--read-only")
    computes.refuse("start", "r1", "--replica-of", "look", names="only reads")
    computes.refuse("promote", "look", names="no replica")
    computes.start("r1", "--replica-of", "dev")
    computes.refuse("start", "r2", "--replica-of", "r1", names="name its primary, dev")
    computes.refuse("start", "r1", names="runs already")
    assert computes.names() == ["dev", "look", "r1"]
    # Another compute of that name on the same branch: what its replicas have replayed may have another history.
    dev.stop()
    computes.ok("destroy", "dev")
    about = computes.about("r1")
    assert about["state"] == "running" and "is gone" in about["trouble"], (about, computes.ok("logs", "r1").stdout)
    again = computes.start("dev", "--branch", "dev")
    again.sql("CREATE TABLE t AS SELECT 1 AS i")
    assert computes.about("r1")["trouble"] is None
    replica = computes.start("r3", "--replica-of", "dev")
    for name in ("r1", "r3"):
        catch_up(again, type(replica)(computes, name))
        assert type(replica)(computes, name).sql("SELECT count(*) FROM t") == "1"
