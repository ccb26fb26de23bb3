"""Every WAL record type that SQL can reach, a crash that cut a record short, and settings that change on the way."""

from pathlib import Path

import pytest

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"

SETTINGS = {
    "replica": {"full_page_writes": "off"},
    "logical": {"wal_level": "logical", "wal_compression": "lz4", "checksums": True},
}

# Ends a segment inside a long record.
LONG_RECORD = """
SELECT pg_switch_wal();
SET synchronous_commit = on;
DO $$
DECLARE room int;
BEGIN
    LOOP
        room := (16 * 1024 * 1024 - (pg_current_wal_insert_lsn() - '0/0'::pg_lsn) % (16 * 1024 * 1024))::int;
        EXIT WHEN room < 20000;
        PERFORM pg_logical_emit_message(false, 'fill', repeat('f', 8000));
    END LOOP;
    PERFORM pg_logical_emit_message(true, 'long', repeat('L', 60000));
END $$;
SELECT pg_walfile_name(pg_current_wal_insert_lsn());
"""


def run_script(server, program, script, *args):
    """Runs a script of the workloads with psql or pgbench; the server's user may not read where the tests are."""
    copy = server.sockets / script
    copy.write_text((WORKLOADS / script).read_text())
    copy.chmod(0o644)
    server.run(program, *args, "-h", server.sockets, "-U", "postgres", "-f", copy, "postgres")


@pytest.mark.slow
@pytest.mark.parametrize("heavy", [0, 1], ids=["", "heavy"])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_record_type_is_replayed(name, heavy, make_postgres, make_pagectl, module_dir):
    server = make_postgres(
        f"{name}-{heavy}", max_replication_slots=10, allow_in_place_tablespaces="on", synchronous_commit="off",
        **SETTINGS[name],
    )
    with server.running():
        server.sql("SELECT 1")
    start = server.copy_stopped(module_dir / f"start-{name}-{heavy}")
    with server.running():
        variables = ["-v", "ON_ERROR_STOP=1", "-v", f"conn=host={server.sockets} user=postgres", "-v", f"heavy={heavy}"]
        run_script(server, "psql", "all_record_types.sql", "-X", "-q", *variables, "-v", "skip_gist_delete=0")
        server.sql("CREATE TABLE pgb (id int PRIMARY KEY, v int, k int); CREATE INDEX ON pgb (k)")
        server.sql("INSERT INTO pgb SELECT g, 0, g FROM generate_series(1, 50) g")
        run_script(server, "pgbench", "contention.sql", "-n", "-c", "8", "-j", "2", "-t", "2000")
    server.configure(max_connections=120)
    server.start()
    last_segment = server.sql(LONG_RECORD).splitlines()[-1]
    server.stop("immediate")
    (server.data / "pg_wal" / last_segment).unlink()
    with server.running():
        server.sql("CREATE TABLE after_overwrite AS SELECT 1 AS id")
    pagectl = make_pagectl(f"store-{name}-{heavy}")
    pagectl.import_pgdata(start)
    pagectl.ingest(server.data / "pg_wal")
    pagectl.verify(server.data)


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
