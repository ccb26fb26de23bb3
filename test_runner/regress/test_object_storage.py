"""The bucket is the truth: a local disk may be lost, a bucket may be away, and any process may end at any moment."""

import os
import random
import re
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fixtures import lsn as lsns
from fixtures.followed import follow_new, rel_of
from fixtures.http import HttpError
from fixtures.load import load
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.pagestream import Refused, get_page, nblocks
from fixtures.programs import REPOSITORY
from fixtures.s3 import BUCKET, KEY, SECRET, STORE_IS_AWAY, UPLOADS_WAIT
from fixtures.stored import QUICK, all_stored, disk_usage, wait_uploaded, wipe
from fixtures.wait import wait_until

SEED = 20261121

every_store = pytest.mark.parametrize("kind", ["directory", "weed", "moto"])


@pytest.fixture
def followed_by(make_postgres, make_pageserver, make_store):
    """Follows a Postgres with a pageserver whose bucket is of some kind. None of them outlives its test: the next one
    may take the bucket away from all its users."""
    made = []

    def make(kind: str, name: str, **settings):
        store = make_store(kind)
        followed = follow_new(
            make_postgres, make_pageserver, f"{name}-{kind}", settings={**QUICK, **store.settings(name), **settings}
        )
        made.append(followed)
        first = lambda: followed.timeline.info()["remote_consistent_lsn"]
        wait_until(first, 60, what="the import in the store")
        return followed, store

    yield make
    for followed in made:
        if followed.pageserver.is_running():
            followed.pageserver.stop()
        if followed.postgres.is_running():
            followed.postgres.stop()


# The engine's suites over a bucket; and a part of them: repairing a bucket, and a fault in each operation.
ENGINE_SUITES = [(["remote_faults", "remote_requests", "remote_scrub", "remote_tenants"], [], {})]
ENGINE_SHARE = [(["remote_scrub"], ["heal::"], {}), (["remote_faults"], [], {"TEST_FAULT_ONLY": "ErrorAfter"})]


@pytest.mark.slow
def test_the_engines_own_tests_over_a_real_server(make_store, request):
    """Runs the engine's own tests against S3; the existing build is used, with shorter runs."""
    store = make_store("weed")
    env = {
        **os.environ, "TEST_REMOTE_STORAGE": f"s3://{BUCKET}/faults", "TEST_REMOTE_STORAGE_ENDPOINT": store.endpoint(),
        "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
        "TEST_FAULT_OPERATIONS": str(request.config.getoption("--store-operations")),
    }
    for suites, names, only in ENGINE_SUITES if request.config.getoption("--both-stores") else ENGINE_SHARE:
        run_engine_suites(suites, names, {**env, **only})


def run_engine_suites(suites, names, env):
    # Builds the whole workspace, so that nothing is built that `make test` has not built.
    build = ["cargo", "test", "--locked", "--workspace", "--profile", "tested"]
    command = [*build, *(f"--test={suite}" for suite in suites), "--", "--nocapture", *names]
    done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=5000)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    ran = sum(map(int, re.findall(r"test result: ok\. (\d+) passed", done.stdout)))
    assert ran > 0, done.stdout[-5000:]
    counted = ("combinations", "races", "faults", "crashes", "healed", "test result")
    print("\n".join(line for line in done.stdout.splitlines() if any(word in line for word in counted)))


@every_store
def test_a_lost_disk_loses_nothing(kind, followed_by):
    followed, store = followed_by(kind, "lost")
    followed.postgres.bench(2000)
    branch = None
    for _ in range(2):
        followed.postgres.bench(500)
        followed.catch_up()
        branch = followed.timeline.branch()
    lsn = all_stored(followed)
    local = followed.assert_files_equal(lsn).equal
    followed.pageserver.stop()
    wipe(followed.pageserver)
    began = time.monotonic()
    followed.pageserver.start()
    with followed.timeline.stream() as stream:
        assert stream.ask(nblocks(rel_of_stopped(followed, "pgbench_accounts"))) > 0
    first = time.monotonic() - began
    again = followed.assert_files_equal(lsn).equal
    assert again == local
    with followed.pageserver.timeline(followed.timeline.tenant, branch.id).stream() as stream:
        assert stream.ask(nblocks(rel_of_stopped(followed, "pgbench_accounts"))) > 0
    names = store.objects("lost")
    print(f"{kind}: {again} pages equal after the disk was lost, first answer after {first:.1f} s, "
          f"{len(names)} objects with {sum(names.values()) >> 20} MiB")


