"""A local disk that is much smaller than what is stored: it is a cache, and the bucket, elsewhere, has the rest."""

import json
import threading
import time

import pytest
from fixtures import lsn as lsns
from fixtures.attached import Attached, rel_of
from fixtures.pagectl import Pagectl
from fixtures.pagestream import get_page
from fixtures.small_disk import free_mib, small_disk
from fixtures.wait import wait_until

DISK_MIB = 128
SHORT_OF_ROOM = r"WARN.*(no space|no room|slowed|not evicted|No space|WAL does not come)"
BUCKET_IS_GONE = r"(WARN|ERROR).*(bucket|objects|upload|storage)"


@pytest.mark.parametrize("kind", ["directory", "weed"])
def test_a_small_disk_serves_a_large_store(kind, make_postgres, make_pageserver, make_store, work_dir, pagectl_binary,
                                           request):
    if kind != "directory" and not request.config.getoption("--both-stores"):
        pytest.skip("with --both-stores: make test-stores")
    pg = make_postgres(f"larger-{kind}", max_replication_slots=10).start()
    pg.bench_init(1)
    store = make_store(kind)
    with small_disk(work_dir, DISK_MIB) as disk:
        server = make_pageserver(
            f"small-{kind}",
            disk / "store",
            checkpoint_distance=4 << 20,
            **store.settings("small"),
            remote_storage_timeout="2s",
            remote_storage_retry_deadline="4s",
        )
        server.log = work_dir / "small.log"
        server.start().allow(SHORT_OF_ROOM, BUCKET_IS_GONE)
        try:
            attached = Attached(pg, server, server.attach(pg))
            grow(attached, disk, store)
            lose_the_bucket(attached, disk, store)
            attached.stop_and_compare()
            server.stop()
            scrub(pagectl_binary, server.workdir)
        finally:
            server.destroy()


def scrub(pagectl_binary, workdir):
    """Everything that is stored is whole, here and in the bucket."""
    report = json.loads(Pagectl(pagectl_binary, workdir).ok("--json", "scrub").stdout)
    assert report["sound"] and report["tenants"][0]["objects"] > 20, report
    tenant = {name: value for name, value in report["tenants"][0].items() if name != "findings"}
    print(f"scrub: {tenant}, {len(report['tenants'][0]['findings'])} findings")


def fill(pg, table, rows):
    pg.sql(
        f"CREATE TABLE {table} AS SELECT g AS id, md5(g::text) || md5((g + 1)::text) || repeat(md5(g::text), 13) AS v "
        f"FROM generate_series(1, {rows}) g"
    )


def pages_of(attached, count=60):
    pg, timeline = attached.postgres, attached.timeline
    accounts, at = rel_of(pg, "pgbench_accounts"), lsns.parse(timeline.last_record_lsn())
    return [(accounts, block, at) for block in range(count)]


def read(attached, pages):
    with attached.timeline.stream() as stream:
        return [stream.ask(get_page(rel, block, at, 1)) for rel, block, at in pages]


class Watch:
    """Looks at the disk while something else happens."""

    def __init__(self, disk):
        self.disk, self.least, self.ended = disk, free_mib(disk), threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.ended.wait(0.05):
            self.least = min(self.least, free_mib(self.disk))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def grow(attached, disk, store):
    """More than the disk can hold goes through it; pages of long ago stay readable."""
    attached.catch_up()
    pages = pages_of(attached)
    before = read(attached, pages)
    with Watch(disk) as watch:
        for number in range(3):
            fill(attached.postgres, f"much{number}", 120_000)
            attached.catch_up(timeout=180)
            assert read(attached, pages) == before
    stored = sum(store.objects("small").values()) / (1 << 20)
    status = attached.pageserver.http.get("/v1/status")["disk"]
    print(f"{stored:.0f} MiB in the bucket, disk of {DISK_MIB} MiB, {watch.least:.1f} MiB free at least, {status}")
    assert stored > 1.3 * DISK_MIB
    assert watch.least > 0.5


def lose_the_bucket(attached, disk, store):
    """Without the bucket WAL is taken in while there is room and what ingest looks up is here. Nothing is lost."""
    pg, server, timeline = attached.postgres, attached.pageserver, attached.timeline
    with store.away():
        fill(pg, "more", 300_000)
        end = pg.sql("SELECT pg_current_wal_flush_lsn()")
        failure = lambda: timeline.info()["walreceiver_status"].get("last_error")
        error = wait_until(failure, 120, what="the intake stopped")
        time.sleep(12)
        stopped_at = lsns.parse(timeline.last_record_lsn())
        assert stopped_at < lsns.parse(end)
        print(f"stopped at {lsns.show(stopped_at)}: {error}")
        asked = f"get {store.settings('small')['remote_storage']}/"
        assert ("free disk" in error and "bucket" in error) or asked in error, error
        assert free_mib(disk) > 0.5 and server.is_running()
        assert lsns.parse(attached.slot()[1]) <= stopped_at
    began = time.monotonic()
    wait_until(lambda: lsns.parse(timeline.last_record_lsn()) >= lsns.parse(end), 180, what="the intake gone on")
    print(f"caught up {time.monotonic() - began:.1f} s after the bucket was back")
    attached.catch_up(timeout=120)
