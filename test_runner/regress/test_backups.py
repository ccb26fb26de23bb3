"""Data directories that the page service produces: a stock Postgres starts from them, and has the data of that
moment."""

import gzip
import io
import tarfile

import pytest

from fixtures import lsn as lsns
from fixtures import workload
from fixtures.followed import SMALL_LAYERS, Followed
from fixtures.copies import boot, checksums, fetch
from fixtures.libpq import ServerError
from fixtures.lsn import after_shutdown
from fixtures.pageserver import POSTGRES_IS_GONE

@pytest.fixture(scope="module")
def followed(make_postgres, make_pageserver):
    pg = make_postgres("origin", max_replication_slots=10, checksums=True).start()
    pg.bench_init(1)
    server = make_pageserver("origin", **SMALL_LAYERS).start().allow(POSTGRES_IS_GONE)
    followed = Followed(pg, server, server.follow(pg))
    workload.ddl(pg)
    workload.vacuum(pg)
    workload.tablespace(pg)
    workload.databases(pg)
    workload.two_phase(pg)
    workload.multixacts(pg)
    pg.bench(1000)
    followed.catch_up()
    return followed


def members(tar: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        found = archive.getmembers()
    assert len({member.name for member in found}) == len(found), "a member is there twice"
    return {member.name: member for member in found}


def test_a_full_backup_is_a_server_with_the_same_data(followed, make_postgres):
    pg = followed.postgres
    tar = fetch(followed.timeline, "fullbackup", followed.catch_up())
    copy = boot(make_postgres, "copy", tar)
    assert "shut down" in copy.log.read_text() and "recovery" not in copy.log.read_text()
    for db in ("postgres", "by_wal", "by_copy", "away_db", "away_db2"):
        ours = checksums(copy, db)
        assert ours == checksums(pg, db), db
        assert "|" in ours or db == "away_db2", "nothing was compared"
    identifiers = "SELECT system_identifier FROM pg_control_system()"
    assert copy.sql(identifiers) == pg.sql(identifiers)
    assert copy.sql("SELECT gid FROM pg_prepared_xacts") == pg.sql("SELECT gid FROM pg_prepared_xacts") == "three"
    # It is a server like any other: it writes, checks, stops and starts.
    copy.sql("CREATE EXTENSION IF NOT EXISTS amcheck")
    copy.sql("SELECT bt_index_check(oid, true) FROM pg_class WHERE relam = 403 AND relpersistence = 'p'")
    damaged = "pg_class c, LATERAL verify_heapam(c.oid) WHERE relkind = 'r' AND relpersistence = 'p'"
    assert copy.sql(f"SELECT count(*) FROM {damaged}") == "0"
    assert copy.sql("SELECT count(*) FROM unlogged_items") == "0"
    copy.sql("COMMIT PREPARED 'three'")
    copy.bench(500)
    copy.sql("VACUUM; CHECKPOINT")
    copy.stop()
    copy.start()
    copy.sql("SELECT count(*) FROM pgbench_accounts")
    copy.stop()
    copy.run("pg_checksums", "--check", "-D", copy.data)


def test_a_full_backup_of_the_past(followed, make_postgres):
    pg = followed.postgres
    pg.sql("CREATE TABLE IF NOT EXISTS versions (id int)")
    pg.sql("INSERT INTO versions VALUES (1)")
    then, expected = pg.sql("SELECT pg_current_wal_insert_lsn()"), checksums(pg)
    pg.sql("INSERT INTO versions VALUES (2); DROP TABLE items CASCADE")
    followed.catch_up()
    copy = boot(make_postgres, "past", fetch(followed.timeline, "fullbackup", then))
    assert checksums(copy) == expected
    copy.stop()
    # The same from a branch, without an LSN: as of its last one.
    branch = followed.timeline.branch(then)
    copy = boot(make_postgres, "branch", fetch(branch, "fullbackup"))
    assert checksums(copy) == expected
    copy.stop()
    branch.delete()


def test_a_base_backup_has_all_but_relations(followed):
    lsn = followed.catch_up()
    plain = fetch(followed.timeline, "basebackup", lsn)
    found = members(plain)
    segment = after_segment(lsn)
    for name in ("PG_VERSION", "global/pg_control", "global/pg_filenode.map", "base/1/PG_VERSION", "pg_xact/0000",
                 "base/1/pg_filenode.map", "postgresql.conf", "pg_hba.conf", f"pg_wal/{segment}"):
        assert name in found and found[name].isfile(), f"{name} is missing: {sorted(found)}"
    for name in ("pg_twophase", "pg_tblspc", "pg_notify", "pg_replslot", "pg_subtrans", "pg_wal/archive_status"):
        assert found[name.rstrip("/")].isdir(), name
    assert found["global/pg_control"].size == 8192
    assert found[f"pg_wal/{segment}"].size == 16 << 20
    assert list(found)[-1] == "global/pg_control", "without it an incomplete copy cannot be started, so it is last"
    relations = [name for name in found if name.split("/")[-1].split(".")[0].split("_")[0].isdigit()
                 and name.split("/")[0] in ("base", "global") and found[name].isfile()]
    unlogged = {line.split("/")[-1] for line in followed.postgres.sql(
        "SELECT pg_relation_filepath(oid) FROM pg_class WHERE relpersistence = 'u'").splitlines()}
    assert relations, "init forks and what comes of them are there"
    for db in ("postgres",):
        oid = followed.postgres.sql(f"SELECT oid FROM pg_database WHERE datname = '{db}'")
        here = {name.split("/")[-1].split("_")[0] for name in relations if name.startswith(f"base/{oid}/")}
        assert here == unlogged, "only unlogged relations have files"
    # A compressed archive has the same members.
    packed = fetch(followed.timeline, "basebackup", lsn, "--gzip")
    assert len(packed) < len(plain) / 5
    assert members(gzip.decompress(packed)).keys() == found.keys()
    for lsn in ("", "latest", "0/0"):
        assert "global/pg_control" in members(fetch(followed.timeline, "basebackup", lsn, "--replica"))


def after_segment(lsn: str) -> str:
    number = lsns.parse(lsn) // lsns.SEGMENT
    return f"00000001{number // 256:08X}{number % 256:08X}"


def test_backups_of_what_cannot_be_read_are_refused(followed):
    for command in ("basebackup", "fullbackup"):
        with pytest.raises(ServerError, match="invalid basebackup lsn"):
            fetch(followed.timeline, command, "0/28")


def test_a_stopped_servers_files_come_out_as_they_were(followed, make_postgres):
    """Must be the last test of this module, because it stops the server."""
    lsn = followed.stop_postgres()
    followed.timeline.wait_for_lsn(lsn)
    followed.assert_files_equal(lsn)
    copy = make_postgres.unpacked("files", fetch(followed.timeline, "fullbackup", lsn))
    followed.assert_files_equal(lsn, data=copy.data)
    assert after_shutdown(followed.postgres.checkpoint_lsn()) == lsn
