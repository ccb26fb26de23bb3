"""The answers of the page service, byte by byte, checked by a client that shares no code with it."""

import time

import pytest

from fixtures import lsn as lsns
from fixtures import workload
from fixtures.followed import follow_new, rel_of
from fixtures.libpq import ServerError
from fixtures.pagestream import (
    LATEST, PAGE, Refused, Rel, db_size, exists, get_page, nblocks, slru_segment,
)
from fixtures.pageserver import new_id

VERSIONS = [2, 3]


@pytest.fixture(scope="module")
def followed(make_postgres, make_pageserver):
    """A quiet server: all tests of this module may rely on the contents of its tables."""
    followed = follow_new(make_postgres, make_pageserver, "pages", settings={"wait_lsn_timeout": "2s"})
    followed.postgres.sql("CREATE TABLE kept AS SELECT g AS id, repeat('k', 500) AS v FROM generate_series(1, 3000) g")
    followed.postgres.sql("CREATE TABLE vacuumed AS SELECT g AS id FROM generate_series(1, 3000) g; VACUUM vacuumed")
    followed.postgres.sql("CREATE TABLE empty (id int)")
    followed.postgres.sql("CREATE UNLOGGED TABLE unlogged AS SELECT g AS id FROM generate_series(1, 3000) g")
    workload.multixacts(followed.postgres)
    followed.postgres.sql("CHECKPOINT")
    followed.catch_up()
    return followed


@pytest.mark.parametrize("version", VERSIONS)
def test_sizes_are_the_servers(followed, version):
    pg = followed.postgres
    tables = ["kept", "vacuumed", "pgbench_accounts", "pgbench_accounts_pkey", "empty", "pg_class", "pg_proc"]
    with followed.timeline.stream(version) as stream:
        for table in tables:
            for fork, name in enumerate(["main", "vm"]):
                rel = rel_of(pg, table, fork and 2)
                size = int(pg.sql(f"SELECT pg_relation_size('{table}', '{name}')"))
                assert stream.ask(nblocks(rel)) * PAGE == size, f"{table} {name}"
        assert stream.ask(exists(rel_of(pg, "kept")))
        assert stream.ask(exists(rel_of(pg, "empty")))
        assert stream.ask(exists(rel_of(pg, "vacuumed", 2)))
        assert not stream.ask(exists(Rel(1663, 5, 4_000_000)))
        # Only the init fork of unlogged tables is stored, and it has no heap pages.
        assert stream.ask(exists(rel_of(pg, "unlogged", 3)))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_size_of_a_database_is_that_of_its_relations(followed, version):
    pg = followed.postgres
    db = int(pg.sql("SELECT oid FROM pg_database WHERE datname = 'postgres'"))
    # Everything in the database that WAL determines: this excludes free space maps and unlogged tables.
    size = int(pg.sql(
        "SELECT sum(pg_relation_size(oid, 'main') + pg_relation_size(oid, 'vm')) FROM pg_class "
        "WHERE pg_relation_filenode(oid) IS NOT NULL AND NOT relisshared AND relpersistence = 'p'"
    ))
    with followed.timeline.stream(version) as stream:
        answer = stream.ask(db_size(db))
        assert size <= answer <= size * 1.1, "only free space maps come on top"
        assert stream.ask(db_size(4_000_000)) == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_slru_segments_are_the_servers(followed, version):
    pg = followed.postgres
    with followed.timeline.stream(version) as stream:
        for kind in ("pg_xact", "pg_multixact/members", "pg_multixact/offsets"):
            # The checkpoint has written the pages out, and nothing has happened since.
            file = (pg.data / kind / "0000").read_bytes()
            assert stream.ask(slru_segment(kind, 0)) == file, kind
        text = stream.refusal(slru_segment("pg_xact", 0x1234))
        assert "has no version" in text or "could not find data for key" in text, text


@pytest.mark.parametrize("version", VERSIONS)
def test_beyond_the_end_pages_are_zeros_and_absent_maps_are_empty(followed, version):
    pg = followed.postgres
    kept = rel_of(pg, "kept")
    with followed.timeline.stream(version) as stream:
        blocks = stream.ask(nblocks(kept))
        assert any(stream.ask(get_page(kept, blocks - 1)))
        for block in (blocks, blocks + 1, blocks + 1_000_000, 2**32 - 2):
            assert not any(stream.ask(get_page(kept, block))), block
        for fork in (1, 2):
            assert stream.ask(nblocks(Rel(1663, kept.db, 4_000_000, fork))) == 0
        absent = Rel(1663, kept.db, 4_000_000)
        for request in (nblocks(absent), get_page(absent, 0)):
            assert "could not find data for key" in stream.refusal(request)
        assert any(stream.ask(get_page(kept, 0))), "the stream goes on after errors"


@pytest.mark.parametrize("version", VERSIONS)
def test_lsn_rules(followed, version):
    kept = rel_of(followed.postgres, "kept")
    last = lsns.parse(followed.timeline.last_record_lsn())
    with followed.timeline.stream(version) as stream:
        page = stream.ask(get_page(kept, 3))
        assert stream.ask(get_page(kept, 3, last, last)) == page
        assert stream.ask(get_page(kept, 3, LATEST, last)) == page
        assert stream.ask(get_page(kept, 3, last + 0x1000000, last)) == page, "what is later and unchanged is there"
        text = stream.refusal(get_page(kept, 3, last - 8, last))
        low, high = lsns.show(last - 8), lsns.show(last)
        assert text == f"invalid request with request LSN {low} and not_modified_since {high}"
        assert stream.refusal(get_page(kept, 3, 0, 0)) == "invalid LSN(0) in request"
        before = stream.refusal(get_page(kept, 3, 0x28, 0x10))
        assert "consistent" in before, before
        # No WAL arrives, so the wait ends with an error that names what is missing.
        began = time.monotonic()
        missing = last + 0x100000
        text = stream.refusal(get_page(kept, 3, LATEST, missing))
        assert 1.5 < time.monotonic() - began < 20
        assert lsns.show(missing) in text, text
        assert stream.ask(get_page(kept, 3)) == page


