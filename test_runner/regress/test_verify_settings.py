"""Pages equal the server's whatever its settings, its kinds of indexes, and our ways to read and write files."""

import pytest

from fixtures import redo
from fixtures.lsn import after_shutdown
from fixtures.small_store import make_history

SETTINGS = {
    "checksums-pglz": {"checksums": True, "wal_compression": "on"},
    "hints-lz4": {"wal_log_hints": "on", "wal_compression": "lz4"},
    "logical-zstd": {"wal_level": "logical", "wal_compression": "zstd"},
}

# Of each kind of index: built at once, grown, shrunk by VACUUM, and used again.
INDEXES = {
    "hash": "USING hash (id)",
    "gin": "USING gin (words)",
    "gist": "USING gist (place)",
    "spgist": "USING spgist (place)",
    "brin": "USING brin (id) WITH (pages_per_range = 2)",
    "btree": "USING btree (tag)",
}

IO_WAYS = [(engine, mode) for engine in ("std-fs", "tokio-epoll-uring") for mode in ("buffered", "direct", "direct-rw")]


@pytest.mark.parametrize("name", SETTINGS)
def test_pages_equal_the_servers_under_other_settings(
    name, pg_major, make_postgres, pagectl, work_dir, verify_redo
):
    server = make_postgres(f"{name}-{pg_major}", major=pg_major, **{**redo.CHECK_IMAGES, **SETTINGS[name]})
    redo.compression_or_skip(server, SETTINGS[name]["wal_compression"])
    history = make_history(server, work_dir / "start", transactions=2000)
    report = verify_redo(f"{name}-history", server, history.start)
    assert report.count("XLOG/FPI", "images") > 0
    logs_hints = bool(SETTINGS[name].keys() & {"checksums", "wal_log_hints"})
    assert (report.count("XLOG/FPI_FOR_HINT", "images") > 0) == logs_hints
    pagectl.import_pgdata(history.start)
    pagectl.ingest(history.wal)
    pagectl.verify(server.data)
    pagectl.verify(history.start, history.start_lsn)


def indexed_table(server, kind):
    server.sql(
        f"""
        CREATE TABLE t_{kind} (id int, tag text, words int[], place point);
        INSERT INTO t_{kind} SELECT g, 'tag ' || g % 97, ARRAY[g % 50, g % 333, g], point(g % 100, g)
            FROM generate_series(1, 6000) g;
        CREATE INDEX i_{kind} ON t_{kind} {INDEXES[kind]};
        INSERT INTO t_{kind} SELECT g, 'tag ' || g % 97, ARRAY[g % 50, g % 333, g], point(g % 100, g)
            FROM generate_series(6001, 12000) g;
        DELETE FROM t_{kind} WHERE id % 3 = 0 OR id BETWEEN 2000 AND 5000;
        VACUUM t_{kind};
        INSERT INTO t_{kind} SELECT g, 'tag ' || g % 7, ARRAY[g], point(g, g) FROM generate_series(1, 4000) g;
        UPDATE t_{kind} SET tag = tag || '!' WHERE id % 11 = 0;
        """
    )


def test_every_kind_of_index_is_rebuilt(pg_major, make_postgres, pagectl, work_dir, verify_redo):
    server = make_postgres(f"indexes-{pg_major}", major=pg_major, **redo.CHECK_IMAGES)
    with server.running():
        server.sql("SELECT 1")
    start = server.copy_stopped(work_dir / "start")
    pagectl.import_pgdata(start)
    with server.running():
        for kind in INDEXES:
            indexed_table(server, kind)
        server.sql("CREATE EXTENSION bloom; CREATE UNLOGGED TABLE u (id int); CREATE INDEX ON u USING bloom (id)")
    middle_lsn = after_shutdown(server.checkpoint_lsn())
    middle = server.copy_stopped(work_dir / "middle")
    with server.running():
        for kind in INDEXES:
            server.sql(f"DELETE FROM t_{kind} WHERE id % 2 = 0; VACUUM FREEZE t_{kind}; REINDEX TABLE t_{kind};")
    verify_redo("indexes", server, start)
    pagectl.ingest(server.data / "pg_wal")
    pagectl.verify(server.data)
    pagectl.verify(middle, middle_lsn)


def test_every_way_of_file_access_ends_in_the_same_state(make_postgres, make_pagectl, module_dir):
    server = make_postgres("ways")
    history = make_history(server, module_dir / "start-ways", transactions=1000)
    digests = {}
    for engine, mode in IO_WAYS:
        pagectl = make_pagectl(f"store-{engine}-{mode}")
        ways = ["--io-engine", engine, "--io-mode", mode]
        pagectl.ok("import", "--pgdata", history.start, *ways)
        pagectl.ok("ingest", "--wal", history.wal, "--layer-mib", 2, *ways)
        pagectl.layers()
        digests[engine, mode] = pagectl.digest(history.last_lsn)
    assert len(set(digests.values())) == 1, digests
    pagectl.verify(server.data)