def rel_of_stopped(followed, table: str):
    """The table's relation, remembered from before the stop."""
    known = followed.__dict__.setdefault("relations", {})
    if followed.postgres.is_running():
        known[table] = rel_of(followed.postgres, table)
    if table not in known:
        with followed.postgres.running():
            known[table] = rel_of(followed.postgres, table)
    return known[table]


@every_store
def test_a_store_that_is_away_under_load_and_returns(kind, followed_by, request):
    seconds = request.config.getoption("--store-away-seconds")
    followed, store = followed_by(kind, "away")
    followed.pageserver.allow(STORE_IS_AWAY, UPLOADS_WAIT)
    with load(followed.postgres):
        for _ in range(2):
            time.sleep(2)
            with store.away():
                before = followed.timeline.info()["remote_consistent_lsn"]
                time.sleep(seconds)
                info = followed.timeline.info()
                # One publication may have been on its way when the bucket went away.
                assert lsns.parse(info["remote_consistent_lsn"]) >= lsns.parse(before)
                # The server must not forget WAL that is not in the bucket.
                assert lsns.parse(followed.slot()[1]) <= lsns.parse(info["remote_consistent_lsn"])
    lsn = all_stored(followed)
    followed.pageserver.stop()
    wipe(followed.pageserver)
    followed.pageserver.start()
    report = followed.assert_files_equal(lsn)
    print(f"{kind}: {report.equal} pages equal after the store was away twice for {seconds} s, and the disk lost")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["directory", "weed"])
def test_a_long_outage_keeps_the_disk_within_its_budget(kind, followed_by, request):
    """Intake slows and stops when the disk is full of data that the bucket cannot take; afterwards nothing is
    missing."""
    seconds, budget = request.config.getoption("--store-outage-seconds"), 64 << 20
    followed, store = followed_by(kind, "outage", disk_budget=budget)
    bucket = store.settings("outage")["remote_storage"]
    # Data that only the bucket has cannot be read meanwhile.
    unreadable = rf"ERROR.*GetPage\(.*failed: .*{re.escape(bucket)}"
    followed.pageserver.allow(STORE_IS_AWAY, UPLOADS_WAIT, unreadable, r"WARN.*(intake|room|disk)", POSTGRES_IS_GONE)
    accounts = rel_of_stopped(followed, "pgbench_accounts")
    largest, reads, refused, end = 0, 0, 0, time.monotonic() + seconds
    with store.away():
        while time.monotonic() < end:
            followed.postgres.bench(1000)
            followed.postgres.sql("CREATE TABLE IF NOT EXISTS filler (v text); TRUNCATE filler; INSERT INTO filler "
                                  "SELECT repeat(md5(g::text), 60) FROM generate_series(1, 5000) g")
            largest = max(largest, disk_usage(followed.pageserver.workdir))
            with followed.timeline.stream() as stream:
                try:
                    reads += len(stream.ask(get_page(accounts, reads % 100))) // 8192
                except Refused as error:
                    # From layers that only the bucket has, and that made room for others.
                    assert bucket in str(error), error
                    refused += 1
            time.sleep(min(max(1, seconds / 60), max(0, end - time.monotonic())))
        written, behind = lsns.parse(followed.postgres.sql("SELECT pg_current_wal_flush_lsn()")), 0

        def has_come_or_has_no_room():
            """Nothing but a lack of room stops the intake, however slow the machine is."""
            nonlocal largest, behind
            largest = max(largest, disk_usage(followed.pageserver.workdir))
            behind = written - lsns.parse(followed.timeline.last_record_lsn())
            return behind <= 8 << 20 or largest >= budget * 0.8

        wait_until(has_come_or_has_no_room, 60, what="the WAL, or a full disk")
    assert largest <= budget * 1.1, f"{largest >> 20} MiB on disk, the budget is {budget >> 20}"
    followed.catch_up(timeout=300)
    lsn = all_stored(followed)
    followed.pageserver.stop()
    wipe(followed.pageserver)
    followed.pageserver.start()
    report = followed.assert_files_equal(lsn)
    print(
        f"{kind}: away for {seconds:.0f} s, at most {largest >> 20} MiB on disk of {budget >> 20}, {behind >> 20} MiB "
        f"of WAL not taken in by then, {reads} pages read and {refused} refused meanwhile; {report.equal} equal after "
        "the disk was lost"
    )


