"""A subscriber's progress belongs to its data: backups, branches and computes have it as of their LSN."""

import pytest

from fixtures import origins
from fixtures.followed import Followed, follow_new
from fixtures.copies import boot, fetch
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.wait import wait_until

# Statements that move an origin's progress, and some that do not. Sessions replicate from origins 1 and 3.
STEPS = {
    "advanced": "SELECT pg_replication_origin_advance('two', '0/5000')",
    "back": "SELECT pg_replication_origin_advance('two', '0/3000')",
    "dropped": "SELECT pg_replication_origin_advance('four', '0/77'); SELECT pg_replication_origin_drop('four')",
    "replicated": """
        SELECT pg_replication_origin_session_setup('one');
        BEGIN; SELECT pg_replication_origin_xact_setup('0/1000', now()); INSERT INTO t VALUES (1); COMMIT""",
    "older": """
        SELECT pg_replication_origin_session_setup('one');
        BEGIN; SELECT pg_replication_origin_xact_setup('0/900', now()); INSERT INTO t VALUES (1); COMMIT""",
    "given up": """
        SELECT pg_replication_origin_session_setup('one');
        BEGIN; SELECT pg_replication_origin_xact_setup('0/1500', now()); INSERT INTO t VALUES (1); ROLLBACK""",
    "prepared": """
        SELECT pg_replication_origin_session_setup('one');
        BEGIN; SELECT pg_replication_origin_xact_setup('0/2000', now()); INSERT INTO t VALUES (2);
        PREPARE TRANSACTION 'kept';
        BEGIN; SELECT pg_replication_origin_xact_setup('0/2100', now()); INSERT INTO t VALUES (2);
        PREPARE TRANSACTION 'not kept'""",
    "kept": """
        SELECT pg_replication_origin_session_setup('one');
        SELECT pg_replication_origin_xact_setup('0/2200', now()); COMMIT PREPARED 'kept'""",
    "not kept": """
        SELECT pg_replication_origin_session_setup('one');
        SELECT pg_replication_origin_xact_setup('0/2300', now()); ROLLBACK PREPARED 'not kept'""",
    "without progress": "SELECT pg_replication_origin_session_setup('three'); INSERT INTO t VALUES (3)",
    "many": """
        SELECT pg_replication_origin_advance(name, '1/0'::pg_lsn + number)
        FROM (SELECT 'more ' || g AS name, g AS number FROM generate_series(1, 12) g) names
        WHERE pg_replication_origin_create(name) > 0""",
}


def test_progress_of_origins_is_written_as_of_the_lsn(pg_major, make_postgres, make_pageserver, pagectl_binary):
    pg = make_postgres(f"origins{pg_major}", major=pg_major, wal_level="logical", **origins.settings(pg_major, 16))
    pg.start()
    names = "unnest('{one,two,three,four}'::text[])"
    pg.sql(f"CREATE TABLE t (i int); SELECT pg_replication_origin_create(name) FROM {names} name")
    pg.sql("SELECT pg_replication_origin_advance('one', '0/500')")
    server = make_pageserver(f"origins{pg_major}").start()
    followed = Followed(pg, server, server.follow(pg))
    moments = {"imported": (followed.catch_up(), origins.of_server(pg))}
    assert moments["imported"][1] == {1: "0/500"}
    for name, step in STEPS.items():
        # The advanced position is not on disk yet.
        pg.sql(f"{step}; SELECT pg_logical_emit_message(true, '', '')")
        moments[name] = followed.catch_up(), origins.of_server(pg)
    assert moments["prepared"][1] == {1: "0/2100", 2: "0/3000"}
    assert len(moments["many"][1]) == 14
    for name, (lsn, expected) in moments.items():
        branch = followed.timeline.branch(lsn)
        for timeline in (followed.timeline, branch):
            assert origins.of_archive(fetch(timeline, "basebackup", lsn)) == expected, name
            assert origins.of_archive(fetch(timeline, "bootimage", lsn), "upper/") == expected, name
        branch.delete()
    copy = boot(make_postgres, f"origins-copy{pg_major}", fetch(followed.timeline, "fullbackup"), pg_major)
    assert origins.of_server(copy) == moments["many"][1]
    copy.sql("SELECT pg_replication_origin_advance('three', '0/42')")
    copy.stop()
    followed.stop_and_verify(pagectl_binary)


