"""Postgres' features, with hints logged and pages not: followed live and through a crash, every page equals the
server's."""

import pytest

from fixtures import redo, workload
from fixtures.followed import follow_new

# Without images of pages redo has nothing to fall back on, and LSNs changed by hints differ from any replay.
WAYS = {
    "checksums": {"checksums": True},
    "hints": {"wal_log_hints": "on", "wal_compression": "on"},
}


# A transaction that is left prepared, with everything that one can do.
PREPARED = """
BEGIN;
SET search_path = {tag};
CREATE TABLE prepared_table AS SELECT generate_series(1, 100) AS id;
INSERT INTO facts SELECT 1, 1, 'prepared' FROM generate_series(1, 100);
SAVEPOINT s;
DELETE FROM parts WHERE id % 2 = 0;
ROLLBACK TO s;
DELETE FROM booked;
PREPARE TRANSACTION '{tag}'
"""


def features(pg, tag: str):
    """Runs the whole script in a database of its own, then copies that database in both ways."""
    place = pg.own(pg.data.parent / f"{pg.data.name}-{tag}")
    workload.create_database(pg, tag, "wal_log")
    variables = [f"tag={tag}", f"space={tag}_space", f"place={place}", "ON_ERROR_STOP=1"]
    options = [part for variable in variables for part in ("-v", variable)]
    redo.run_script(pg, "psql", "features.sql", "-X", "-q", *options, db=tag)
    workload.create_database(pg, f"{tag}_wal", "wal_log", f"TEMPLATE {tag}")
    workload.create_database(pg, f"{tag}_files", "file_copy", f"TEMPLATE {tag}_wal")
    other = pg.own(pg.data.parent / f"{pg.data.name}-{tag}-other")
    pg.sql(f"CREATE TABLESPACE {tag}_other LOCATION '{other}'; ALTER DATABASE {tag}_files SET TABLESPACE {tag}_other")
    pg.sql(PREPARED.format(tag=tag), tag)


def read_all(pg):
    """Reads all tables: the first reader of a page sets hint bits for its rows."""
    tables = "SELECT string_agg(format('SELECT count(*) FROM %s', oid::regclass), ' UNION ALL ') FROM pg_class"
    wanted = f"{tables} WHERE relkind IN ('r', 'm') AND relpersistence = 'p'"
    for db in pg.sql("SELECT datname FROM pg_database WHERE datallowconn").splitlines():
        pg.sql(pg.sql(wanted, db), db)


@pytest.mark.parametrize("way", WAYS)
def test_every_page_is_the_servers_without_page_writes(
    way, pg_major, make_postgres, make_pageserver, pagectl_binary, module_dir
):
    followed = follow_new(
        make_postgres, make_pageserver, f"features-{way}-{pg_major}", major=pg_major,
        full_page_writes="off", wal_level="logical", autovacuum="on", **WAYS[way],
    )
    pg = followed.postgres
    bench = pg.start_bench(seconds=20)
    features(pg, "first")
    bench.wait(60)
    pg.sql("CHECKPOINT")
    read_all(pg)
    pg.sql("CHECKPOINT")
    moment = followed.stop_postgres(), pg.copy_stopped(module_dir / f"moment-{way}-{pg_major}")
    pg.start()
    bench = pg.start_bench(seconds=3600)
    features(pg, "second")
    pg.sql("CHECKPOINT")
    # After a crash, replayed pages may be older on disk, or newer.
    pg.stop("immediate")
    bench.wait(60)
    pg.start()
    followed.wait_for_receiver("streaming")
    pg.sql("COMMIT PREPARED 'first'", "first")
    pg.sql("ROLLBACK PREPARED 'second'", "second")
    read_all(pg)
    pg.bench(1000)
    pg.sql("CHECKPOINT")
    read_all(pg)
    last = followed.stop_postgres()
    followed.timeline.wait_for_lsn(last)
    followed.pageserver.stop()
    store = followed.timeline.store(pagectl_binary)
    print(store.verify(pg.data).summary)
    print(store.verify(moment[1], moment[0]).summary)
    store.layers()
