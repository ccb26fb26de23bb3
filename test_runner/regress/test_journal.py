"""`durability = "journal"`: a commit waits for one sync here, and survives the loss of its server, or of the
pageserver's process, or of both at once."""

import random
import shutil
import time

import pytest

from fixtures import lsn as lsns
from fixtures.followed import Followed, follow_new
from fixtures.killed import kill_postgres, start_again
from fixtures.load import load
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.wait import wait_until

SEED = 20261127
SEGMENT = 16 << 20
# What is told may end in the middle of a record, which has a page or two at most.
RECORD_MAX = 20_000


def follow_with_journal(make_postgres, make_pageserver, name: str, **settings) -> Followed:
    """Commits wait for the journal; layers are not written for a long time, unless `settings` say so."""
    settings = {"durability": "journal", "checkpoint_timeout": "1h", **settings}
    followed = follow_new(make_postgres, make_pageserver, name, settings=settings)
    followed.pageserver.allow(POSTGRES_IS_GONE)
    followed.catch_up()
    followed.postgres.sql("CREATE TABLE acknowledged (i int PRIMARY KEY)")
    wait_for_commits(followed)
    return followed


def wait_for_commits(followed: Followed):
    pg = followed.postgres
    pg.configure(synchronous_standby_names="'pageserver'", synchronous_commit="on")
    pg.sql("SELECT pg_reload_conf()")
    wait_until(lambda: pg.sql("SELECT sync_state FROM pg_stat_replication") == "sync", 10, what="a synchronous standby")


def journal_bytes(followed: Followed) -> int:
    return sum(file.stat().st_size for file in (followed.pageserver.workdir / "journal").iterdir())


def test_what_was_acknowledged_survives_both_ends(make_postgres, make_pageserver, make_computes):
    """The server and its disk are lost together with the pageserver's process, in the middle of a load."""
    followed = follow_with_journal(make_postgres, make_pageserver, "both")
    pg, server, timeline = followed.postgres, followed.pageserver, followed.timeline
    with load(pg):
        for row in range(1, 201):
            pg.sql(f"INSERT INTO acknowledged VALUES ({row})")
        server.kill()
    kill_postgres(pg)
    shutil.rmtree(pg.data)
    server.start()
    info = timeline.info()
    assert lsns.parse(info["disk_consistent_lsn"]) < lsns.parse(info["last_record_lsn"]), f"layers had it all: {info}"
    # At once: who is served sees all that was acknowledged.
    compute = make_computes(server).start("heir", "--branch", "both", "--copy")
    assert compute.sql("SELECT count(*), min(i), max(i) FROM acknowledged") == "200|1|200"
    balanced = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)"
    assert compute.sql(balanced) == "t"
    compute.stop()


def test_a_compute_that_is_lost_with_the_process_loses_nothing(make_postgres, make_pageserver, make_computes):
    """As the first test, with a compute that waits; another one replaces it on the same branch."""
    followed = follow_with_journal(make_postgres, make_pageserver, "replaced")
    server = followed.pageserver
    compute = make_computes(server, "lost").start("one", "--branch", "dev", "--wait-for-pageserver")
    assert compute.sql("SHOW synchronous_commit") == "on"
    compute.sql("CREATE TABLE mine (i int PRIMARY KEY)")
    for row in range(1, 51):
        compute.sql(f"INSERT INTO mine VALUES ({row})")
    server.kill()
    compute.kill()
    server.start()
    heir = make_computes(server, "other").start("one", "--branch", "dev", "--wait-for-pageserver", "--replace")
    assert heir.sql("SELECT count(*), min(i), max(i) FROM mine") == "50|1|50"
    heir.sql("INSERT INTO mine VALUES (51)")
    heir.stop()