def test_a_start_without_its_store_is_refused_with_a_reason(followed_by):
    followed, store = followed_by("weed", "unreachable", remote_storage_start_timeout="3s")
    all_stored(followed)
    followed.pageserver.stop()
    with store.away():
        said = followed.pageserver.refuses_to_start()
    assert "cannot start without the bucket" in said and "s3://pages/unreachable" in said, said
    followed.pageserver.start()


@pytest.mark.parametrize("kind", ["weed", "moto"])
def test_contents_of_uploads_need_not_be_signed(kind, followed_by):
    followed, _ = followed_by(kind, "unsigned", remote_storage_sign_payload=False)
    lsn = all_stored(followed)
    followed.pageserver.stop()
    wipe(followed.pageserver)
    followed.pageserver.start()
    followed.assert_files_equal(lsn)


def test_credentials_that_expire_are_replaced_while_it_runs(followed_by):
    followed, store = followed_by("weed", "credentials")
    followed.pageserver.allow(STORE_IS_AWAY, UPLOADS_WAIT)
    followed.pageserver.secret(SECRET)
    try:
        store.set_credentials("expired-key", followed.pageserver.secret("expired-secret"))
        followed.postgres.bench(500)
        lsn = followed.catch_up()
        followed.pageserver.http.put(f"{followed.timeline.path}/checkpoint")
        time.sleep(3)
        assert lsns.parse(followed.timeline.info()["remote_consistent_lsn"]) < lsns.parse(lsn)
    finally:
        store.set_credentials(KEY, SECRET)
    wait_uploaded(followed, lsn)
    lsn = all_stored(followed)
    followed.pageserver.stop()
    wipe(followed.pageserver)
    followed.pageserver.start()
    followed.assert_files_equal(lsn)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["directory", "weed"])
