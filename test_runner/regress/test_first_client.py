"""What a client of the first pageserver asks for: drivers with named prepared statements, a timeline's sizes, accesses
of layers, modes of I/O that are changed while the server runs."""

import asyncio
import io
import tarfile
import time

import asyncpg
import pytest

from fixtures.copies import boot, checksums
from fixtures.followed import SMALL_LAYERS, Followed, follow_new, rel_of
from fixtures.pagestream import get_page, nblocks
from fixtures.wait import wait_until


@pytest.fixture(scope="module")
def followed(make_postgres, make_pageserver) -> Followed:
    followed = follow_new(make_postgres, make_pageserver, "first", settings=SMALL_LAYERS)
    followed.postgres.bench(1000)
    followed.catch_up()
    return followed


def asked(followed: Followed, work):
    """The result of `work` with a connection of asyncpg, whose statements have names."""

    async def run():
        connection = await asyncpg.connect(host="127.0.0.1", port=followed.pageserver.pg_port, user="anybody",
                                           database="none", ssl=False)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


def test_named_statements(followed):
    timeline, lsn = followed.timeline, followed.catch_up()
    lease = f"lease lsn {timeline.tenant} {timeline.id} {lsn}"

    async def twice(connection):
        statement = await connection.prepare(lease)
        first = await statement.fetch()
        again = await statement.fetch()
        other = await connection.fetch(lease)
        with pytest.raises(asyncpg.PostgresError):
            await connection.fetch("no such command")
        # The connection goes on.
        return first, again, other, await statement.fetchval()

    first, again, other, value = asked(followed, twice)
    assert len(first) == len(again) == len(other) == 1 and value
    assert list(first[0].keys()) == ["valid_until"], first[0]


def data_bytes(pg) -> int:
    """Bytes of all relations, by the server's own count."""
    return int(pg.sql("SELECT sum(pg_database_size(oid)) + pg_tablespace_size('pg_global') FROM pg_database"))


def test_sizes_of_a_timeline(followed):
    http, timeline = followed.pageserver.http, followed.timeline
    followed.catch_up()
    info = http.get(f"{timeline.path}?force-await-initial-logical-size=true&include-non-incremental-logical-size=false")
    # Each database has a few small files besides its relations, and free space maps are not logged.
    expected = data_bytes(followed.postgres)
    assert 0.95 * expected < info["current_logical_size"] <= expected, (info["current_logical_size"], expected)
    assert info["current_logical_size"] % 8192 == 0
    databases, prepared, forks, files, clog, members, offsets = info["directory_entries_counts"]
    assert databases == int(followed.postgres.sql("SELECT count(*) + 1 FROM pg_database")) and forks > 500
    assert (prepared, files) == (0, 0) and min(clog, members, offsets) >= 1
    assert info["pitr_history_size"] > 1_000_000 and info["within_ancestor_pitr"] is False
    assert info["remote_consistent_lsn_visible"] == info["remote_consistent_lsn"]
    assert info["walreceiver_status"].startswith(info["walreceiver"]["state"])
    branch = timeline.branch(timeline.last_record_lsn())
    assert branch.info()["within_ancestor_pitr"] is True and branch.info()["walreceiver_status"] == ""
    # Without waiting it is known soon, and follows what is written.
    wait_until(lambda: branch.info()["current_logical_size_is_accurate"], what="the branch's size")
    assert branch.info()["current_logical_size"] == pytest.approx(info["current_logical_size"], rel=0.05)
    before = info["current_logical_size"]
    followed.postgres.sql("CREATE TABLE more AS SELECT g, repeat('x', 1000) FROM generate_series(1, 8000) g")
    followed.catch_up()
    grown = lambda: timeline.info()["current_logical_size"] - before > 8_000_000
    wait_until(grown, 30, what="the size to follow")


def test_accesses_of_layers(followed):
    http, timeline = followed.pageserver.http, followed.timeline
    http.put(f"{timeline.path}/checkpoint")
    began = time.time() * 1000
    with timeline.stream() as stream:
        accounts = rel_of(followed.postgres, "pgbench_accounts")
        assert all(any(stream.ask(get_page(accounts, block))) for block in range(100))
    stats = [layer["access_stats"] for layer in http.get(f"{timeline.path}/layer")["historic_layers"]]
    assert all(one["visible"] is True and one["residence_time"] == one["access_time"] for one in stats)
    assert any(began - 1000 <= one["access_time"] <= time.time() * 1000 + 1000 for one in stats), stats


def test_modes_of_io_are_changed(followed):
    http = followed.pageserver.http
    accounts = rel_of(followed.postgres, "pgbench_accounts")

    def pages() -> list[bytes]:
        followed.postgres.bench(300)
        followed.catch_up()
        http.put(f"{followed.timeline.path}/checkpoint")
        with followed.timeline.stream() as stream:
            return [stream.ask(get_page(accounts, block)) for block in range(stream.ask(nblocks(accounts)))]

    for engine in ("std-fs", "tokio-epoll-uring"):
        assert http.put("/v1/io_engine", engine) is None
        for mode in ("buffered", "direct", "direct-rw"):
            assert http.put("/v1/io_mode", mode) is None
            found = pages()
            # The server may have made the table longer by pages that it has not used yet.
            assert sum(map(any, found)) >= len(found) - 64 > 1000
    http.refuse("PUT", "/v1/io_mode", "sideways", status=400, names=["direct-rw"])
    http.refuse("PUT", "/v1/io_engine", {"engine": "std-fs"}, status=400)


def test_base_backup_through_a_driver(followed, make_postgres):
    timeline, lsn = followed.timeline, followed.catch_up()

    async def backup(connection):
        out = io.BytesIO()
        # As `copy_from_query`, which would put SQL around the command.
        await connection._copy_out(f"fullbackup {timeline.tenant} {timeline.id} {lsn}", out, 60)
        return out.getvalue()

    tar = asked(followed, backup)
    assert "PG_VERSION" in tarfile.open(fileobj=io.BytesIO(tar)).getnames()
    copy = boot(make_postgres, "first-copy", tar)
    # In whatever order the server reads the tables.
    assert sorted(checksums(copy).splitlines()) == sorted(checksums(followed.postgres).splitlines())
