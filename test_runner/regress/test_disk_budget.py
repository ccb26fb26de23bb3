"""A local disk that is much smaller than what is stored: it is a cache, and the bucket, elsewhere, has the rest."""

import json
import re
import threading
import time

import pytest
from fixtures import lsn as lsns
from fixtures.followed import Followed, rel_of
from fixtures.pagectl import Pagectl
from fixtures.pageserver import connection_string
from fixtures.pagestream import get_page
from fixtures.retention import follow
from fixtures.small_disk import free_mib, small_disk
from fixtures.stored import all_stored, disk_usage, wipe
from fixtures.wait import wait_until

DISK_MIB = 128
LAYER_OBJECT = re.compile(r"[0-9A-F]{36}-[0-9A-F]{36}__")
SHORT_OF_ROOM = r"WARN.*(no space|no room|slowed|not evicted|No space|WAL does not come)"
BUCKET_IS_GONE = r"(WARN|ERROR).*(bucket|objects|upload|storage)"


@pytest.mark.parametrize("kind", ["directory", "weed"])
def test_a_small_disk_serves_a_large_store(kind, make_postgres, make_pageserver, make_store, work_dir, pagectl_binary,
                                           request):
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
            followed = Followed(pg, server, server.follow(pg))
            grow(followed, disk, store)
            if kind == "directory" or request.config.getoption("--both-stores"):
                lose_the_bucket(followed, disk, store)
            followed.stop_and_compare()
            settle(followed.timeline, store)
            server.stop()
            scrub(pagectl_binary, server.workdir, store)
        finally:
            server.destroy()


def test_layers_stay_small_enough_to_be_sorted(make_postgres, make_pageserver, make_store):
    """With the default `checkpoint_distance`, which is larger than the disk."""
    store = make_store("directory")
    settings = {**store.settings("sortable"), "disk_budget": 64 << 20, "compaction_threshold": 2}
    followed = follow(make_postgres, make_pageserver, "sortable", **settings)
    timeline = followed.timeline
    followed.pageserver.allow(SHORT_OF_ROOM)
    followed.postgres.sql("CREATE TABLE many (id bigint, filler text)")
    for number in range(3):
        # 30 MiB of WAL each.
        followed.postgres.sql(f"INSERT INTO many SELECT g, repeat(md5(({number} * g)::text), 8) "
                              "FROM generate_series(1, 90000) g")
        followed.catch_up()
    timeline.server.http.put(f"{timeline.path}/checkpoint")
    timeline.server.http.put(f"{timeline.path}/compact")
    info = timeline.info()
    assert info["l0_layer_count"] < 2 and info["compaction_error"] is None, info
    assert info["compaction"]["sort"]["jobs"] > 0, info
    followed.stop_and_compare()


BUDGET = 48 << 20
IMPORT_FAILS = r"WARN.*(cannot follow the server|no more is taken in)"


@pytest.fixture
def larger_server(make_postgres, request):
    """A server with some 70 MiB of incompressible data."""
    kind = request.node.callspec.params["kind"] if hasattr(request.node, "callspec") else "alone"
    pg = make_postgres(f"than-budget-{kind}", max_replication_slots=10).start()
    pg.bench_init(1)
    chaos = " || ".join(f"md5((g * 16 + {part})::text)" for part in range(16))
    pg.sql(f"CREATE TABLE chaos AS SELECT g AS id, {chaos} AS v FROM generate_series(1, 240000) g")
    pg.sql("CHECKPOINT")
    return pg


@pytest.mark.parametrize("kind", ["directory", "weed"])
def test_a_server_that_is_larger_than_the_budget_is_followed(kind, larger_server, make_pageserver, make_store):
    """Layers of the copy go to the bucket while the rest of it arrives, and make room for it."""
    store = make_store(kind)
    server = make_pageserver(f"through-{kind}", disk_budget=BUDGET, checkpoint_distance=2 << 20,
                             **store.settings("through")).start()
    server.allow(SHORT_OF_ROOM)
    with Watch(lambda: -disk_usage(server.workdir)) as watch:
        followed = Followed(larger_server, server, server.follow(larger_server))
    stored, most = sum(store.objects("through").values()) >> 20, -watch.least >> 20
    print(f"{kind}: {stored} MiB in the bucket, at most {most} MiB on disk of {BUDGET >> 20}")
    assert stored > 1.2 * (BUDGET >> 20) and most <= 1.1 * (BUDGET >> 20)
    larger_server.bench(200)
    lsn = all_stored(followed)
    followed.assert_files_equal(lsn)
    server.stop()
    wipe(server)
    server.start()
    print(f"{followed.assert_files_equal(lsn).equal} pages equal after the disk was lost")


