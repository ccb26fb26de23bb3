"""Every page after every record of Postgres' own tests: SQL regression, isolation, contrib."""

import pytest

from fixtures import redo, suites

# With images that are only there to be compared with, and with images that replace pages.
SETTINGS = {
    "no-page-writes": {"full_page_writes": "off", "wal_compression": "on"},
    "page-writes": {"wal_level": "logical", "wal_compression": "on", "checksums": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_postgres_own_tests_are_replayed(name, pg_major, make_postgres, pagectl, work_dir, verify_redo, all_versions):
    tests = suites.find_tests(pg_major)
    if not all_versions:
        pytest.skip("takes too long: only with --pg-versions all")
    if tests is None:
        pytest.fail("the tests of Postgres are not here: run scripts/postgres_regress.sh", pytrace=False)
    server = make_postgres(
        f"suites-{name}-{pg_major}", major=pg_major, max_connections=120, autovacuum="on",
        **{**redo.CHECK_IMAGES, **SETTINGS[name]},
    )
    with server.running():
        server.sql("SELECT 1")
    start = server.copy_stopped(work_dir / "start")
    run = suites.Suites(server, tests)
    with server.running():
        run.sql()
        run.contrib()
        run.isolation()
    assert run.run_files > 200
    verify_redo(f"{name}-postgres-tests", server, start)
    pagectl.import_pgdata(start)
    pagectl.ingest(server.data / "pg_wal")
    pagectl.verify(server.data)
    # Several of these histories at once would be too much for a disk.
    server.destroy()
