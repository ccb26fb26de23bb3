"""The tail of the journal in the bucket: what is lost with a server and the Postgres, both with their disks."""

import shutil
import time

from fixtures import lsn as lsns
from fixtures.followed import Followed, follow_new
from fixtures.killed import kill_postgres
from fixtures.pageserver import POSTGRES_IS_GONE, SLOT_IS_GONE
from fixtures.stored import wipe
from fixtures.wait import wait_until
from fixtures.load import load

INTERVAL = 1


def follow(make_postgres, make_pageserver, name: str, bucket, **settings) -> Followed:
    """Commits wait for the journal; nothing but its tail gets into the bucket for an hour."""
    settings = {"durability": "journal", "checkpoint_timeout": "1h", "bucket_tail_interval": f"{INTERVAL}s",
                "remote_storage": f"file://{bucket}", **settings}
    followed = follow_new(make_postgres, make_pageserver, name, settings=settings)
    followed.pageserver.allow(POSTGRES_IS_GONE, SLOT_IS_GONE)
    followed.catch_up()
    pg = followed.postgres
    pg.sql("CREATE TABLE acknowledged (i int PRIMARY KEY)")
    pg.configure(synchronous_standby_names="'pageserver'", synchronous_commit="on")
    pg.sql("SELECT pg_reload_conf()")
    wait_until(lambda: pg.sql("SELECT sync_state FROM pg_stat_replication") == "sync", 10, what="a synchronous standby")
    return followed


def tails(bucket) -> dict[str, tuple[int, int]]:
    """The objects of the tail, with where their WAL begins and ends."""
    # Without those that are being written.
    paths = (path for path in bucket.rglob("tail-*") if "#" not in path.name)
    found = {path: path.name.split("-") for path in paths}
    return {path: (int(start, 16), int(end, 16)) for path, (_, start, end, _) in found.items()}


def wait_shipped(bucket, lsn: str):
    reached = lsns.parse(lsn)
    wait_until(lambda: max((end for _, end in tails(bucket).values()), default=0) >= reached, 30, what="the tail")


def tail_requests(followed: Followed) -> float:
    metrics = followed.pageserver.http.metrics()
    return sum(value for name, value in metrics.items()
               if name.startswith("pageserver_remote_storage_requests_total") and 'class="tail"' in name)


def lose_both(followed: Followed):
    """The Postgres with its host, and the disk of the pageserver."""
    followed.pageserver.kill()
    kill_postgres(followed.postgres)
    shutil.rmtree(followed.postgres.data)
    wipe(followed.pageserver)


def test_the_loss_of_both_disks_loses_no_more_than_the_interval(make_postgres, make_pageserver, make_computes,
                                                                 tmp_path):
    bucket = tmp_path / "bucket"
    followed = follow(make_postgres, make_pageserver, "tail", bucket)
    pg, server = followed.postgres, followed.pageserver
    acknowledged = []
    with load(pg):
        for row in range(1, 2001):
            pg.sql(f"INSERT INTO acknowledged VALUES ({row})")
            acknowledged.append(time.monotonic())
            if len(acknowledged) > 100 and acknowledged[-1] - acknowledged[0] > 4 * INTERVAL:
                break
        killed = time.monotonic()
        server.kill()
    lose_both(followed)
    shipped = sum(end - start for start, end in tails(bucket).values())
    server.start()
    info = followed.timeline.info()
    assert lsns.parse(info["last_record_lsn"]) > 0 and shipped > 0
    compute = make_computes(server).start("heir", "--branch", "tail", "--copy")
    rows, first, last = (int(field) for field in
                         compute.sql("SELECT count(*), min(i), max(i) FROM acknowledged").split("|"))
    # Without a gap, and what a whole interval and a write had time for.
    assert (first, last) == (1, rows)
    safe = sum(1 for at in acknowledged if at < killed - 2 * INTERVAL - 1)
    assert 0 < safe <= rows <= len(acknowledged), (safe, rows, len(acknowledged))
    balanced = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)"
    assert compute.sql(balanced) == "t"
    compute.stop()
    print(f"{rows} of {len(acknowledged)} acknowledged rows are there, {shipped} bytes were shipped")


def test_what_was_shipped_survives_byte_by_byte(make_postgres, make_pageserver, pagectl_binary, tmp_path):
    """Twice in a row, so that what was taken in once is not lost with the next disk."""
    bucket = tmp_path / "bucket"
    followed = follow(make_postgres, make_pageserver, "bytes", bucket)
    pg, server = followed.postgres, followed.pageserver
    pg.bench(1000)
    pg.configure(synchronous_standby_names="''")
    pg.sql("SELECT pg_reload_conf()")
    lsn = followed.stop_postgres()
    wait_shipped(bucket, lsn)
    assert lsns.parse(followed.timeline.info()["remote_consistent_lsn"]) < lsns.parse(lsn)
    for _ in range(2):
        server.kill()
        wipe(server)
        server.start()
        followed.assert_files_equal(lsn)


def test_objects_go_once_layers_have_them_and_idle_tenants_make_no_request(make_postgres, make_pageserver, tmp_path):
    bucket = tmp_path / "bucket"
    followed = follow(make_postgres, make_pageserver, "goes", bucket)
    pg, server = followed.postgres, followed.pageserver
    pg.bench(500)
    pg.sql("SELECT pg_switch_wal()")
    said = followed.catch_up()
    wait_shipped(bucket, said)
    assert len(tails(bucket)) > 0
    # Autovacuum or a checkpoint of the server may still write.
    pg.configure(autovacuum="off")
    pg.sql("SELECT pg_reload_conf(); CHECKPOINT")
    pg.sql("SELECT pg_switch_wal()")
    wait_shipped(bucket, followed.catch_up())
    server.http.put(f"{followed.timeline.path}/checkpoint")
    wait_until(lambda: len(tails(bucket)) <= 1, 60, what="objects that layers have to go")

    def is_quiet():
        before = tail_requests(followed)
        time.sleep(3 * INTERVAL)
        return tail_requests(followed) == before

    wait_until(is_quiet, 60, what="no requests of an idle tenant")
    assert server.http.metrics()["pageserver_tail_objects_total"] > 0


def test_a_damaged_object_ends_what_is_taken_in(make_postgres, make_pageserver, tmp_path):
    bucket = tmp_path / "bucket"
    followed = follow(make_postgres, make_pageserver, "damaged", bucket)
    pg, server = followed.postgres, followed.pageserver
    pg.sql("INSERT INTO acknowledged SELECT generate_series(1, 5000)")
    wait_shipped(bucket, pg.sql("SELECT pg_current_wal_flush_lsn()"))
    ends = [pg.sql("SELECT pg_current_wal_flush_lsn()")]
    pg.sql("INSERT INTO acknowledged SELECT generate_series(5001, 10000)")
    wait_shipped(bucket, pg.sql("SELECT pg_current_wal_flush_lsn()"))
    lose_both(followed)
    last = max(tails(bucket), key=lambda path: tails(bucket)[path])
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    server.allow("is damaged, and what follows it is not taken in")
    server.start()
    reached = lsns.parse(followed.timeline.info()["last_record_lsn"])
    assert lsns.parse(ends[0]) - 20_000 <= reached <= tails(bucket)[last][0] + 20_000