def test_verify_finds_an_origin_that_is_elsewhere(make_postgres, pagectl, work_dir):
    pg = make_postgres("elsewhere", max_replication_slots=10)
    with pg.running():
        pg.sql("SELECT pg_replication_origin_create('one'); SELECT pg_replication_origin_advance('one', '0/500')")
    pagectl.import_pgdata(pg.copy_stopped(work_dir / "start"))
    with pg.running():
        pg.sql("SELECT pg_replication_origin_advance('one', '0/600')")
    pagectl.ingest(pg.data / "pg_wal")
    pagectl.verify(pg.data)
    (pg.data / origins.FILE).write_bytes((work_dir / "start" / origins.FILE).read_bytes())
    done = pagectl.run("verify", "--pgdata", pg.data)
    assert done.code != 0 and "replication origins are at" in done.text, done.text


class Subscriber:
    """A replicated table without a key, and what is known of its rows."""

    def __init__(self, publisher):
        self.publisher, self.written = publisher, 0
        publisher.sql("CREATE TABLE t (i int); CREATE PUBLICATION p FOR TABLE t")

    def subscribe(self, pg):
        host = self.publisher.sockets
        pg.sql("CREATE TABLE t (i int)")
        pg.sql(f"CREATE SUBSCRIPTION s CONNECTION 'host={host} user=postgres dbname=postgres' PUBLICATION p")

    def write(self, rows: int):
        """Writes rows at the publisher, several per transaction."""
        for start in range(self.written + 1, self.written + rows + 1, 10):
            self.publisher.sql(f"INSERT INTO t SELECT generate_series({start}, {start + 9})")
        self.written += rows

    def arrived(self, pg, timeout=60):
        """Waits until everything has arrived exactly once."""
        pg.sql("ALTER SUBSCRIPTION s ENABLE")
        count = "SELECT count(*) FROM t"
        wait_until(lambda: int(pg.sql(count)) >= self.written, timeout, what=f"{self.written} rows")
        # Duplicates would arrive at once: from where the publisher resumes up to its end.
        end = self.publisher.sql("SELECT pg_current_wal_lsn()")
        seen = f"SELECT bool_and(latest_end_lsn >= '{end}') FROM pg_stat_subscription WHERE subname = 's'"
        wait_until(lambda: pg.sql(seen) == "t", timeout, what=f"the publisher's WAL up to {end}")
        assert pg.sql("SELECT count(*), count(DISTINCT i), max(i) FROM t") == "|".join([str(self.written)] * 3)


@pytest.fixture
def subscriber(make_postgres):
    publisher = make_postgres("publisher", wal_level="logical", max_replication_slots=10).start()
    return Subscriber(publisher)


def test_computes_of_a_subscriber_apply_each_transaction_once(
    subscriber, make_postgres, make_pageserver, make_computes
):
    followed = follow_new(make_postgres, make_pageserver, "subscriber")
    followed.pageserver.allow(POSTGRES_IS_GONE)
    subscriber.subscribe(followed.postgres)
    subscriber.write(100)
    subscriber.arrived(followed.postgres)
    followed.stop_postgres()
    # A branch that takes its parent's place continues where the parent was...
    computes = make_computes(followed.pageserver)
    compute = computes.start("branch", "--branch", "goes-on", "--keep-subscriptions")
    subscriber.arrived(compute)
    subscriber.write(50)
    subscriber.arrived(compute)
    # ... and so does a compute that takes over from a lost host, including what was written in the meantime.
    compute.timeline.wait_for_lsn(compute.sql("SELECT pg_current_wal_flush_lsn()"))
    compute.kill()
    subscriber.write(30)
    heir = make_computes(followed.pageserver, "elsewhere").start("heir", "--branch", "goes-on", "--replace")
    subscriber.arrived(heir)
    subscriber.write(20)
    subscriber.arrived(heir)
    heir.stop()
    heir.start()
    subscriber.write(20)
    subscriber.arrived(heir)
