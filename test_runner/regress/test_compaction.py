"""Layers are sorted, merged and imaged in the background, under load, kills and faults, and every page stays what it
was; and what operators see and set of that."""

import json
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from fixtures import lsn as lsns
from fixtures.followed import Followed, rel_of
from fixtures.load import load
from fixtures.pageserver import Timeline
from fixtures.retention import SMALL, UNSORTED, Remote, follow
from fixtures.stored import QUICK, all_stored, wait_uploaded, wipe
from fixtures.wait import wait_until

SEED = 20261123
# At so many L0 layers ingest waits.
L0_WAIT = 12
KINDS = {"sort", "merge", "image", "fold", "trim"}


def jobs(timeline: Timeline) -> dict[str, int]:
    """Jobs since the server was started, by kind."""
    return {kind: counts["jobs"] for kind, counts in timeline.info()["compaction"].items()}


def compact(timeline: Timeline) -> dict:
    return timeline.server.http.put(f"{timeline.path}/compact")


def compacted(timeline: Timeline) -> dict:
    """Has everything compacted that is due; returns the timeline's description."""
    timeline.server.http.put(f"{timeline.path}/checkpoint")
    assert set(compact(timeline)) == KINDS
    info = timeline.info()
    assert info["l0_layer_count"] < SMALL["compaction_threshold"] and info["compaction_error"] is None, info
    # Above `compaction_height` there would be a merge to make.
    assert info["height"] <= 6, info
    return info


def moment(followed: Followed, directory):
    """Stops the server, and copies its files: the LSN, and the copy."""
    lsn = followed.stop_postgres()
    copy = followed.postgres.copy_stopped(directory / lsn.replace("/", "-"))
    followed.postgres.start()
    # What a server writes at its end is lost to whoever does not follow it yet.
    followed.wait_for_receiver("streaming")
    return lsn, copy


def watch(followed: Followed, seconds: float, kills=0) -> int:
    """Watches the server under load, and kills it so many times; returns the highest number of L0 layers."""
    chance, began = random.Random(SEED), time.monotonic()
    due = sorted(chance.uniform(0.1, 0.9) * seconds for _ in range(kills))
    highest = 0
    with load(followed.postgres):
        while (now := time.monotonic() - began) < seconds:
            if due and now > due[0]:
                due.pop(0)
                followed.pageserver.kill()
                followed.pageserver.start()
            highest = max(highest, followed.timeline.info()["l0_layer_count"])
            time.sleep(0.1)
    return highest


@pytest.mark.parametrize("kills", [0, 5])
def test_pages_stay_what_they_were(kills, make_postgres, make_pageserver, module_dir, pagectl_binary):
    followed = follow(make_postgres, make_pageserver, f"compacted-{kills}", **SMALL)
    moments, highest, seen = [], 0, {}
    for _ in range(2):
        highest = max(highest, watch(followed, 8, kills))
        seen = jobs(followed.timeline)
        moments.append(moment(followed, module_dir / f"compacted-{kills}-copies"))
    assert highest <= L0_WAIT, f"{highest} L0 layers at once"
    if not kills:
        assert seen["sort"] > 0, seen
    info = compacted(followed.timeline)
    if not kills:
        assert jobs(followed.timeline)["merge"] + jobs(followed.timeline)["image"] > 0, info
    equal = sum(followed.assert_files_equal(lsn, data=data).equal for lsn, data in moments)
    followed.stop_and_verify(pagectl_binary)
    print(f"{kills} kills in each of 2 rounds: {equal} pages equal, at most {highest} L0 layers, height "
          f"{info['height']}, {seen} since the last start")


def test_every_lsn_reads_as_before(make_postgres, make_pageserver, pagectl_binary):
    followed = follow(make_postgres, make_pageserver, "digests", **UNSORTED)
    server, timeline = followed.pageserver, followed.timeline
    at = set()
    with load(followed.postgres):
        for _ in range(8):
            time.sleep(1)
            at.add(timeline.last_record_lsn())
    branch = timeline.branch(sorted(at, key=lsns.parse)[3])
    at.add(all_stored(followed))
    info = timeline.info()
    assert info["l0_layer_count"] > 3 and info["height"] == 0, info
    server.http.refuse("PUT", f"{timeline.path}/compact", status=412, names=["compaction_threshold"])

    def digests() -> dict[str, str]:
        server.stop()
        store = timeline.store(pagectl_binary)
        return {lsn: store.digest(lsn) for lsn in at} | {"branch": branch.store(pagectl_binary).digest(origin)}

    origin = branch.info()["ancestor_lsn"]
    before = digests()
    assert len(set(before.values())) > 4, "digests tell moments apart"
    server.configure(**SMALL)
    server.start()
    compacted(timeline)
    after = digests()
    assert after == before
    shown = json.loads(timeline.store(pagectl_binary).ok("--json", "status").stdout)
    assert shown["l0_layers"] < 2 and shown["height"] <= 6, shown


