"""What operators see of reads, of compaction and of history: each figure is there, and is what it should be."""

import json
import re
import time

import pytest

from fixtures import lsn as lsns
from fixtures.followed import Followed, rel_of
from fixtures.load import load
from fixtures.pageserver import Timeline
from fixtures.pagestream import LATEST, Rel, get_page, nblocks
from fixtures.retention import SHORT, SMALL, UNSORTED, Remote, follow
from fixtures.stored import QUICK, all_stored
from fixtures.wait import wait_until

# Histograms with one observation for each page read.
PER_PAGE = [
    "layers_per_read_global", "filters_per_page_read", "deltas_per_read_global", "layer_bytes_per_page_read",
    "bucket_requests_per_page_read", "bucket_bytes_per_page_read",
]


def metric(timeline: Timeline, name: str, **labels) -> float | None:
    """A metric of the timeline with these labels; None if there is none."""
    wanted = {**labels, "timeline_id": timeline.id}
    for sample, value in timeline.server.http.metrics().items():
        if sample.startswith(f"pageserver_{name}{{") and all(f'{k}="{v}"' in sample for k, v in wanted.items()):
            return value
    return None


class Reads:
    """What the histograms of pages have counted since this was made."""

    def __init__(self, timeline: Timeline):
        self.timeline = timeline
        self.before = timeline.server.http.metrics()

    def counted(self) -> dict[str, tuple[int, float]]:
        """Observations, and their sum, of each histogram."""
        now = self.timeline.server.http.metrics()
        since = lambda name: now[f"pageserver_{name}"] - self.before[f"pageserver_{name}"]
        return {name: (int(since(f"{name}_count")), since(f"{name}_sum")) for name in PER_PAGE}

    def check(self, pages: int) -> dict[str, float]:
        """There must be an observation for each page; returns the sums."""
        counted = self.counted()
        assert {name: count for name, (count, _) in counted.items()} == {name: pages for name in PER_PAGE}
        return {name: total for name, (_, total) in counted.items()}


def read_pages(timeline: Timeline, rel: Rel, at: int, blocks, *, one_by_one: bool):
    with timeline.stream(timeout=60) as stream:
        requests = [get_page(rel, block, at, at) for block in blocks]
        if one_by_one:
            return [stream.ask(request) for request in requests]
        return list(stream.pipelined(requests))


def evict_all(timeline: Timeline):
    """Nothing of the timeline's layers stays on the disk, nor open."""
    for layer in timeline.server.http.get(f"{timeline.path}/layer")["historic_layers"]:
        timeline.server.http.delete(f"{timeline.path}/layer/{layer['layer_file_name']}")


def filled(followed: Followed, layers=6) -> str:
    """Writes until there are some L0 layers, then stops the Postgres; returns the LSN."""
    info = followed.timeline.info
    with load(followed.postgres):
        wait_until(lambda: info()["l0_layer_count"] >= layers, 60, what="some L0 layers")
    return all_stored(followed)


