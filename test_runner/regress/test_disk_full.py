"""A full disk stops the intake of WAL, and nothing else; when there is room again, it resumes by itself."""

import time

from fixtures import lsn as lsns
from fixtures.followed import Followed, rel_of
from fixtures.pagestream import get_page, nblocks
from fixtures.small_disk import fill, free_mib, small_disk
from fixtures.wait import wait_until

NO_ROOM = r"(WARN|ERROR).*(No space|no space|ENOSPC|os error 28|disk is full|the local disk has no room)"


def test_a_full_disk_stops_the_intake_until_there_is_room(make_postgres, make_pageserver, work_dir, pagectl_binary):
    pg = make_postgres("outgrowing", max_replication_slots=10).start()
    pg.bench_init(1)
    with small_disk(work_dir, 320) as disk:
        server = make_pageserver("full", disk / "store", checkpoint_distance=4 << 20, remote_storage="none")
        server.log = work_dir / "full.log"
        server.start().allow(NO_ROOM)
        try:
            run_full(Followed(pg, server, server.follow(pg)), disk, pagectl_binary)
        finally:
            server.destroy()


def run_full(followed: Followed, disk, pagectl_binary):
    pg, server, timeline = followed.postgres, followed.pageserver, followed.timeline
    pg.bench(500)
    followed.catch_up()
    accounts = rel_of(pg, "pgbench_accounts")
    before = lsns.parse(timeline.last_record_lsn())
    with timeline.stream() as stream:
        pages = [stream.ask(get_page(accounts, block, before, 1)) for block in range(200)]
    ballast = fill(disk / "ballast", leave_mib=12)
    memory = server.memory_mib()
    # About 120 MiB of WAL, with room for only 12.
    pg.sql("CREATE TABLE much AS SELECT g AS id, repeat(md5(g::text), 15) AS v FROM generate_series(1, 200000) g")
    end = pg.sql("SELECT pg_current_wal_flush_lsn()")
    wait_until(lambda: free_mib(disk) < 5 or troubled(timeline), 60, what="the disk full")
    wait_until(lambda: troubled(timeline), 60, what="the intake stopped for lack of room")
    stopped_at = lsns.parse(timeline.last_record_lsn())
    assert stopped_at < lsns.parse(end)
    # Reads continue, of old and of the newest data; memory is bounded, though WAL keeps coming.
    pg.sql("INSERT INTO much SELECT * FROM much")
    with timeline.stream() as stream:
        for _ in range(5):
            assert [stream.ask(get_page(accounts, block, before, 1)) for block in range(200)] == pages
            assert stream.ask(nblocks(accounts)) > 0
            time.sleep(0.5)
    assert server.memory_mib() < memory + 200
    assert lsns.parse(followed.slot()[1]) <= lsns.parse(timeline.info()["disk_consistent_lsn"])
    assert server.is_running()
    # After a restart with the disk full, the server still serves.
    kill_and_start(server)
    with timeline.stream() as stream:
        assert stream.ask(get_page(accounts, 0, before, 1)) == pages[0]
    ballast.unlink()
    wait_until(
        lambda: lsns.parse(timeline.last_record_lsn()) > lsns.parse(end), 120, what="the intake gone on by itself"
    )
    followed.catch_up(timeout=120)
    followed.stop_and_verify(pagectl_binary)


def kill_and_start(server):
    server.kill()
    server.start()


def troubled(timeline) -> bool:
    """Whether the receiver, or the timeline, reports that there is no room."""
    info = timeline.info()
    text = f"{info['walreceiver'].get('last_error')} {info['state']}".lower()
    return any(words in text for words in ("space", "os error 28", "no room"))