def test_objects_of_replaced_layers_go(make_postgres, make_pageserver, make_store, module_dir):
    store = make_store("directory")
    followed = follow(make_postgres, make_pageserver, "bucket", **{**QUICK, **store.settings("bucket"), **SMALL})
    server, timeline = followed.pageserver, followed.timeline

    def in_bucket() -> set[str]:
        names = (name.rsplit("/", 1)[-1] for name in store.objects("bucket"))
        return {name for name in names if "__" in name}

    def listed() -> set[str]:
        layers = server.http.get(f"{timeline.path}/layer")["historic_layers"]
        return {layer["layer_file_name"] for layer in layers}

    early, seen = moment(followed, module_dir / "bucket-copies"), set()
    with load(followed.postgres):
        for _ in range(40):
            seen |= in_bucket()
            time.sleep(0.25)
    late = moment(followed, module_dir / "bucket-copies")
    wait_uploaded(followed, late[0])
    compacted(timeline)

    def settled() -> bool:
        info = timeline.info()
        return info["upload_layers"] == info["replaced_layer_count"] == 0 and in_bucket() == listed()

    wait_until(settled, 60, what="the bucket to have the layers that there are, and no others")
    gone = seen - in_bucket()
    assert gone, "layers that were replaced were never in the bucket"
    lsn = all_stored(followed)
    server.stop()
    wipe(server)
    server.start()
    for at, data in [early, late, (lsn, None)]:
        followed.assert_files_equal(at, data=data)
    print(f"{len(seen)} layers seen in the bucket under load, {len(gone)} of them gone")