def test_each_page_read_is_counted(make_postgres, make_pageserver, make_store):
    store = make_store("directory")
    # What a read needs it fetches itself: nothing opens or fetches layers ahead of it.
    settings = {**QUICK, **store.settings("counted"), **UNSORTED, "open_ahead_max": 0, "prefetch_whole_after": 101}
    followed = follow(make_postgres, make_pageserver, "counted", **settings)
    server, timeline = followed.pageserver, followed.timeline
    accounts = rel_of(followed.postgres, "pgbench_accounts")
    at = lsns.parse(filled(followed))
    # Nothing is in memory, and nothing was opened.
    server.restart()
    with timeline.stream() as stream:
        assert stream.ask(nblocks(accounts, at, at)) > 400

    reads = Reads(timeline)
    pages = read_pages(timeline, accounts, at, range(0, 100), one_by_one=True)
    cold = reads.check(100)
    # Its own layers and the import's: each page is looked for in one at least.
    assert cold["layers_per_read_global"] >= 100 and cold["filters_per_page_read"] >= 100, cold
    assert cold["layer_bytes_per_page_read"] > 100 * 1024, cold
    assert cold["bucket_requests_per_page_read"] == cold["bucket_bytes_per_page_read"] == 0, cold

    reads = Reads(timeline)
    assert read_pages(timeline, accounts, at, range(0, 100), one_by_one=True) == pages
    cached = reads.check(100)
    assert cached["deltas_per_read_global"] == 0, cached
    # What is found in the index of a newer layer ends the search; images of the import are kept as they are read.
    assert cached["layers_per_read_global"] <= cold["layers_per_read_global"], (cached, cold)
    assert cached["layer_bytes_per_page_read"] < cold["layer_bytes_per_page_read"] / 2, (cached, cold)

    reads = Reads(timeline)
    read_pages(timeline, accounts, at, range(100, 300), one_by_one=False)
    together = reads.check(200)
    assert 200 <= together["layers_per_read_global"] <= 200 * timeline.info()["layer_count"], together

    evict_all(timeline)
    reads = Reads(timeline)
    read_pages(timeline, accounts, at, range(300, 320), one_by_one=True)
    remote = reads.check(20)
    assert remote["bucket_requests_per_page_read"] > 0, remote
    assert remote["bucket_bytes_per_page_read"] >= 4096 * remote["bucket_requests_per_page_read"], remote
    totals = server.http.metrics()
    assert totals["pageserver_block_requests_total"] >= remote["bucket_requests_per_page_read"]

    # A trace is no read of a page that somebody asked for.
    evict_all(timeline)
    reads = Reads(timeline)
    key = f"00{accounts.spc:08X}{accounts.db:08X}{accounts.rel:08X}{accounts.fork:02X}{400:08X}"
    trace = server.http.get(f"{timeline.path}/trace?key={key}")
    reads.check(0)
    stages = ["wait_micros", "plan_micros", "fetch_micros"]
    assert sum(trace[stage] for stage in stages) <= trace["search_micros"] + len(stages), trace
    assert trace["filters_asked"] == sum(visit["filters_asked"] for visit in trace["visits"]) > 0, trace
    assert trace["bucket_requests"] > 0 and trace["bucket_bytes"] >= 4096 and trace["fetch_micros"] > 0, trace
    assert trace["bytes"] == 8192, trace
    print(f"cold {cold}, cached {cached}, together {together}, remote {remote}")


def owed(sizes: list[int]) -> int:
    """What is sorted of L0 layers of these sizes, oldest first: up to eight at once, while there are four."""
    return sum(sizes[:8]) + owed(sizes[8:]) if len(sizes) >= 4 else 0


