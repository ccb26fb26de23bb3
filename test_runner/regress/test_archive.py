"""How much history a timeline keeps by its own limits, and archived timelines, of which only the end stays."""

import time

import pytest

from fixtures import lsn as lsns
from fixtures.followed import follow_new, rel_of
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.pagestream import Refused, get_page
from fixtures.retention import SHORT, SMALL, Remote, pagectl
from fixtures.stored import QUICK, wait_uploaded, wipe
from fixtures.wait import wait_until

# Nothing goes by its age within a test, and only on request.
LONG = {**SMALL, "pitr_interval": "7d", "gc_horizon": 65536, "gc_period": "1000days", "gc_pause_after_attach": "1ms"}


def work(followed, rounds=4):
    """Changes the same pages again and again, in several layers."""
    for _ in range(rounds):
        followed.postgres.bench(1500)
        followed.catch_up()
        followed.pageserver.http.put(f"{followed.timeline.path}/checkpoint")


def remove(followed, pagectl_binary, rounds=3) -> dict:
    """Compacts and removes history; the last report of the timeline, with all layers that have gone."""
    removed = 0
    for _ in range(rounds):
        pagectl(pagectl_binary, followed.timeline, "compact", "--now")
        reports = pagectl(pagectl_binary, followed.timeline, "gc", "--now")["timelines"]
        mine = next(report for report in reports if report["timeline_id"] == followed.timeline.id)
        removed += mine["removed_layers"]
    return {**mine, "removed_layers": removed}


def stopped_moment(followed, directory, name):
    """Stops the server, and copies its files: the LSN, and the copy."""
    lsn = followed.stop_postgres()
    return lsn, followed.postgres.copy_stopped(directory / name)


def refused_to_read(followed, timeline, lsn):
    """A moment that is gone is refused, with the cutoff."""
    cutoff = timeline.info()["min_readable_lsn"]
    assert lsns.parse(lsn) < lsns.parse(cutoff)
    rel = rel_of(followed.postgres, "pgbench_accounts")
    with timeline.stream() as stream, pytest.raises(Refused, match=cutoff):
        stream.ask(get_page(rel, 0, lsns.parse(lsn), lsns.parse(lsn)))


def test_a_timelines_own_limits(make_postgres, make_pageserver, module_dir, pagectl_binary):
    followed = follow_new(make_postgres, make_pageserver, "limits", settings=LONG)
    server, main = followed.pageserver.allow(POSTGRES_IS_GONE), followed.timeline
    http, path = server.http, f"{main.path}/history"
    first = followed.catch_up()
    work(followed)
    kept = remove(followed, pagectl_binary)
    assert (kept["removed_layers"], kept["bound_by"]) == (0, "pitr_interval"), kept
    none = {"pitr_interval": None, "gc_horizon": None, "history_max_bytes": None}
    shown = pagectl(pagectl_binary, main, "history", "show")
    assert shown == http.get(path) and shown["own"] == none, shown
    assert (shown["pitr_interval"], shown["gc_horizon"], shown["history_max_bytes"]) == ("7days", 65536, 0), shown
    # Before what has arrived since the copy there is no commit whose time is known.
    assert shown["bound_by"] == "pitr_interval" and shown["min_readable_time"] is None, shown

    def refuse(body, *names):
        http.refuse("PUT", path, body, status=400, names=names)
        assert http.get(path)["own"] == none, "what was refused changes something"

    refuse({"pitr_interval": "0s"}, "pitr_interval: must be at least 1s")
    refuse({"pitr_interval": "-7d"}, "pitr_interval")
    refuse({"pitr_interval": "200 years"}, "pitr_interval: must not be above 36500days")
    refuse({"pitr_interval": 7}, "string")
    refuse({"gc_horizon": 0}, "gc_horizon: must not be 0")
    refuse({"gc_horizon": -1}, "u64")
    refuse({"history_max_bytes": 65535}, "history_max_bytes: must be 0, for no limit, or at least gc_horizon")
    refuse({"gc_horizon": 10, "keep": "7d"}, "unknown field")
    remote = Remote(pagectl_binary, main)
    for words in (["--keep", "soon"], ["--horizon", "1 parsec"], ["--max-bytes", "1"], []):
        assert remote.run("history", "set", *words).code == 1, words

    # A limit in bytes cuts into the window by time.
    limited = pagectl(pagectl_binary, main, "history", "set", "--max-bytes", "128KiB")
    assert limited["own"] == {**none, "history_max_bytes": 131072}, limited
    work(followed, 1)
    gone = remove(followed, pagectl_binary)
    assert gone["bound_by"] == "history_max_bytes" and gone["removed_layers"] > 0, gone
    refused_to_read(followed, main, first)
    assert http.get(path)["min_readable_time"], "its commit is known"
    # So does a shorter time.
    http.put(path, {"history_max_bytes": None, "pitr_interval": "1s"})
    pagectl(pagectl_binary, main, "history", "set", "--horizon", "64KiB")
    work(followed)
    time.sleep(2)
    followed.postgres.bench(200)
    followed.catch_up()
    shorter = remove(followed, pagectl_binary)
    assert shorter["removed_layers"] > 0, shorter
    assert lsns.parse(shorter["cutoff"]) > lsns.parse(gone["cutoff"]), (gone, shorter)
    server.kill()
    server.start()
    assert server.http.get(path)["own"] == {**none, "pitr_interval": "1s", "gc_horizon": 65536}
    # What is gone does not come back with a longer window.
    back = pagectl(pagectl_binary, main, "history", "set", "--default")
    assert back["own"] == none and back["pitr_interval"] == "7days", back
    assert lsns.parse(back["gc_cutoff_lsn"]) >= lsns.parse(shorter["cutoff"]), (back, shorter)
    refused_to_read(followed, main, first)
    followed.catch_up()
    followed.stop_and_verify(pagectl_binary)


