"""Old history is removed, while every moment that somebody keeps stays as it was."""

import time

import pytest

from fixtures import lsn as lsns
from fixtures.followed import follow_new, rel_of
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.pagestream import Refused, get_page
from fixtures.retention import SHORT, pagectl
from fixtures.stored import QUICK, all_stored, wipe
from fixtures.wait import wait_until


def moment(followed, directory, name):
    """Changes things, stops the server, and copies its files: the LSN, and the copy."""
    followed.postgres.bench(1500)
    lsn = followed.stop_postgres()
    copy = followed.postgres.copy_stopped(directory / name)
    followed.postgres.start()
    # What a server writes at its end is lost to whoever does not follow it yet.
    followed.wait_for_receiver("streaming")
    return lsn, copy


def layer_names(timeline) -> set[str]:
    layers = timeline.server.http.get(f"{timeline.path}/layer")["historic_layers"]
    return {layer["layer_file_name"] for layer in layers}


def remove_history(followed, pagectl_binary) -> dict:
    """Writes, so that there is history after what is to go; compacts; removes. Returns what was removed."""
    followed.postgres.bench(1500)
    followed.catch_up()
    time.sleep(2)
    followed.pageserver.http.put(f"{followed.timeline.path}/checkpoint")
    pagectl(pagectl_binary, followed.timeline, "compact", "--now")
    dry = pagectl(pagectl_binary, followed.timeline, "gc", "--now", "--dry-run")["timelines"]
    before = layer_names(followed.timeline)
    done = pagectl(pagectl_binary, followed.timeline, "gc", "--now")["timelines"]
    assert [report["timeline_id"] for report in dry] == [report["timeline_id"] for report in done]
    # Compaction may make others at once.
    gone = before - layer_names(followed.timeline)
    mine = next(report for report in done if report["timeline_id"] == followed.timeline.id)
    assert len(gone) >= mine["removed_layers"], (gone, mine)
    return {report["timeline_id"]: report for report in done}


def refused(followed, timeline, lsn, rel):
    """A moment that nothing keeps is refused everywhere, with the cutoff."""
    cutoff = timeline.info()["min_readable_lsn"]
    assert lsns.parse(lsn) < lsns.parse(cutoff)
    http = followed.pageserver.http
    body = {"new_timeline_id": "ab" * 16, "ancestor_timeline_id": timeline.id, "ancestor_start_lsn": lsn}
    http.refuse("POST", f"/v1/tenant/{timeline.tenant}/timeline", body, status=406, names=[cutoff, "pitr_interval"])
    http.refuse("POST", f"{timeline.path}/lsn_lease", {"lsn": lsn}, status=412, names=[cutoff])
    http.refuse("PUT", f"{timeline.path}/holds/late", {"lsn": lsn}, status=412, names=[cutoff])
    with timeline.stream() as stream, pytest.raises(Refused, match=cutoff):
        stream.ask(get_page(rel, 0, lsns.parse(lsn), lsns.parse(lsn)))


def test_old_history_goes_but_for_what_is_kept(make_postgres, make_pageserver, module_dir, pagectl_binary):
    followed = follow_new(make_postgres, make_pageserver, "kept", settings=SHORT)
    server, main = followed.pageserver.allow(POSTGRES_IS_GONE), followed.timeline
    held, branched, leased, lost = (moment(followed, module_dir, f"kept-{number}") for number in range(4))
    accounts = rel_of(followed.postgres, "pgbench_accounts")
    pagectl(pagectl_binary, main, "hold", "create", "the first release", "--at", held[0])
    server.http.refuse("PUT", f"{main.path}/holds/the%20first%20release", {"lsn": lost[0]}, status=409, names=[held[0]])
    branch = main.branch(branched[0])
    server.http.post(f"{main.path}/lsn_lease", {"lsn": leased[0]})
    removed = 0
    for _ in range(4):
        report = remove_history(followed, pagectl_binary)[main.id]
        removed += report["removed_layers"]
    assert removed > 0 and lsns.parse(report["cutoff"]) > lsns.parse(lost[0]), report
    kept_for = {point["lsn"]: point["why"] for point in report["points"]}
    assert {held[0], branched[0], leased[0]} <= set(kept_for), kept_for

    def check():
        followed.assert_files_equal(held[0], data=held[1])
        followed.assert_files_equal(leased[0], data=leased[1])
        followed.assert_files_equal(branched[0], branch, branched[1])
        refused(followed, main, lost[0], accounts)

    check()
    cutoff = main.info()["min_readable_lsn"]
    server.kill()
    server.start()
    assert lsns.parse(main.info()["min_readable_lsn"]) >= lsns.parse(cutoff), "a cutoff went back"
    followed.catch_up()
    check()
    listed = pagectl(pagectl_binary, main, "hold", "list")
    assert listed["holds"] == [{"name": "the first release", "lsn": held[0]}], listed
    assert [lease["lsn"] for lease in listed["leases"]] == [leased[0]], listed
    # What nobody keeps any more goes.
    pagectl(pagectl_binary, main, "hold", "delete", "the first release")
    branch.delete()
    remove_history(followed, pagectl_binary)
    refused(followed, main, held[0], accounts)
    refused(followed, main, branched[0], accounts)
    followed.assert_files_equal(leased[0], data=leased[1])
    followed.stop_and_compare()


