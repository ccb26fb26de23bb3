"""A second server on the bucket of a live one, which only reads it; and `pagectl tune`, which uses that."""

import json
import os
import subprocess
import time

import pytest
from fixtures.followed import Followed
from fixtures.pageserver import Timeline
from fixtures.stored import all_stored, wait_uploaded, wipe
from fixtures.wait import wait_until

# A server that should follow another one looks for it every 5 s.
SOME_TIME = 7
QUERIES = """SELECT sum(abalance) FROM pgbench_accounts;
SELECT abalance FROM pgbench_accounts WHERE aid = 4711;
"""


@pytest.fixture(params=["directory", "weed"])
def live(request, make_postgres, make_pageserver, make_store):
    """A server that is followed."""
    name = f"{request.param}-for-{request.function.__name__.split('_')[1]}"
    pg, store = make_postgres(name, max_replication_slots=10).start(), make_store(request.param)
    pg.bench_init(1)
    server = make_pageserver(name, checkpoint_distance=4 << 20, **store.settings(name)).start()
    followed = Followed(pg, server, server.follow(pg))
    pg.bench(200)
    return followed, lambda: store.objects(name)


def holder_of_slot(followed) -> str:
    return followed.postgres.sql("SELECT active_pid FROM pg_replication_slots")


def test_a_scratch_server_tries_things_and_the_live_one_does_not_notice(live, make_pageserver):
    followed, objects = live
    wait_uploaded(followed, followed.catch_up())
    held = holder_of_slot(followed)
    settings = {key: value for key, value in followed.pageserver.settings.items() if key.startswith("remote_storage")}
    settings.update(remote_storage_scratch="scratch", attach_on_start="all")
    scratch = make_pageserver(f"beside-{followed.pageserver.workdir.name}", **settings).start()
    there = Timeline(scratch, followed.timeline.tenant, followed.timeline.id)
    # It leaves the followed server alone, where any other server would take the slot over.
    time.sleep(SOME_TIME)
    receiver = there.info()["walreceiver"]
    assert receiver["state"] != "streaming" and "remote_storage_scratch" in receiver["last_error"], receiver
    assert held and holder_of_slot(followed) == held
    lsn = all_stored(followed)
    scratch.stop()
    wipe(scratch)
    before = objects()
    scratch.start()
    followed.assert_files_equal(lsn, timeline=there)

    # It writes: a branch, an index part; and removes what it had.
    branch = there.branch(lsn)
    place = scratch.workdir / "scratch"
    wait_until(lambda: any(branch.id in str(path) for path in place.rglob("*")), 30, what="the branch's index part")
    scratch.restart()
    assert Timeline(scratch, there.tenant, branch.id).info()["ancestor_timeline_id"] == there.id
    Timeline(scratch, there.tenant, branch.id).delete()
    scratch.restart()
    listed = {one["timeline_id"] for one in scratch.http.get(f"/v1/tenant/{there.tenant}/timeline")}
    assert listed == {there.id}

    now = objects()
    assert now == before, sorted(set(now.items()) ^ set(before.items()))
    followed.pageserver.restart()
    assert followed.timeline.last_record_lsn() == lsn and not followed.pageserver.http.get("/v1/status").get(
        "fenced_tenants"), "the live server has lost its tenant"


def tune(pagectl_binary, server, *args, **env):
    command = [str(pagectl_binary), "--workdir", str(server.workdir), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **env})


@pytest.mark.parametrize("live", ["directory"], indirect=True)
def test_settings_are_tried_on_ones_own_queries(live, pagectl_binary, work_dir):
    followed, objects = live
    all_stored(followed)
    before = objects()
    sql, place = work_dir / "queries.sql", work_dir / "place"
    sql.write_text(QUERIES)
    place.mkdir()
    place.chmod(0o755)
    asked = ("--sql", sql, "--rounds", "1", "--place", place)
    done = tune(pagectl_binary, followed.pageserver, "--json", "tune", *map(str, asked))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    tried = [one["settings"] for one in report["tried"]]
    print(f"{len(tried)} choices: {report['yours_ms']:.1f} ms, at best {report['best_ms']:.1f}")
    # Yours first, each other value of each setting at least once, and both of the end twice.
    assert tried[0] == report["yours"] and len(tried) >= 8 and report["best"] in tried
    assert {one["read_ahead_max"] for one in tried} >= {0, 1 << 20, 4 << 20, 16 << 20}
    assert {one["effective_io_concurrency"] for one in tried} >= {0, 1, 16}
    assert all(one["requests"] > 0 and one["bytes"] > 1 << 20 and one["median_ms"] > 0 for one in report["tried"])
    assert len(report["tried"][0]["ms"]) >= 2 and report["gain"] > 0
    assert not list(place.iterdir()) and objects() == before

    sql.write_text("SELECT nothing FROM nowhere;\n")
    done = tune(pagectl_binary, followed.pageserver, "tune", *map(str, asked))
    assert done.returncode and 'relation "nowhere" does not exist' in done.stderr and not list(place.iterdir())


@pytest.mark.parametrize("args, why", [
    (["--sql", "/nonexistent/queries.sql"], "there is no such file"),
    (["--sql", os.devnull], "there is no such file"),
    (["--rounds", "0", "--sql", os.devnull], "0 is not in 1.."),
], ids=["no file", "a device", "no round"])
def test_what_cannot_be_tried_is_refused(make_pageserver, pagectl_binary, args, why):
    server = make_pageserver("refusing")
    done = tune(pagectl_binary, server, "tune", *args)
    assert done.returncode and why in done.stderr, done.stderr


def test_without_a_bucket_nothing_can_be_tried(make_pageserver, pagectl_binary, tmp_path):
    server, sql = make_pageserver("bucketless", remote_storage="none"), tmp_path / "queries.sql"
    sql.write_text(QUERIES)
    done = tune(pagectl_binary, server, "tune", "--sql", str(sql))
    assert done.returncode and "there is no bucket (remote_storage is none)" in done.stderr, done.stderr
    done = tune(pagectl_binary, make_pageserver("empty"), "tune", "--sql", str(sql))
    assert done.returncode and "has no tenant" in done.stderr, done.stderr
