"""Pages equal the server's for all of its settings and kinds of indexes, and for all our ways to read and write
files."""

import json
import re

import pytest

from fixtures import redo
from fixtures.lsn import after_shutdown
from fixtures.small_store import make_history

SETTINGS = {
    "checksums-pglz": {"checksums": True},
    "hints-lz4": {"wal_log_hints": "on"},
    "logical-zstd": {"wal_level": "logical"},
}

# For each kind of index: built in one go, grown, shrunk by VACUUM, and used again.
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
    setting, wanted = name.split("-")
    method = redo.compress(server, wanted)
    history = make_history(server, work_dir / "start", transactions=2000)
    report = verify_redo(f"{setting}-{method}-history", server, history.start)
    assert report.count("XLOG/FPI", "images") > 0
    logs_hints = bool(SETTINGS[name].keys() & {"checksums", "wal_log_hints"})
    assert (report.count("XLOG/FPI_FOR_HINT", "images") > 0) == logs_hints
    pagectl.import_pgdata(history.start)
    pagectl.ingest(history.wal)
    pagectl.verify(server.data)
    pagectl.verify(history.start, history.start_lsn)


@pytest.fixture
def hinted(request, pg_major, make_postgres, pagectl, work_dir):
    """A stopped server whose hints were logged without images, and a store that has all its WAL."""
    server = make_postgres(request.node.name, major=pg_major, checksums=True, full_page_writes="off")
    with server.running():
        server.sql("CREATE TABLE t (id int, v text); CREATE INDEX ON t (id)")
    pagectl.import_pgdata(server.copy_stopped(work_dir / "start"))
    with server.running():
        server.sql("INSERT INTO t SELECT g, repeat('v', 100) FROM generate_series(1, 9000) g; CHECKPOINT")
        # The first reader of a page sets hint bits for its committed rows; then some pages change again.
        server.sql("SELECT sum(id) FROM t; CHECKPOINT; UPDATE t SET v = repeat('w', 100) WHERE id < 500")
        path = server.data / server.sql("SELECT pg_relation_filepath('t')")
    pagectl.ingest(server.data / "pg_wal")
    return server, pagectl, path


def change(path, block, offset, bits=1):
    with open(path, "r+b") as file:
        file.seek(block * 8192 + offset)
        (byte,) = file.read(1)
        file.seek(block * 8192 + offset)
        file.write(bytes([byte ^ bits]))


def test_hints_that_are_logged_without_images(hinted, pg_major):
    server, pagectl, path = hinted
    found = json.loads(pagectl.ok("--json", "verify", "--pgdata", server.data).stdout)
    assert found["different"] == 0
    # 14 logs images of hints in any case.
    assert (found["newer_hints"] > 100) == (pg_major >= 15), found
    # A changed row in such a page, or an LSN of no record, is still reported as a difference.
    change(path, 100, 8170)
    change(path, 101, 4, 0x08)
    text = pagectl.refuse("verify", "--pgdata", server.data).stdout
    assert "2 different" in text, text
    assert all(re.search(rf"block {block} .* differs from byte", text) for block in (100, 101)), text


def test_all_differences_are_counted_and_named_on_demand(hinted):
    server, pagectl, path = hinted
    for block in range(60):
        change(path, block, 8170)
    said = pagectl.refuse("verify", "--pgdata", server.data).stdout
    named = [line for line in said.splitlines() if "differs" in line]
    assert len(named) == 50
    text = pagectl.refuse("verify", "--pgdata", server.data).stdout
    assert "and 10 more that differ" in text and "60 different" in text, text
    all_named = pagectl.refuse("verify", "--pgdata", server.data, "--max-differences", 1000).stdout
    assert all_named.count("differs from byte") == 60 and "more that differ" not in all_named
    found = json.loads(pagectl.run("--json", "verify", "--pgdata", server.data).stdout)
    assert (found["different"], len(found["differences"])) == (60, 50)


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