def test_space_in_the_bucket_comes_back(make_postgres, make_pageserver, make_store, pagectl_binary, module_dir):
    store = make_store("directory")
    settings = {**QUICK, **store.settings("space"), **SHORT}
    followed = follow_new(make_postgres, make_pageserver, "space", settings=settings)
    server, main = followed.pageserver.allow(POSTGRES_IS_GONE), followed.timeline
    names = set()
    for _ in range(4):
        remove_history(followed, pagectl_binary)
        names |= layer_names(main)

    def in_bucket():
        return {name.rsplit("/", 1)[-1] for name in store.objects("space") if "-v2-" in name}

    def settled():
        info = main.info()
        return info["upload_layers"] == info["replaced_layer_count"] == 0 and in_bucket() == layer_names(main)

    wait_until(settled, 60, what="the bucket to have the layers that there are, and no others")
    gone = names - in_bucket()
    assert gone, "nothing has gone from the bucket"
    # From the bucket alone.
    lsn = all_stored(followed)
    server.stop()
    wipe(server)
    server.start()
    followed.assert_files_equal(lsn)


def test_space_of_what_was_dropped_comes_back(make_postgres, make_pageserver, module_dir, pagectl_binary):
    followed = follow_new(make_postgres, make_pageserver, "dropped", settings=SHORT)
    server, main = followed.pageserver.allow(POSTGRES_IS_GONE), followed.timeline
    pg = followed.postgres
    for table in ("dropped", "truncated", "shrunk"):
        pg.sql(f"CREATE TABLE {table} AS SELECT g AS id, md5(g::text) || md5((-g)::text) AS v "
               "FROM generate_series(1, 60000) g")
    pg.sql("CREATE INDEX ON dropped (v)")
    pg.sql("CREATE DATABASE gone TEMPLATE postgres")
    remove_history(followed, pagectl_binary)
    lsn, copy = moment(followed, module_dir, "dropped-before")
    pagectl(pagectl_binary, main, "hold", "create", "before", "--at", lsn)
    pg.sql("DROP DATABASE gone")
    pg.sql("DROP TABLE dropped")
    pg.sql("TRUNCATE truncated")
    pg.sql("DELETE FROM shrunk WHERE id > 100")
    pg.sql("VACUUM shrunk")

    def shrunk_to() -> int:
        for _ in range(3):
            remove_history(followed, pagectl_binary)
        layers = server.http.get(f"{main.path}/layer")["historic_layers"]
        return sum(layer["layer_file_size"] for layer in layers)

    held = shrunk_to()
    followed.assert_files_equal(lsn, data=copy)
    pagectl(pagectl_binary, main, "hold", "delete", "before")
    free = shrunk_to()
    # Some 8 MB for each table, as much again for the index and the database, little of which compresses.
    assert held - free > 10_000_000, (held, free)
    # Fresh pages where others were.
    pg.sql("INSERT INTO truncated SELECT g, md5(g::text) FROM generate_series(1, 5000) g")
    pg.sql("INSERT INTO shrunk SELECT g, md5(g::text) FROM generate_series(1, 5000) g")
    remove_history(followed, pagectl_binary)
    print(f"{held >> 10} KiB while a moment before is held, {free >> 10} KiB afterwards")
    followed.stop_and_verify(pagectl_binary)