def test_the_server_keeps_what_only_the_journal_has(make_postgres, make_pageserver, pagectl_binary):
    """The journal's disk is lost: all of it comes again from the server, for which it was acknowledged long ago."""
    followed = follow_with_journal(make_postgres, make_pageserver, "kept")
    pg, server, timeline = followed.postgres, followed.pageserver, followed.timeline
    began = lsns.parse(timeline.info()["remote_consistent_lsn"])
    for _ in range(3):
        pg.sql("INSERT INTO acknowledged SELECT coalesce(max(i), 0) + generate_series(1, 20000) FROM acknowledged")
        pg.sql("SELECT pg_switch_wal(); CHECKPOINT")
    said, (_, told) = pg.sql("SELECT pg_current_wal_flush_lsn()"), followed.slot()
    assert lsns.parse(followed.kept_from()) <= began < lsns.parse(told)
    status = timeline.info()["walreceiver"]
    assert lsns.parse(status["journaled_lsn"]) >= lsns.parse(told) and status["journal_error"] is None, status
    server.kill()
    shutil.rmtree(server.workdir / "journal")
    server.start()
    timeline.wait_for_lsn(said)
    # Once layers are in the bucket, the server need not keep it any more.
    server.http.put(f"{timeline.path}/checkpoint")
    wait_until(lambda: lsns.parse(followed.kept_from()) >= lsns.parse(said), 60, what="the second slot to follow")
    # Without a journal nothing needs the second slot.
    pg.configure(synchronous_standby_names="''")
    pg.sql("SELECT pg_reload_conf()")
    server.stop()
    server.configure(durability="bucket")
    server.start()
    wait_until(lambda: followed.kept_from() is None, 60, what="the second slot to go")
    pg.bench(500)
    followed.stop_and_verify(pagectl_binary)


@pytest.mark.slow
def test_kills_lose_nothing_that_was_told(make_postgres, make_pageserver, pagectl_binary):
    """After each kill the server is away: all that it was told comes from the journal, which does not grow for ever."""
    chance = random.Random(SEED)
    limit = 4 * SEGMENT
    settings = {"checkpoint_distance": 8 << 20, "journal_size": limit}
    followed = follow_with_journal(make_postgres, make_pageserver, "killed", **settings)
    pg, server, timeline = followed.postgres, followed.pageserver, followed.timeline
    most, replayed = 0, 0
    for number in range(5):
        with load(pg):
            pg.sql("INSERT INTO acknowledged SELECT coalesce(max(i), 0) + generate_series(1, 100000) FROM acknowledged")
            time.sleep(chance.random() * 2)
            server.kill()
        told = lsns.parse(followed.slot()[1])
        kill_postgres(pg)
        most = max(most, journal_bytes(followed))
        server.start()
        info = timeline.info()
        journaled, last = lsns.parse(info["walreceiver"]["journaled_lsn"]), lsns.parse(info["last_record_lsn"])
        assert journaled >= told and last >= told - RECORD_MAX, f"kill {number}: {told} was told, {info}"
        replayed += max(last - lsns.parse(info["disk_consistent_lsn"]), 0)
        start_again(pg)
        followed.wait_for_receiver("streaming", "catching_up")
    print(f"seed {SEED}: {replayed} bytes came from the journal, which had up to {most}")
    assert replayed > 0 and most <= limit + 4 * SEGMENT, (replayed, most)
    followed.catch_up()
    pg.configure(synchronous_standby_names="''")
    pg.sql("SELECT pg_reload_conf()")
    followed.stop_and_verify(pagectl_binary)


def test_a_journal_that_does_not_fit_is_refused(make_pageserver):
    server = make_pageserver("unfit", durability="journal", attach_on_start="all")
    assert "attach_on_start" in server.refuses_to_start()
    server.configure(attach_on_start="own", journal_size=1 << 20)
    assert "journal_size" in server.refuses_to_start()
    server.configure(journal_size=1 << 30, durability="paper")
    assert "expected one of bucket, journal" in server.refuses_to_start()