def test_debt_is_shown_and_goes(make_postgres, make_pageserver, pagectl_binary):
    followed = follow(make_postgres, make_pageserver, "debt", **UNSORTED)
    server, timeline = followed.pageserver, followed.timeline
    condition = lambda: timeline.info()["condition"]
    filled(followed)
    ctl = Remote(pagectl_binary, timeline)
    off = condition()
    assert off["state"] == "off" and "compaction_threshold" in off["reason"], off
    listed = server.http.get(f"{timeline.path}/layer")["historic_layers"]
    assert off["debt_bytes"]["sort"] == owed([layer["layer_file_size"] for layer in listed if layer["l0"]]) > 0, off
    assert off["value_bytes"] > 0 and off["flushed_bytes"] > 0, off
    written = off["write_amplification"]
    assert written["total"] == written["flush"] == round(off["flushed_bytes"] / off["value_bytes"], 3), off
    assert set(off["seconds_since"].values()) == {None} and off["again_in_seconds"] is None, off
    said = ctl.ok("layers")
    assert "compaction off: compaction is turned off" in said.summary and " to rewrite" in said.summary, said.text
    assert "yes" in said.stdout and "FILTER" in said.stdout, said.text
    assert metric(timeline, "compaction_debt_bytes", job="sort") == off["debt_bytes"]["sort"]
    assert metric(timeline, "compaction_state", state="off") == 1
    assert metric(timeline, "compaction_state", state="idle") == 0
    assert metric(timeline, "compaction_idle_seconds", job="sort") is None
    assert metric(timeline, "timeline_value_bytes_total") == off["value_bytes"]
    assert metric(timeline, "timeline_written_bytes_total", by="flush") == off["flushed_bytes"]

    server.stop()
    server.configure(**SMALL)
    server.start()
    done = ctl.ok("compact", "--now")
    lines = [line for line in done.stderr.splitlines() if line.startswith("compacting: ")]
    assert lines and all(re.search(r"\d+ jobs done, .* written, .* left to rewrite", line) for line in lines), done.text
    assert len(set(lines)) == len(lines), done.text
    assert "compacting" not in ctl.ok("--json", "compact", "--now").stderr
    idle = condition()
    assert idle["state"] == "idle" and sum(idle["debt_bytes"].values()) == 0, idle
    assert idle["seconds_since"]["sort"] is not None, idle
    # The import's images, and all that lies above them.
    assert idle["space_ratio"] >= 1 and idle["newest_image_bytes"] > 0, idle
    assert "compaction idle: nothing is due" in ctl.ok("layers").summary
    assert "0 B to rewrite; compaction idle" in ctl.ok("compact", "--now").summary
    kinds = list(idle["debt_bytes"])
    assert [metric(timeline, "compaction_debt_bytes", job=kind) for kind in kinds] == [0] * len(kinds)
    assert metric(timeline, "compaction_idle_seconds", job="sort") is not None
    assert metric(timeline, "space_ratio") == pytest.approx(idle["space_ratio"], abs=0.01)

    # What jobs write counts, too.
    followed.postgres.start()
    with load(followed.postgres):
        sorts = lambda: timeline.info()["compaction"]["sort"]["jobs"]
        enough = sorts() + 3
        wait_until(lambda: sorts() >= enough, 60, what="sorts under load")
    followed.catch_up()
    # What came last may still be due.
    wait_until(lambda: condition()["state"] == "idle", 60, what="an end of compaction")
    info = timeline.info()
    written = info["condition"]["write_amplification"]
    assert written["sort"] > 0 and written["total"] > written["flush"] > 0, info
    listed = server.http.get(f"{timeline.path}/layer")
    assert {layer["filter"] for layer in listed["historic_layers"] if layer["kind"] == "Delta"} == {True}
    assert listed["height"] <= 6 and set(listed["condition"]) == set(info["condition"])
    assert "key filter" in server.http.text(f"{timeline.path}/layers.svg")


def test_a_failure_says_when_it_is_tried_again(make_postgres, make_pageserver, pagectl_binary):
    followed = follow(make_postgres, make_pageserver, "failing", **UNSORTED, remote_storage="none")
    server, timeline = followed.pageserver, followed.timeline
    server.allow(r"WARN.*compaction", r"(WARN|ERROR).*(corrupt|checksum)")
    with load(followed.postgres):
        wait_until(lambda: timeline.info()["l0_layer_count"] > 5, 60, what="some L0 layers")
    followed.stop_postgres()
    listed = server.http.get(f"{timeline.path}/layer")["historic_layers"]
    file = timeline.dir() / next(layer["layer_file_name"] for layer in listed if layer["l0"])
    server.stop()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    server.configure(**SMALL)
    server.start()
    condition = lambda: timeline.info()["condition"]
    failed = wait_until(lambda: (now := condition())["state"] == "failed" and now, 30, what="a failure")
    assert file.name in failed["reason"] and 0 <= failed["again_in_seconds"] <= 600, failed
    assert failed["debt_bytes"]["sort"] > 0, failed
    summary = Remote(pagectl_binary, timeline).ok("layers").summary
    assert re.search(r"compaction failed, and is tried again in \d+ s: .*" + re.escape(file.name), summary), summary
    assert metric(timeline, "compaction_state", state="failed") == 1
    assert "compaction failed: " in server.http.text(f"{timeline.path}/layers.svg")