def test_a_request_waits_for_its_wal(followed):
    pg = followed.postgres
    pg.sql("CREATE TABLE IF NOT EXISTS growing (id int)")
    with followed.timeline.stream() as stream:
        for number in range(20):
            pg.sql(f"INSERT INTO growing SELECT generate_series(1, 1000) -- {number}")
            lsn = lsns.parse(pg.sql("SELECT pg_current_wal_insert_lsn()"))
            size = int(pg.sql("SELECT pg_relation_size('growing')"))
            assert stream.ask(nblocks(rel_of(pg, "growing"), LATEST, lsn)) * PAGE == size


@pytest.mark.parametrize("version", VERSIONS)
def test_sixty_four_requests_under_way_are_answered_in_order(followed, version):
    kept = rel_of(followed.postgres, "kept")
    with followed.timeline.stream(version) as stream:
        blocks = stream.ask(nblocks(kept))
        one_by_one = [stream.ask(get_page(kept, block)) for block in range(blocks)]
        assert len(set(one_by_one)) == blocks, "all pages differ, so an exchange would be seen"
        assert list(stream.pipelined((get_page(kept, block) for block in range(blocks)), depth=64)) == one_by_one
        # All kinds of request mixed, with errors among them, all sent at once.
        absent = Rel(1663, kept.db, 4_000_000)
        mixed = [get_page(kept, n % blocks) if n % 5 else nblocks(kept if n % 10 else absent) for n in range(64)]
        stream.send(*mixed)
        for number in range(64):
            if number % 10 == 0:
                with pytest.raises(Refused):
                    stream.receive()
            elif number % 5 == 0:
                assert stream.receive() == blocks
            else:
                assert stream.receive() == one_by_one[number % blocks]
        # The same page many times, at two LSNs, in one batch.
        last = lsns.parse(followed.timeline.last_record_lsn())
        stream.send(*(get_page(kept, 5, LATEST if n % 2 else last) for n in range(64)))
        assert all(stream.receive() == one_by_one[5] for _ in range(64))


def test_requests_that_arrive_in_pieces(followed):
    kept = rel_of(followed.postgres, "kept")
    with followed.timeline.stream() as stream:
        expected = stream.ask(get_page(kept, 1))
        data = b"".join(stream.frame(get_page(kept, 1)) for _ in range(3))
        for at in range(0, len(data), 7):
            stream.connection.send(data[at : at + 7])
            time.sleep(0.002)
        assert [stream.receive() for _ in range(3)] == [expected] * 3


def test_unknown_timelines_are_not_found_and_the_connection_goes_on(followed):
    tenant, timeline = followed.timeline.tenant, followed.timeline.id
    with followed.pageserver.connect() as connection:
        for ids in ((tenant, new_id()), (new_id(), timeline)):
            for command in ("pagestream_v2", "pagestream_v3", "basebackup", "fullbackup"):
                with pytest.raises(ServerError, match="not found"):
                    connection.rows(f"{command} {ids[0]} {ids[1]}")
        assert connection.rows("SET datestyle TO 'ISO'") == connection.rows("") == connection.rows(" ; ") == []


def test_leases_are_given_for_lsns_that_can_be_read(followed):
    timeline = followed.timeline
    last = timeline.last_record_lsn()
    with followed.pageserver.connect() as connection:
        [[until]] = connection.rows(f"lease lsn {timeline.tenant} {timeline.id} {last}")
        assert time.time() * 1000 < int(until) < time.time() * 1000 + 3_600_000
        [[refused]] = connection.rows(f"LEASE LSN {timeline.tenant} {timeline.id} 0/28")
        assert refused is None


@pytest.mark.parametrize("commands", [
    ["select 1"],
    ["pagestream_v1 {t} {l}"],
    ["pagestream_v3", "pagestream_v3 {t}", "pagestream_v3 {t} {l} 0/1"],
    ["pagestream_v3 x {l}", "pagestream_v3 {t} " + "g" * 32, "pagestream_v3 {t}-0102 {l}"],
    ["basebackup {t} {l} 0/1 --gzip --gzip", "basebackup {t} {l} --fast", "basebackup {t} {l} 1/2/3"],
    ["fullbackup {t} {l} 0/1 x", "fullbackup {t} {l} 100000000/0", "fullbackup"],
    ["lease lsn {t} {l}", "lease lsn {t} {l} -1/0", "lease {t} {l} 0/1"],
    ["basebackup {t} {l} 0/28"],
])
def test_malformed_commands_are_refused_and_the_connection_goes_on(followed, commands):
    ids = {"t": followed.timeline.tenant, "l": followed.timeline.id}
    with followed.pageserver.connect() as connection:
        for command in commands:
            with pytest.raises(ServerError) as error:
                connection.rows(command.format(**ids))
                pytest.fail(f"{command!r} is taken")
            assert error.value.severity == "ERROR" and error.value.message, command
        assert connection.rows("set x to y") == []
