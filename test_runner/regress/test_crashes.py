"""Either side may end at any moment: acknowledged data stays, and no wrong page is served."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fixtures import lsn as lsns
from fixtures.followed import Followed, follow_new, rel_of
from fixtures.killed import kill_postgres, start_again
from fixtures.load import LOAD_SECONDS, load
from fixtures.pageserver import POSTGRES_IS_GONE, connection_string
from fixtures.pagestream import Rel, nblocks
from fixtures.wait import wait_until

SEED = 20261121


@pytest.mark.slow
def test_kills_at_random_moments_lose_nothing(make_postgres, make_pageserver, pagectl_binary, request):
    """Most kills are by SIGKILL, some by SIGTERM, with and without time to work in between."""
    kills = request.config.getoption("--kills")
    chance = random.Random(SEED)
    # Layers of 1 MiB, so that a kill may hit any step of writing a layer to the disk.
    followed = follow_new(make_postgres, make_pageserver, "killed", settings={"checkpoint_distance": 1 << 20})
    server, timeline = followed.pageserver, followed.timeline
    durable = timeline.info()["disk_consistent_lsn"]
    with load(followed.postgres):
        for number in range(kills):
            time.sleep(chance.random() ** 2 * 1.5)
            if chance.random() < 0.2:
                server.stop()
            else:
                server.kill()
            # The server may have forgotten whatever it was told is durable.
            kept_from = followed.slot()[1]
            server.start()
            before, durable = durable, timeline.info()["disk_consistent_lsn"]
            assert lsns.parse(durable) >= lsns.parse(kept_from), f"kill {number} of seed {SEED}"
            assert lsns.parse(durable) >= lsns.parse(before), f"kill {number} of seed {SEED}"
            if number % 10 == 9:
                followed.wait_for_receiver("streaming", "catching_up")
    followed.catch_up(timeout=120)
    assert followed.slot()[0] == f"pageserver_{timeline.id}"
    print(f"{kills} ends under load, {lsns.parse(timeline.last_record_lsn()) >> 20} MiB of WAL, seed {SEED}")
    followed.stop_and_verify(pagectl_binary)


def test_a_pageserver_that_was_away_catches_up(make_postgres, make_pageserver, pagectl_binary):
    followed = follow_new(make_postgres, make_pageserver, "away")
    followed.postgres.bench(2000)
    followed.pageserver.stop()
    # More than one layer, and more than one segment.
    followed.postgres.bench(5000)
    followed.postgres.sql("SELECT pg_switch_wal(); CREATE TABLE meanwhile AS SELECT generate_series(1, 200000) AS id")
    followed.postgres.sql("CHECKPOINT")
    followed.pageserver.start()
    followed.catch_up()
    followed.stop_and_verify(pagectl_binary)


def test_restarts_of_the_server_are_followed(make_postgres, make_pageserver, pagectl_binary):
    followed = follow_new(make_postgres, make_pageserver, "restarted")
    pg = followed.postgres
    followed.pageserver.allow(POSTGRES_IS_GONE)
    for number in range(4):
        bench = pg.start_bench(LOAD_SECONDS)
        time.sleep(1)
        if number % 2:
            pg.stop("fast")
        else:
            kill_postgres(pg)
        bench.wait(20)
        # Stored data can be read while the server is away.
        with followed.timeline.stream() as stream:
            assert stream.ask(nblocks(Rel(1664, 0, 1262))) > 0
        start_again(pg)
        pg.sql(f"CREATE TABLE after_{number} AS SELECT generate_series(1, 1000) AS id")
        followed.catch_up()
    followed.stop_and_verify(pagectl_binary)


@pytest.mark.parametrize("followed_before", [True, False], ids=["seen-promoted", "promoted-meanwhile"])
def test_a_promoted_standby_is_followed(followed_before, make_postgres, make_pageserver, pagectl_binary):
    name = f"promoted-{followed_before}".lower()
    primary = make_postgres(name, max_replication_slots=10).start()
    primary.bench_init(1)
    standby = make_postgres.standby(primary, f"{name}-standby").start()
    server = make_pageserver(name, checkpoint_distance=1 << 20).start()
    server.allow(POSTGRES_IS_GONE, r"WARN.*slot .* was missing")
    # Either may be followed: the first one that answers is.
    timeline = server.follow(primary, connstr=connection_string(primary, standby))
    followed = Followed(primary, server, timeline)
    with load(primary):
        time.sleep(2)
    primary.bench(500)
    lsn = followed.catch_up()
    replayed = "SELECT pg_last_wal_replay_lsn()"
    wait_until(lambda: lsns.parse(standby.sql(replayed)) >= lsns.parse(lsn), 30, what="replay by the standby")
    kill_postgres(primary)
    if followed_before:
        followed.wait_for_receiver("streaming", "catching_up")
        wait_until(lambda: standby.sql("SELECT count(*) FROM pg_replication_slots WHERE active") == "1", 60)
    standby.promote()
    promoted = Followed(standby, server, timeline)
    standby.bench(1000)
    standby.sql("CREATE TABLE after_promotion AS SELECT generate_series(1, 10000) AS id")
    promoted.catch_up()
    assert timeline.info()["walreceiver"]["postgres_timeline"] == 2
    promoted.stop_and_verify(pagectl_binary)


def test_wal_that_the_server_has_removed_is_missed_and_said(make_postgres, make_pageserver):
    followed = follow_new(make_postgres, make_pageserver, "forgetful", wal_keep_size=0, max_wal_size="64MB")
    pg, server, timeline = followed.postgres, followed.pageserver, followed.timeline
    followed.catch_up()
    before = timeline.last_record_lsn()
    server.stop()
    pg.sql(f"SELECT pg_drop_replication_slot('{followed.slot()[0]}')")
    for _ in range(4):
        pg.sql("CREATE TABLE IF NOT EXISTS much (v text); INSERT INTO much SELECT repeat('m', 1000) "
               "FROM generate_series(1, 20000); SELECT pg_switch_wal(); CHECKPOINT")
    server.allow(POSTGRES_IS_GONE, r"WARN.*slot .* was missing", r"ERROR.*no longer has the WAL")
    server.start()
    status = followed.wait_for_receiver("failed")
    assert "no longer has the WAL" in status["last_error"] and "follow it anew" in status["last_error"], status
    # Stored data can be read, and no WAL that does not fit came in; the server keeps no WAL in vain.
    assert timeline.last_record_lsn() == before
    with timeline.stream() as stream:
        assert stream.ask(nblocks(Rel(1664, 0, 1262))) > 0
    wait_until(lambda: pg.sql("SELECT count(*) FROM pg_replication_slots") == "0", 10, what="the slot dropped")


def test_a_commit_may_wait_until_it_can_be_read_here(make_postgres, make_pageserver):
    """The pageserver as synchronous standby, with remote_apply: committed data is visible."""
    followed = follow_new(make_postgres, make_pageserver, "waiting")
    pg, timeline = followed.postgres, followed.timeline
    pg.sql("CREATE TABLE seen (id int)")
    followed.catch_up()
    pg.configure(synchronous_standby_names="'pageserver'", synchronous_commit="remote_apply")
    pg.sql("SELECT pg_reload_conf()")
    wait_until(lambda: pg.sql("SELECT sync_state FROM pg_stat_replication") == "sync", 10, what="a synchronous standby")
    with timeline.stream() as stream:
        for _ in range(10):
            began = time.monotonic()
            pg.sql("INSERT INTO seen SELECT generate_series(1, 300)")
            assert time.monotonic() - began < 5
            assert stream.ask(nblocks(rel_of(pg, "seen"))) * 8192 == int(pg.sql("SELECT pg_relation_size('seen')"))
    # While the pageserver is away a commit waits, and is there once it is back.
    followed.pageserver.stop()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pg.sql, "INSERT INTO seen VALUES (0)")
        time.sleep(1)
        assert not waiting.done()
        followed.pageserver.start()
        waiting.result(30)
    pg.configure(synchronous_standby_names="''")
    pg.sql("SELECT pg_reload_conf()")
    followed.stop_and_compare()


def test_a_server_that_went_another_way_is_not_followed(make_postgres, make_pageserver):
    """A standby that lacks WAL which is stored here has another history, and nothing of it may get in."""
    primary = make_postgres("diverged", max_replication_slots=10).start()
    primary.bench_init(1)
    standby = make_postgres.standby(primary, "diverged-standby").start()
    server = make_pageserver("diverged", checkpoint_distance=1 << 20).start()
    server.allow(POSTGRES_IS_GONE, r"ERROR.*WAL does not come until somebody sees to it.*diverged")
    followed = Followed(primary, server, server.follow(primary, connstr=connection_string(primary, standby)))
    primary.bench(500)
    standby.stop()
    primary.bench(500)
    followed.catch_up()
    before = followed.timeline.last_record_lsn()
    kill_postgres(primary)
    standby.start()
    standby.promote()
    standby.bench(2000)
    status = followed.wait_for_receiver("failed", timeout=90)
    assert "diverged" in status["last_error"], status
    assert followed.timeline.last_record_lsn() == before
    standby.stop()