def test_a_copy_that_cannot_fit_is_refused_and_leaves_nothing(larger_server, make_pageserver):
    server = make_pageserver("alone", disk_budget=BUDGET, remote_storage="none").start()
    server.allow(SHORT_OF_ROOM, IMPORT_FAILS)
    with Watch(lambda: -disk_usage(server.workdir)) as watch:
        timeline = server.start_follow(connection_string(larger_server))
        failed = lambda: server.follow_status(timeline)["phase"] == "failed"
        wait_until(failed, 120, what="the refusal")
    said, most = server.follow_status(timeline)["error"], -watch.least >> 20
    print(f"{said}; at most {most} MiB on disk of {BUDGET >> 20}")
    assert "does not fit" in said and "disk_budget" in said, said
    assert most <= 1.1 * (BUDGET >> 20) and disk_usage(server.workdir) < 1 << 20
    assert larger_server.sql("SELECT count(*) FROM pg_replication_slots") == "0"


def layers_of(store):
    return [name for name in store.objects("small") if LAYER_OBJECT.search(name)]


def settle(timeline, store):
    """Compaction has ended, and the objects of the layers that it has replaced are gone."""
    def unsettled():
        info = timeline.info()
        layers = timeline.server.http.get(f"{timeline.path}/layer")["historic_layers"]
        named, objects = ({name.rpartition("/")[2] for name in names}
                          for names in [(layer["layer_file_name"] for layer in layers), layers_of(store)])
        if info["condition"]["state"] == "running" or objects != named:
            return {"condition": info["condition"], "only in the bucket": objects - named, "not there": named - objects}
        return None

    try:
        wait_until(lambda: unsettled() is None, 120, every=0.5, what="just the layers that are named in the bucket")
    except AssertionError as error:
        raise AssertionError(f"{error}: {unsettled()}") from error


def scrub(pagectl_binary, workdir, store):
    """Everything stored is intact, here and in the bucket. It is read in full: more than the disk can hold."""
    report = json.loads(Pagectl(pagectl_binary, workdir).ok("--json", "scrub").stdout)
    (tenant,) = report["tenants"]
    layers = layers_of(store)
    print(f"scrub: {tenant}, {len(layers)} layers in the bucket")
    assert report["sound"] and tenant["bytes"] > 1.3 * (DISK_MIB << 20), report
    assert layers and tenant["objects"] >= len(layers), (report, layers)


def fill(pg, table, rows):
    pg.sql(
        f"CREATE TABLE {table} AS SELECT g AS id, md5(g::text) || md5((g + 1)::text) || repeat(md5(g::text), 13) AS v "
        f"FROM generate_series(1, {rows}) g"
    )


def pages_of(followed, count=60):
    pg, timeline = followed.postgres, followed.timeline
    accounts, at = rel_of(pg, "pgbench_accounts"), lsns.parse(timeline.last_record_lsn())
    return [(accounts, block, at) for block in range(count)]


def read(followed, pages):
    with followed.timeline.stream() as stream:
        return [stream.ask(get_page(rel, block, at, 1)) for rel, block, at in pages]


class Watch:
    """Tracks the minimum of a figure, such as free disk space, while something else happens."""

    def __init__(self, figure):
        self.figure, self.least, self.ended = figure, figure(), threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.ended.wait(0.05):
            self.least = min(self.least, self.figure())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def grow(followed, disk, store):
    """More than the disk can hold goes through it; old pages stay readable."""
    followed.catch_up()
    pages = pages_of(followed)
    before = read(followed, pages)
    with Watch(lambda: free_mib(disk)) as watch:
        for number in range(3):
            fill(followed.postgres, f"much{number}", 120_000)
            followed.catch_up(timeout=180)
            assert read(followed, pages) == before
    # The newest data may still be on its way.
    in_bucket = lambda: sum(store.objects("small").values()) / (1 << 20)
    wait_until(lambda: in_bucket() > 1.3 * DISK_MIB, 60, what="more in the bucket than the disk can hold")
    status = followed.pageserver.http.get("/v1/status")["disk"]
    print(f"{in_bucket():.0f} MiB in the bucket, disk of {DISK_MIB} MiB, {watch.least:.1f} MiB free at least, {status}")
    assert watch.least > 0.5


def lose_the_bucket(followed, disk, store):
    """Without the bucket, WAL is taken in while there is room and the pages that ingest looks up are local. Nothing is
    lost."""
    pg, server, timeline = followed.postgres, followed.pageserver, followed.timeline
    with store.away():
        fill(pg, "more", 300_000)
        end = pg.sql("SELECT pg_current_wal_flush_lsn()")
        failure = lambda: timeline.info()["walreceiver"].get("last_error")
        error = wait_until(failure, 120, what="the intake stopped")
        time.sleep(12)
        stopped_at = lsns.parse(timeline.last_record_lsn())
        assert stopped_at < lsns.parse(end)
        print(f"stopped at {lsns.show(stopped_at)}: {error}")
        asked = f"get {store.settings('small')['remote_storage']}/"
        assert ("free disk" in error and "bucket" in error) or asked in error, error
        assert free_mib(disk) > 0.5 and server.is_running()
        assert lsns.parse(followed.slot()[1]) <= stopped_at
    began = time.monotonic()
    wait_until(lambda: lsns.parse(timeline.last_record_lsn()) >= lsns.parse(end), 180, what="the intake gone on")
    print(f"caught up {time.monotonic() - began:.1f} s after the bucket was back")
    followed.catch_up(timeout=120)