def test_kills_during_uploads_lose_nothing(kind, followed_by, request):
    kills, chance = request.config.getoption("--store-kills"), random.Random(SEED)
    followed, store = followed_by(kind, "uploads")
    server, timeline = followed.pageserver, followed.timeline
    reported = timeline.info()["remote_consistent_lsn"]
    with load(followed.postgres):
        for number in range(kills):
            time.sleep(chance.random() ** 2)
            server.kill()
            kept_from = followed.slot()[1]
            server.start()
            # A new owner reports nothing before its own index part is there.
            first = lambda: timeline.info()["remote_consistent_lsn"]
            before, reported = reported, wait_until(first, 60, what="a report of the new owner")
            where = f"kill {number} of seed {SEED}"
            assert lsns.parse(reported) >= lsns.parse(kept_from), where
            assert lsns.parse(reported) >= lsns.parse(before), where
    followed.catch_up(timeout=120)
    lsn = all_stored(followed)
    server.stop()
    wipe(server)
    server.start()
    report = followed.assert_files_equal(lsn)
    print(f"{kind}: {kills} kills during uploads, then the disk lost: {report.equal} pages equal, seed {SEED}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["directory", "weed"])
def test_kills_during_deletions_lose_nothing_and_leave_nothing(kind, followed_by, request):
    kills, chance = request.config.getoption("--store-kills"), random.Random(SEED)
    followed, store = followed_by(kind, "deletions")
    server, timeline = followed.pageserver, followed.timeline
    followed.postgres.bench(500)
    lsn = all_stored(followed)
    gone = 0
    with ThreadPoolExecutor(1) as pool:
        for number in range(kills):
            branch = timeline.branch()
            wait_until(lambda: branch.info()["remote_consistent_lsn"], 30, what="the branch in the store")
            deleting = pool.submit(quietly, branch.delete)
            time.sleep(chance.random() * 0.05)
            server.kill()
            deleting.exception(60)
            server.start()
            gone += finish_deletion(server, timeline, branch)
    removed = lambda: not (left := left_of_deleted(store, "deletions", timeline.id)) or print("left:", left[:4])
    wait_until(removed, 60, every=10, what="the branches' removal")
    server.stop()
    wipe(server)
    server.start()
    report = followed.assert_files_equal(lsn)
    print(f"{kind}: {kills} kills during deletions, {gone} had taken effect; {report.equal} pages equal, seed {SEED}")


def quietly(call):
    """A killed server gives no answer."""
    try:
        call()
    except (OSError, HttpError, AssertionError):
        pass


def finish_deletion(server, timeline, branch) -> bool:
    """Deletes the branch; returns whether it was gone already."""
    try:
        server.http.delete(branch.path)
    except HttpError as error:
        assert error.status == 404, error
        return True
    return False


def left_of_deleted(store, prefix: str, kept: str) -> list[str]:
    """Objects of other timelines, except one each: the mark of deletion, which keeps the timeline from coming back."""
    others = sorted(name for name in store.objects(prefix) if "/timelines/" in name and kept not in name)
    marks = {name.split("/")[3]: name for name in others if "/index_part-" in name}
    return [name for name in others if name not in marks.values()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["directory", "weed"])
def test_kills_during_downloads_serve_no_wrong_page(kind, followed_by, request):
    kills, chance = request.config.getoption("--store-kills"), random.Random(SEED)
    # Layers that are read are soon fetched as a whole.
    followed, store = followed_by(kind, "downloads", prefetch_whole_after=5, max_get_vectored_keys=32)
    server, timeline = followed.pageserver, followed.timeline
    followed.postgres.bench(2000)
    accounts = rel_of_stopped(followed, "pgbench_accounts")
    lsn = all_stored(followed)
    at = lsns.parse(lsn)
    with timeline.stream(timeout=120) as stream:
        blocks = stream.ask(nblocks(accounts, at, at))
        pages = list(stream.pipelined(get_page(accounts, block, at, at) for block in range(blocks)))
    served = 0
    for number in range(kills):
        server.kill()
        if number % 3 == 0:
            wipe(server)
        server.start()
        reader = Reader(timeline, accounts, at, pages, random.Random(SEED + number))
        reader.start()
        time.sleep(chance.random() * 0.7)
        server.kill()
        reader.join(60)
        assert not reader.wrong, f"kill {number} of seed {SEED}: blocks {reader.wrong[:10]}"
        served += reader.served
        server.start()
    report = followed.assert_files_equal(lsn)
    assert served > 0
    print(f"{kind}: {kills} kills during downloads, {served} pages served meanwhile; {report.equal} equal, seed {SEED}")


class Reader(threading.Thread):
    """Reads random pages until the server is gone."""

    def __init__(self, timeline, rel, at, pages, chance):
        super().__init__(daemon=True)
        self.timeline, self.rel, self.at, self.pages, self.chance = timeline, rel, at, pages, chance
        self.served, self.wrong = 0, []

    def run(self):
        try:
            with self.timeline.stream(timeout=30) as stream:
                while True:
                    block = self.chance.randrange(len(self.pages))
                    page = stream.ask(get_page(self.rel, block, self.at, self.at))
                    self.served += 1
                    if page != self.pages[block]:
                        self.wrong.append(block)
        except (OSError, EOFError, AssertionError, ValueError):
            pass
