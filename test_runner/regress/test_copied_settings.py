"""Backups and computes have the settings of the cluster, as far as these make sense elsewhere."""

import pytest

from fixtures.followed import Followed
from fixtures.copies import boot, fetch
from fixtures.pageserver import POSTGRES_IS_GONE

# Settings of postgresql.conf: some that are copied, and some that would do harm or hold a secret.
CONF = {
    "shared_preload_libraries": "'auto_explain'",
    "auto_explain.log_min_duration": "'3s'",
    "my.own": r"'it''s \\ here'",
    "timezone": "'Asia/Tokyo'",
    "work_mem": "'5MB'",
    "archive_mode": "on",
    "archive_command": "'false'",
    "primary_conninfo": "'host=nowhere password=verysecret'",
    "log_directory": "'/nowhere'",
    "max_slot_wal_keep_size": "'1MB'",
    "max_replication_slots": "17",
}

ALTERED = {
    "work_mem": "77MB",
    "statement_timeout": "0",
    "random_page_cost": "1.5",
    "synchronous_standby_names": "",
    "hot_standby": "off",
    "max_connections": "60",
    "auto_explain.log_format": "json",
}

EXPECTED = {
    "shared_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "3s",
    "TimeZone": "Asia/Tokyo",
    "work_mem": "77MB",
    "random_page_cost": "1.5",
    "auto_explain.log_format": "json",
    "my.own": "it's \\ here",
    "max_replication_slots": "17",
    "archive_mode": "off",
    "primary_conninfo": "",
    "log_directory": "log",
    "max_slot_wal_keep_size": "-1",
    "hot_standby": "on",
    # Changed after the import, which is visible in the WAL.
    "max_connections": "70",
}


@pytest.fixture
def followed(pg_major, make_postgres, make_pageserver) -> Followed:
    pg = make_postgres(f"settings{pg_major}", major=pg_major, **CONF).start()
    for name, value in ALTERED.items():
        quoted = value.replace("'", "''")
        pg.sql(f"ALTER SYSTEM SET {name} = '{quoted}'")
    server = make_pageserver(f"settings{pg_major}").start().allow(POSTGRES_IS_GONE)
    followed = Followed(pg, server, server.follow(pg))
    pg.sql("ALTER SYSTEM SET max_connections = 70")
    pg.stop()
    pg.start()
    followed.wait_for_receiver("streaming")
    followed.catch_up()
    return followed


def test_copies_have_the_settings_that_make_sense_elsewhere(pg_major, followed, make_postgres, make_computes):
    archive = fetch(followed.timeline, "fullbackup")
    assert b"verysecret" not in archive and b"nowhere" not in archive
    for copy in (
        boot(make_postgres, f"settings-copy{pg_major}", archive, pg_major),
        make_computes(followed.pageserver).start("dev", "--branch", f"dev{pg_major}"),
    ):
        assert {name: copy.sql(f"SHOW {name}") for name in EXPECTED} == EXPECTED
        # The copy can reset what the cluster had set.
        copy.sql("ALTER SYSTEM RESET work_mem; SELECT pg_reload_conf()")
        assert "work_mem" not in (copy.data / "postgresql.auto.conf").read_text()
        copy.stop()


def test_a_compute_does_without_a_library_that_is_not_here(make_postgres, make_pageserver, make_computes):
    pg = make_postgres("library").start()
    # Pretends that the library was installed there.
    pg.sql("ALTER SYSTEM SET work_mem = '9MB'")
    conf = pg.data / "postgresql.auto.conf"
    conf.write_text(conf.read_text() + "shared_preload_libraries = 'of_another_machine'\n")
    server = make_pageserver("library").start()
    followed = Followed(pg, server, server.follow(pg))
    computes = make_computes(followed.pageserver)
    computes.refuse("start", "dev", "--branch", "dev", names='could not access file "of_another_machine"')
    computes.pagectl("compute", "destroy", "dev", "--force")
    without = computes.start("other", "--branch", "other", "--set", "shared_preload_libraries=")
    assert without.sql("SHOW work_mem") == "9MB"
