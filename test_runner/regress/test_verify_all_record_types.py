"""Every WAL record type that SQL can reach, a crash that cut a record short, and settings that change along the
way."""

import pytest

from fixtures import redo

SETTINGS = {
    "replica": {"full_page_writes": "off", "wal_compression": "on"},
    "logical": {"wal_level": "logical", "wal_compression": "on", "checksums": True},
}

# To save time, each version of the quick suite uses one of the settings; this lists the one left out, by version.
LATER = {15: "logical", 18: "replica"}

# No server writes the first two; the third is written only with wal_level minimal.
NEVER_WRITTEN = {"XLOG/NOOP", "Heap/HOT_UPDATE+INIT", "Gist/ASSIGN_LSN"}
HINTS = {"XLOG/FPI_FOR_HINT", "XLOG/FPW_CHANGE"}
LOGICAL = {"Heap/TRUNCATE", "Heap2/NEW_CID", "Heap2/REWRITE", "Transaction/INVALIDATION"}
# Takes over a million transactions.
HEAVY = {"CLOG/TRUNCATE"}
NOT_MET = {"replica": NEVER_WRITTEN | HINTS | LOGICAL, "logical": NEVER_WRITTEN}


@pytest.mark.slow
@pytest.mark.later("name", LATER)
@pytest.mark.parametrize("name", SETTINGS)
def test_every_record_type_is_replayed(
    name, pg_major, make_postgres, pagectl, work_dir, verify_redo, all_versions
):
    heavy = all_versions and name == "logical"
    server = make_postgres(f"{name}-{pg_major}", major=pg_major, **redo.CHECK_IMAGES, **SETTINGS[name])
    with server.running():
        server.sql("SELECT 1")
    start = server.copy_stopped(work_dir / "start")
    with server.running():
        redo.every_record_type(server, heavy=heavy)
        redo.contention(server)
    server.configure(max_connections=120)
    with server.running():
        redo.crash_inside_a_record(server)
        server.sql("CREATE TABLE after_overwrite AS SELECT 1 AS id")
    redo.promote(server)
    report = verify_redo(f"{name}-all-record-types", server, start)
    expected = NOT_MET[name] | (set() if heavy else HEAVY)
    assert report.not_met() <= expected, report.not_met() - expected
    pagectl.import_pgdata(start)
    pagectl.ingest(server.data / "pg_wal")
    pagectl.verify(server.data)
    # Several of these histories at once would be too much for the disk.
    server.destroy()


def test_tablespaces_with_large_oids_and_settings_that_change(make_postgres, make_pagectl, module_dir):
    server = make_postgres("large-oids", allow_in_place_tablespaces="on", track_commit_timestamp="off", autovacuum="on")
    # Keys have 16 bits for a tablespace.
    server.run("pg_resetwal", "-o", 100_000, "-D", server.data)
    places = [server.own(module_dir / "pg" / f"place-{number}") for number in range(3)]
    with server.running():
        server.sql(f"CREATE TABLESPACE first LOCATION '{places[0]}'")
        server.sql("CREATE TABLE t1 TABLESPACE first AS SELECT generate_series(1, 5000) AS id")
    start = server.copy_stopped(module_dir / "start-large-oids")
    with server.running():
        server.sql(f"CREATE TABLESPACE second LOCATION '{places[1]}'")
        server.sql("CREATE TABLESPACE inside LOCATION ''")
        server.sql("CREATE TABLE t2 TABLESPACE second AS SELECT generate_series(1, 5000) AS id")
        server.sql("CREATE TABLE t3 TABLESPACE inside AS SELECT generate_series(1, 5000) AS id")
        server.sql("INSERT INTO t1 SELECT 1 FROM generate_series(1, 3000); DELETE FROM t1 WHERE id % 3 = 0; VACUUM t1")
        server.sql("CREATE DATABASE d2 TABLESPACE second STRATEGY file_copy")
        server.sql("CREATE TABLE x AS SELECT generate_series(1, 5000) AS id", "d2")
        server.sql("CREATE TABLE frozen_before AS SELECT generate_series(1, 5000) AS id; VACUUM frozen_before")
    # From here on hint bits set page LSNs, and commits leave timestamps.
    server.configure(wal_log_hints="on", track_commit_timestamp="on")
    with server.running():
        server.sql("INSERT INTO x VALUES (1)", "d2")
        server.sql("CREATE TABLE frozen_after AS SELECT generate_series(1, 5000) AS id; VACUUM frozen_after")
        server.sql("ALTER DATABASE d2 SET TABLESPACE inside")
        server.sql("DROP TABLE t2")
        server.sql("DROP TABLESPACE second")
        server.sql(f"CREATE TABLESPACE third LOCATION '{places[2]}'")
        server.sql("CREATE TABLE t4 TABLESPACE third AS SELECT generate_series(1, 5000) AS id")
        server.stop("immediate")
        server.start()
        server.sql("BEGIN; INSERT INTO t4 VALUES (2); PREPARE TRANSACTION 'p'")
    pagectl = make_pagectl("store-large-oids")
    pagectl.import_pgdata(start)
    pagectl.ingest(server.data / "pg_wal")
    pagectl.verify(server.data)
    # Off again: the timestamps go.
    server.configure(wal_log_hints="off", track_commit_timestamp="off")
    with server.running():
        server.sql("COMMIT PREPARED 'p'; VACUUM t4")
    assert not list((server.data / "pg_commit_ts").iterdir())
    pagectl.ingest(server.data / "pg_wal")
    pagectl.verify(server.data)
