"""Compares every page after every record of Postgres' own tests: SQL regression, isolation, contrib; only a part of
these unless all versions are wanted."""

import pytest

from fixtures import redo, suites
from fixtures.servers import DEFAULT_MAJOR

# With images that serve only for comparison, and with images that replace pages.
SETTINGS = {
    "no-page-writes": {"full_page_writes": "off", "wal_compression": "on"},
    "page-writes": {"wal_level": "logical", "wal_compression": "on", "checksums": True},
}

# Each version of the quick suite uses one of the settings; this lists the one left out, by version.
LATER = {15: "no-page-writes", 18: "page-writes"}


@pytest.mark.slow
@pytest.mark.later("name", LATER)
@pytest.mark.parametrize("name", SETTINGS)
def test_postgres_own_tests_are_replayed(name, pg_major, make_postgres, pagectl, work_dir, verify_redo, all_versions):
    tests = suites.find_tests(pg_major if all_versions else DEFAULT_MAJOR)
    if tests is None:
        pytest.skip("the tests of Postgres are not here: run scripts/postgres_regress.sh")
    server = make_postgres(
        f"suites-{name}-{pg_major}", major=pg_major, max_connections=120, autovacuum="on",
        **{**redo.CHECK_IMAGES, **SETTINGS[name]},
    )
    with server.running():
        server.sql("SELECT 1")
    start = server.copy_stopped(work_dir / "start")
    run = suites.Suites(server, tests, suites.ALL if all_versions else suites.QUICK)
    with server.running():
        run.sql()
        run.contrib()
        run.isolation()
    assert run.run_files > (200 if all_versions else 15)
    verify_redo(f"{name}-postgres-tests", server, start)
    pagectl.import_pgdata(start)
    pagectl.ingest(server.data / "pg_wal")
    pagectl.verify(server.data)
    # Several of these histories at once would be too much for the disk.
    server.destroy()
