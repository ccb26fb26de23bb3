"""Branches: from any moment of the past, at once, whatever happens to the timeline that they come from."""

import time
from datetime import datetime, timezone

import pytest

from fixtures import lsn as lsns
from fixtures import workload
from fixtures.followed import SMALL_LAYERS, Followed, rel_of
from fixtures.copies import boot, checksums, fetch
from fixtures.pageserver import POSTGRES_IS_GONE, new_id
from fixtures.pagestream import LATEST, get_page, nblocks


@pytest.fixture(scope="module")
def history(make_postgres, make_pageserver, module_dir):
    """A followed server that was stopped three times, with copies of its files as of each stop."""
    pg = make_postgres("history", max_replication_slots=10).start()
    pg.bench_init(1)
    server = make_pageserver("history", **SMALL_LAYERS).start().allow(POSTGRES_IS_GONE)
    followed = Followed(pg, server, server.follow(pg))
    followed.moments = []
    followed.times, followed.sums = [], []
    for number, work in enumerate([workload.ddl, workload.vacuum, workload.truncate]):
        work(pg)
        pg.bench(1000)
        followed.sums.append(checksums(pg))
        followed.times.append(time.time())
        time.sleep(1.5)
        lsn = followed.stop_postgres()
        followed.moments.append((lsn, pg.copy_stopped(module_dir / f"history-{number}")))
        pg.start()
    followed.catch_up()
    return followed


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


def pages_of(stream, rel, lsn=LATEST) -> list[bytes]:
    """All pages of a relation as of an LSN."""
    return [stream.ask(get_page(rel, block, lsn)) for block in range(stream.ask(nblocks(rel, lsn)))]


def test_a_branch_has_the_past_and_its_ancestor_goes_on(history):
    server, main = history.pageserver, history.timeline
    (early, early_data), (middle, middle_data), _ = history.moments
    branch = main.branch(middle)
    info = branch.info()
    assert (info["ancestor_timeline_id"], info["ancestor_lsn"]) == (main.id, middle)
    assert info["last_record_lsn"] == middle
    history.assert_files_equal(middle, branch, middle_data)
    history.assert_files_equal(early, branch, early_data)
    # A branch of the branch, further back.
    second = branch.branch(early)
    assert second.info()["ancestor_timeline_id"] == branch.id
    history.assert_files_equal(early, second, early_data)
    # The reverse as well: later changes of the ancestor are not on the branch.
    history.postgres.bench(500)
    last = lsns.parse(history.catch_up())
    branches = rel_of(history.postgres, "pgbench_branches")
    with main.stream() as ours, branch.stream() as theirs:
        # Which of its few pages a transaction changes is up to the server.
        assert pages_of(ours, branches, last) != pages_of(theirs, branches)
        assert pages_of(ours, branches, lsns.parse(middle)) == pages_of(theirs, branches)
    # Takes constant time, and the branches survive a restart.
    server.restart()
    history.assert_files_equal(middle, branch, middle_data)
    history.assert_files_equal(early, second, early_data)
    # Nothing can be deleted while something depends on it.
    server.http.refuse("DELETE", main.path, status=412, names=[branch.id])
    server.http.refuse("DELETE", branch.path, status=412, names=[second.id])
    second.delete()
    server.http.refuse("GET", second.path, status=404)
    branch.delete()
    history.assert_files_equal(early, main, early_data)


def test_a_branch_by_timestamp(history, make_postgres):
    server, main = history.pageserver, history.timeline
    for number, (at, sums, (lsn, _)) in enumerate(zip(history.times, history.sums, history.moments)):
        text = rfc3339(at + 0.7)
        found = server.http.get(f"{main.path}/get_lsn_by_timestamp?timestamp={text}")
        # The position found is after the last commit, and before the next one.
        assert found["kind"] == "present" and lsns.parse(found["lsn"]) >= lsns.parse(lsn), found
        branch = main.branch(timestamp=text)
        assert branch.info()["ancestor_lsn"] == found["lsn"]
        copy = boot(make_postgres, f"then-{number}", fetch(branch, "fullbackup"))
        assert checksums(copy) == sums
        copy.stop()
        branch.delete()
    # The bounds of history.
    future = server.http.get(f"{main.path}/get_lsn_by_timestamp?timestamp=2100-01-01T00:00:00Z")
    assert future["kind"] == "future"
    past = server.http.get(f"{main.path}/get_lsn_by_timestamp?timestamp=2001-01-01T00:00:00Z")
    assert past["kind"] == "past"
    server.http.refuse("GET", f"{main.path}/get_lsn_by_timestamp?timestamp=yesterday", status=400)
    server.http.refuse("GET", f"{main.path}/get_lsn_by_timestamp", status=400)


def test_a_timestamp_lies_between_commits(history):
    pg, server, main = history.postgres, history.pageserver, history.timeline
    pg.sql("CREATE TABLE IF NOT EXISTS ticks (id int)")
    commits = []
    for number in range(4):
        pg.sql(f"INSERT INTO ticks VALUES ({number})")
        commits.append((time.time(), lsns.parse(pg.sql("SELECT pg_current_wal_flush_lsn()"))))
        time.sleep(1.2)
    history.catch_up()
    for (at, lsn), (_, after) in zip(commits, commits[1:]):
        text = rfc3339(at + 0.6)
        found = server.http.get(f"{main.path}/get_lsn_by_timestamp?timestamp={text}")
        assert found["kind"] == "present", found
        assert lsn <= lsns.parse(found["lsn"]) < after, f"{found} is not in {lsns.show(lsn)}..{lsns.show(after)}"


def test_making_a_branch_takes_no_longer_than_asking(history):
    main = history.timeline
    history.pageserver.http.put(f"{main.path}/checkpoint")
    lsn = history.moments[0][0]
    took, deleted = [], []
    for _ in range(10):
        began = time.monotonic()
        branch = main.branch(lsn)
        took.append(time.monotonic() - began)
        began = time.monotonic()
        branch.delete()
        deleted.append(time.monotonic() - began)
    # Some milliseconds each; a copy, or a wait for the bucket, would take seconds on any machine.
    assert sorted(took)[5] < 1, took
    # Even while the branch is still being published to the bucket.
    assert sorted(deleted)[5] < 5, deleted


def test_what_cannot_be_branched(history):
    server, main = history.pageserver, history.timeline
    path = f"/v1/tenant/{main.tenant}/timeline"

    def refuse(status, names=(), **body):
        body = {"new_timeline_id": new_id(), "ancestor_timeline_id": main.id, **body}
        return server.http.refuse("POST", path, body, status=status, names=names)

    refuse(406, ancestor_start_lsn="0/28")
    refuse(406, ancestor_start_lsn="FFFF/0")
    refuse(404, ancestor_timeline_id=new_id())
    refuse(400, ancestor_start_lsn="x")
    refuse(400, new_timeline_id="x")
    # Repeating the request is not an error; a different request with the same id is.
    branch = main.branch(history.moments[0][0])
    again = {"new_timeline_id": branch.id, "ancestor_timeline_id": main.id}
    made = server.http.post(path, {**again, "ancestor_start_lsn": history.moments[0][0]})
    assert made["timeline_id"] == branch.id
    server.http.refuse("POST", path, {**again, "ancestor_start_lsn": history.moments[1][0]}, status=409)
    branch.delete()
    server.http.refuse("DELETE", branch.path, status=404)