def test_an_archived_timeline_keeps_its_end(make_postgres, make_pageserver, make_store, module_dir, pagectl_binary):
    store = make_store("directory")
    settings = {**QUICK, **store.settings("archived"), **LONG}
    followed = follow_new(make_postgres, make_pageserver, "archived", settings=settings)
    server, main, pg = followed.pageserver.allow(POSTGRES_IS_GONE), followed.timeline, followed.postgres
    work(followed)
    first, held_copy = stopped_moment(followed, module_dir, "archived-held")
    pagectl(pagectl_binary, main, "hold", "create", "before", "--at", first)
    pg.start()
    followed.wait_for_receiver("streaming")
    work(followed)
    middle = followed.catch_up()
    branch = main.branch(middle)
    pg.bench(200)
    end, copy = stopped_moment(followed, module_dir, "archived-end")
    before = remove(followed, pagectl_binary)
    assert before["removed_layers"] == 0, before

    # A branch that is in use keeps its ancestor in service, and an archived ancestor its branches out of it.
    archival = f"{main.path}/archival_config"
    server.http.refuse("PUT", archival, {"state": "Archived"}, status=412, names=[branch.id, "not archived"])
    server.http.refuse("PUT", archival, {"state": "archived"}, status=400, names=["Archived"])
    server.http.refuse("PUT", archival, {}, status=400, names=["state"])
    assert branch.id in Remote(pagectl_binary, main).run("timeline", "archive").stderr
    pagectl(pagectl_binary, main, "timeline", "archive", branch.id)
    for _ in range(2):
        done = pagectl(pagectl_binary, main, "timeline", "archive", main.id)
        assert done["is_archived"] and [slot["slot"] for slot in done["left_slots"]] == [f"pageserver_{main.id}"], done
    server.http.refuse(
        "PUT", f"{branch.path}/archival_config", {"state": "Unarchived"}, status=412, names=[main.id, "unarchive it"]
    )
    body = {"new_timeline_id": "ab" * 16, "ancestor_timeline_id": main.id}
    server.http.refuse("POST", f"/v1/tenant/{main.tenant}/timeline", body, status=406, names=[main.id, "archived"])

    def is_archived():
        info = main.info()
        assert info["is_archived"] and info["archived_at"] and info["last_record_lsn"] == end, info
        assert info["walreceiver"] is None and info["state"] == "Active", info
        listed = server.http.get(f"/v1/tenant/{main.tenant}/timeline")
        assert all(timeline["is_archived"] for timeline in listed), listed

    # The server goes on, and nobody takes its WAL.
    pg.start()
    pg.bench(500)
    is_archived()
    after = remove(followed, pagectl_binary)
    assert (after["bound_by"], after["cutoff"]) == ("archived", end) and after["removed_layers"] > 0, after
    assert after["kept_bytes"] < before["kept_bytes"], (before, after)

    def check():
        is_archived()
        assert lsns.parse(main.info()["min_readable_lsn"]) == lsns.parse(end)
        followed.assert_files_equal(end, data=copy)
        followed.assert_files_equal(first, data=held_copy)

    check()
    server.http.put(f"{main.path}/checkpoint")
    server.kill()
    server.start()
    time.sleep(2)
    check()
    # The bucket knows it, too.
    wait_uploaded(followed, end)
    server.stop()
    wipe(server)
    server.start()
    check()

    pagectl(pagectl_binary, main, "timeline", "unarchive", main.id)
    pagectl(pagectl_binary, main, "timeline", "unarchive", branch.id)
    followed.wait_for_receiver("streaming")
    assert not main.info()["is_archived"] and main.info()["archived_at"] is None
    pg.bench(500)
    followed.stop_and_compare()
    followed.assert_files_equal(end, data=copy)
    followed.assert_files_equal(first, data=held_copy)
    followed.pageserver.stop()
    main.store(pagectl_binary).verify(pg.data)


def test_what_a_compute_writes_is_not_archived(make_postgres, make_pageserver, pagectl_binary):
    followed = follow_new(make_postgres, make_pageserver, "archive-writer", settings=SHORT)
    server = followed.pageserver.allow(POSTGRES_IS_GONE, r"WAL of a compute does not come")
    followed.catch_up()
    branch = followed.timeline.branch()
    writer, archival = f"{branch.path}/writer", f"{branch.path}/archival_config"
    body = {"id": "1", "name": "dev", "connstr": "host=/nowhere", "slot": "s", "start_lsn": branch.last_record_lsn()}
    server.http.put(writer, body)
    server.http.refuse("PUT", archival, {"state": "Archived"}, status=409, names=["compute dev", "stop it"])
    assert not branch.info()["is_archived"]
    wait_until(lambda: branch.info()["walreceiver"], what="the compute to be followed all the same")
    server.http.delete(f"{writer}?id=1")
    assert server.http.put(archival, {"state": "Archived"}) == {"is_archived": True, "left_slots": []}
    server.http.refuse("PUT", writer, body, status=412, names=[branch.id, "archived", "unarchive it"])
    # A root that nobody has archived goes on.
    followed.postgres.bench(100)
    followed.catch_up()
    server.http.put(archival, {"state": "Unarchived"})
    server.http.put(writer, body)
    server.http.delete(f"{writer}?id=1")
    followed.stop_and_compare()