@contextmanager
def damaged(file):
    """A layer file of a stopped server with a bit flipped in its middle; afterwards as it was."""
    good = file.read_bytes()
    bad = bytearray(good)
    bad[len(bad) // 2] ^= 1
    file.write_bytes(bad)
    try:
        yield
    finally:
        file.write_bytes(good)


def test_a_failing_job_stops_nothing_else(make_postgres, make_pageserver, pagectl_binary):
    followed = follow(make_postgres, make_pageserver, "failing", **UNSORTED, remote_storage="none")
    server, timeline = followed.pageserver, followed.timeline
    server.allow(r"WARN.*compaction failed", r"(WARN|ERROR).*(corrupt|checksum)")
    with load(followed.postgres):
        wait_until(lambda: timeline.info()["l0_layer_count"] > 5, 60, what="some L0 layers")
    followed.catch_up()
    server.stop()
    # The oldest one: ingest itself may need what the newest have, such as the size of a relation that grows.
    lsns = "[0-9A-F]" * 16
    layers = sorted(timeline.dir().glob(f"*__{lsns}-{lsns}-*"), key=lambda file: file.name.partition("__")[2])
    file = next(file for file in layers if file.name.startswith("0" * 36 + "-F"))
    with damaged(file):
        server.configure(**SMALL)
        server.start()
        ctl = Remote(pagectl_binary, timeline)
        failed = lambda: timeline.info()["compaction_error"]
        said = wait_until(failed, 30, what="a failure")
        assert file.name in said and timeline.info()["state"] == "Active", said
        assert "compaction failed" in ctl.ok("layers").stdout and file.name in ctl.ok("layers").stdout
        assert file.name in ctl.ok("timeline", "info").stdout
        ctl.refuse("compact", "--now", names=[file.name])
        # Nobody waits for what does not get done.
        began, before = time.monotonic(), timeline.info()["l0_layer_count"]
        with load(followed.postgres):
            more = lambda: timeline.info()["l0_layer_count"] > max(L0_WAIT, before) + 1
            wait_until(more, 60, what="more L0 layers than ingest waits at")
        followed.catch_up()
        metrics = server.http.metrics()
        assert metrics["pageserver_compaction_failures_total"] > 0
        assert [value for name, value in metrics.items() if name.startswith("pageserver_compaction_failing{")] == [1]
        print(f"{timeline.info()['l0_layer_count']} L0 layers, {time.monotonic() - began:.1f} s: {said}")
        server.stop()
    server.start()
    compacted(timeline)
    followed.stop_and_verify(pagectl_binary)


def test_what_operators_see(make_postgres, make_pageserver, pagectl_binary):
    followed = follow(make_postgres, make_pageserver, "seen", **UNSORTED)
    server, timeline = followed.pageserver, followed.timeline
    with load(followed.postgres):
        wait_until(lambda: timeline.info()["l0_layer_count"] > 5, 60, what="some L0 layers")
    followed.catch_up()
    server.stop()
    server.configure(**SMALL)
    server.start()
    ctl = Remote(pagectl_binary, timeline)
    shown = ctl.ok("compact", "--now").stdout
    assert "WRITTEN" in shown and "height" in shown and "L0 layers" in shown, shown
    assert sum(jobs(timeline).values()) > 0
    done = ctl.json("compact", "--now")
    assert set(done) == KINDS and set(done["sort"]) == {"jobs", "bytes_in", "bytes_out", "millis"}
    layers = ctl.json("layers")
    known = {"in_memory_layers", "historic_layers"}
    more = {"height", "l0_layer_count", "replaced_layer_count", "replaced_bytes", "compaction_error", "condition"}
    assert set(layers) == known | more and layers["height"] <= 6, layers
    assert "height" in ctl.ok("layers").summary and "bytes_out" in ctl.ok("timeline", "info").stdout
    assert f"height {layers['height']}, " in server.http.text(f"{timeline.path}/layers.svg")
    rel = rel_of(followed.postgres, "pgbench_accounts")
    key = f"00{rel.spc:08X}{rel.db:08X}{rel.rel:08X}{rel.fork:02X}{0:08X}"
    trace = server.http.get(f"{timeline.path}/trace?key={key}")
    # It ends at an image, or at a record with an image of the whole page.
    last = trace["visits"][-1]
    assert trace["bytes"] == 8192 and trace["error"] is None and (last["image"] or last["records"]), trace
    searched = [visit["layer"] for visit in trace["visits"] if visit["searched"]]
    assert len(searched) == trace["layers_searched"] > 0, trace
    assert sum(visit["records"] for visit in trace["visits"]) == trace["records"], trace
    assert set(searched) <= {layer["layer_file_name"] for layer in layers["historic_layers"]} | {"in memory"}, trace
    metrics = server.http.metrics()
    for kind, counts in timeline.info()["compaction"].items():
        assert metrics.get(f'pageserver_compaction_jobs_total{{job="{kind}"}}', 0) >= counts["jobs"]
    heights = [value for name, value in metrics.items() if name.startswith("pageserver_layer_height{")]
    assert heights == [layers["height"]]
    assert any(name.startswith("pageserver_replaced_layers{") for name in metrics)


def test_requests_to_compact_do_not_disturb_each_other(make_postgres, make_pageserver):
    followed = follow(make_postgres, make_pageserver, "requests", **SMALL)
    server, timeline = followed.pageserver, followed.timeline
    with load(followed.postgres), ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            # Who goes away, and those who wait.
            with socket.create_connection(("127.0.0.1", server.http_port)) as caller:
                head = f"PUT {timeline.path}/compact HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0"
                caller.sendall(f"{head}\r\n\r\n".encode())
            for asked in [pool.submit(compact, timeline) for _ in range(4)]:
                assert set(asked.result(60)) == KINDS
    unknown = f"/v1/tenant/{timeline.tenant}/timeline/{'ab' * 16}/compact"
    server.http.refuse("PUT", unknown, status=404)
    compacted(timeline)
    followed.stop_and_compare()


@pytest.mark.parametrize("settings, names", [
    ({"compaction_threshold": 1}, ["compaction_threshold", "0 or at least 2"]),
    ({"compaction_threshold": 8}, ["compaction_l0_slow", "compaction_threshold, which is 8"]),
    ({"compaction_l0_slow": 2}, ["compaction_l0_slow", "compaction_threshold, which is 4"]),
    ({"compaction_l0_wait": 6}, ["compaction_l0_wait", "compaction_l0_slow, which is 6"]),
    ({"compaction_target_size": 4096}, ["compaction_target_size", "65536"]),
    ({"compaction_height": 0}, ["compaction_height", "at least 2"]),
], ids=lambda value: "-".join(value))
def test_settings_that_make_no_sense_are_refused(make_pageserver, settings, names):
    server = make_pageserver("-".join(["refused", *map(str, settings.values()), *settings]), **settings)
    said = server.refuses_to_start()
    assert all(name in said for name in names) and "pageserver.toml line" in said or "default" in said, said