def test_what_keeps_history_is_shown(make_postgres, make_pageserver, make_store, pagectl_binary):
    store = make_store("directory")
    settings = {**QUICK, **store.settings("shown"), **SHORT}
    followed = follow(make_postgres, make_pageserver, "shown", **settings)
    server, timeline = followed.pageserver, followed.timeline
    ctl = Remote(pagectl_binary, timeline)
    info = timeline.info()
    assert info["condition"]["history"] is None and info["condition"]["seconds_since_removal"] is None, info
    assert "KEPT FOR" not in ctl.ok("layers").stdout

    def rewritten():
        """More history, of which images are made."""
        followed.postgres.bench(2000)
        followed.catch_up()
        server.http.put(f"{timeline.path}/checkpoint")
        ctl.ok("compact", "--now")

    rewritten()
    ctl.ok("hold", "create", "release 7")
    for _ in range(4):
        rewritten()
    followed.stop_postgres()
    server.http.put(f"{timeline.path}/checkpoint")
    ctl.ok("compact", "--now")
    # Then all of it is older than it is kept.
    time.sleep(2)
    waiting = lambda: timeline.info()["condition"]["waiting_bytes"]
    assert waiting()["history"] > 0, timeline.info()
    assert metric(timeline, "waiting_bytes", why="history") == waiting()["history"]
    dry = json.loads(ctl.ok("--json", "gc", "--dry-run").stdout)["timelines"][0]
    look = timeline.info()["condition"]["history"]
    assert [point["lsn"] for point in look["points"]] == [point["lsn"] for point in dry["points"]], (look, dry)
    assert timeline.info()["condition"]["seconds_since_removal"] is None
    # Now it is known what the hold needs.
    assert 0 < waiting()["history"] <= dry["removed_bytes"] * 1.01, (waiting(), dry)
    ctl.ok("gc", "--now")
    shown = ctl.ok("layers").stdout
    assert "KEPT FOR" in shown and 'hold "release 7"' in shown and "history removed:       " in shown, shown
    assert metric(timeline, "history_removal_age_seconds") is not None

    def nothing_waits() -> bool:
        # The last L0 layers are sorted so that history can go, too.
        ctl.ok("gc", "--now")
        return waiting()["history"] == 0

    wait_until(nothing_waits, 60, every=1, what="all history that nothing keeps to be removed")

    def freed() -> bool:
        # Compaction may replace more layers between any two questions.
        told = [waiting()[why] for why in ("read", "unconfirmed")]
        return told == [metric(timeline, "waiting_bytes", why=why) for why in ("read", "unconfirmed")] == [0, 0]

    wait_until(freed, 60, what="what was removed to be freed")


SLOW = re.compile(
    r"slow read: \S+ for (?P<keys>\d+) keys from \w+ on as of LSN \S+: wait (?P<wait>\S+), plan \S+, fetch \S+, "
    r"redo \S+; (?P<layers>\d+) layers searched, \d+ filters asked, \d+ records, \d+ bytes read here, "
    r"(?P<fetched>\d+) fetched by (?P<requests>\d+) requests; visited (?P<visited>.+)"
)


def seconds(text: str) -> float:
    """A time as it is written in the log."""
    number, unit = re.fullmatch(r"([\d.]+)(ns|\u00b5s|ms|s)", text).groups()
    return float(number) * {"ns": 1e-9, "\u00b5s": 1e-6, "ms": 1e-3, "s": 1.0}[unit]


def test_a_slow_read_says_what_it_took_its_time_for(make_postgres, make_pageserver):
    # Whatever takes any time is slow.
    followed = follow(make_postgres, make_pageserver, "slow", **UNSORTED, slow_read_threshold="1us")
    server, timeline = followed.pageserver, followed.timeline
    accounts = rel_of(followed.postgres, "pgbench_accounts")
    followed.catch_up()
    with timeline.stream(timeout=60) as stream:
        told = lambda: [match for line in server.log_text().splitlines() if (match := SLOW.search(line))]

        def of_page() -> bool:
            stream.ask(get_page(accounts, 3))
            return any(int(line["layers"]) > 0 and "__" in line["visited"] for line in told())

        # There is a line a second.
        wait_until(of_page, 30, every=0.3, what="a line about a page of a layer")

        def of_wait() -> bool:
            after = lsns.parse(followed.catch_up()) + 8
            stream.send(get_page(accounts, 5, LATEST, after))
            time.sleep(1.2)
            followed.postgres.bench(10)
            stream.receive()
            return any(seconds(line["wait"]) >= 1.0 for line in told())

        wait_until(of_wait, 60, what="a line about a read that waited for WAL")
    lines = [line for line in server.log_text().splitlines() if "slow read" in line]
    assert len(lines) == len(told()), "each line has all stages"
    assert server.http.metrics()["pageserver_slow_reads_total"] >= len(lines) > 1
