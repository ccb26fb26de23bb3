"""Reports of what depends on where the bucket is: their rows, what is missed, and what proves nothing."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.pagestream import LATEST, Rel

BENCHES = Path(__file__).resolve().parents[2] / "benches"
sys.path.insert(0, str(BENCHES))

import artifact  # noqa: E402
import swmr_reader  # noqa: E402

STEPS = ("open", "light", "heavy", "write", "visible")
READERS = ("head light", "head heavy", "pinned light", "pinned heavy")


def surface() -> dict:
    """Each step takes 10 ms where the bucket is local, and three delays more where it is not."""
    places = [{"name": "local", "kind": "directory", "delay": 0}, {"name": "s3-0", "kind": "moto", "delay": 0},
              {"name": "s3-25", "kind": "moto", "delay": 25.0}]

    def one(place: dict) -> dict:
        steps = {step: [{"ms": 4.0 if step in ("write", "visible") else 10.0 + 3 * place["delay"], "prepare_ms": 1.0,
                         "gets": 3, "kib": 400.0}] for step in STEPS}
        del steps["write"][0]["gets"], steps["write"][0]["kib"]
        return {"topology": place["name"], **steps}

    size = {"scale": 1, "database_mib": 9, "bucket_mib": {"directory": 4, "moto": 4},
            "rounds": [one(place) for place in places for _ in range(2)]}
    return {"pg_major": 15, "heavy": 1000, "topologies": places, "link_mib_per_s": 300.0, "sizes": [size]}


def swmr() -> dict:
    """Readers take 2 ms where the bucket is local, and 20 where it is not."""
    def window(**more) -> dict:
        return {"transactions": 100, "tps": 100.0, "taken_in_per_s": 98.0, "caught_up_s": 0.1, "lag_mib": 1.0,
                "cores": {"busy": 1.0, "server": 0.5}, **more}

    def place(name: str, ms: float) -> dict:
        read = {"reads": 9, "per_s": 9.0, "p50_ms": ms, "p95_ms": ms, "max_ms": ms, "again": 1, "cores": 0.1}
        both = {"alone": window(), "beside": window(readers={reader: dict(read) for reader in READERS})}
        return {"topology": name, "bucket_mib": 4, "bucket_mib_after": 9, "rounds": [both], "rss_mib": 100,
                "forgotten": {"layers": 2, "pages": 9, "different": 0},
                "verified": {"compared": 9, "equal": 9, "different": 0}}

    return {"pg_major": 15, "clients": 2, "heavy": 1024, "budget_mib": 256, "seconds": 20, "readers_of_each": 1,
            "per_second": 10, "link_mib_per_s": 300.0, "database_mib": 9,
            "places": [place("local", 2.0), place("s3-25", 20.0)]}


MADE = {"surface": surface, "swmr": swmr}


def report(place: Path, name: str, results: dict, **validity) -> subprocess.CompletedProcess:
    valid = {"unit": "pages", "expected": 10, "seen": 10, "compared": 10, "different": 0, **validity}
    one = {"format": artifact.FORMAT, "bench": name, "topology": artifact.topology(place, delay_ms=(0, 25)),
           "validity": valid, "results": results}
    (place / f"{name}.json").write_text(json.dumps(one))
    command = [sys.executable, BENCHES / f"report_{name}.py", place]
    return subprocess.run(command, capture_output=True, text=True)


def page(place: Path, name: str, results: dict) -> str:
    done = report(place, name, results)
    assert done.returncode == 0, done.stderr
    return (place / f"{name}.md").read_text()


def test_steps_are_told_by_place(tmp_path):
    said = page(tmp_path, "surface", surface())
    assert "| 1 | light at s3-25, round trips | at most 2 | 3.0 | **missed** |" in said, said
    assert "| 1 | open at s3-25, of local | at most 30 times | 8.5 times | yes |" in said, said
    assert said.count("**missed**") == 1 and "link-bound" not in said, said
    # For each step and place a row.
    assert sum(line.startswith(tuple(f"| {step} |" for step in STEPS)) for line in said.splitlines()) == 15, said


def test_what_the_link_limits_is_marked(tmp_path):
    results = surface()
    results["link_mib_per_s"] = 4.0
    said = page(tmp_path, "surface", results)
    # 400 KiB in 85 ms are 4.6 MiB/s, and only where there is a link.
    assert "| heavy | s3-25 | 2 | 85.0 link-bound |" in said and "| heavy | local | 2 | 10.0 |" in said, said


def test_readers_and_the_writer_are_judged_by_place(tmp_path):
    said = page(tmp_path, "swmr", swmr())
    assert "| s3-25 | head light, p50 of local | at most 1.5 times | 10.0 times | **missed** |" in said, said
    assert "| s3-25 | pinned heavy, p50 of local | at most 30 times | 10.0 times | yes |" in said, said
    assert "| s3-25 | writer beside readers, of local | at least 0.9 | 1.00 | yes |" in said, said
    assert said.count("**missed**") == 2, said


def test_what_the_pageserver_has_not_taken_in_does_not_count(tmp_path):
    results = swmr()
    results["places"][1]["rounds"][0]["beside"]["taken_in_per_s"] = 50.0
    said = page(tmp_path, "swmr", results)
    assert "| s3-25 | writer beside readers, of itself alone | at least 0.9 | 0.51 | **missed** |" in said, said


SPOILED = [
    ("surface", lambda found: found["sizes"][0]["rounds"][0]["light"][0].update(gets=0), "for nothing"),
    ("surface", lambda found: found["sizes"][0]["rounds"][0]["heavy"][0].update(ms=0.5), "times that cannot be"),
    ("surface", lambda found: [one.update(visible=[]) for one in found["sizes"][0]["rounds"]], "no visible"),
    ("surface", lambda found: found["topologies"].pop(0), "nothing to compare"),
    ("swmr", lambda found: found["places"].pop(0), "nothing to compare"),
    ("swmr", lambda found: found["places"][0]["verified"].update(different=1), "at the end"),
    ("swmr", lambda found: found["places"][1]["forgotten"].update(pages=0), "when history went"),
    ("swmr", lambda found: found["places"][0]["rounds"][0]["alone"].update(taken_in_per_s=101.0), "cannot be"),
    ("swmr", lambda found: found["places"][0]["rounds"][0]["beside"]["readers"].pop("head heavy"), "has read nothing"),
    ("swmr", lambda found: [one.update(again=0) for one in
                            found["places"][1]["rounds"][0]["beside"]["readers"].values()], "read again"),
]


@pytest.mark.parametrize("name, spoil, why", SPOILED)
def test_a_run_that_proves_nothing_is_refused(tmp_path, name, spoil, why):
    results = MADE[name]()
    spoil(results)
    done = report(tmp_path, name, results)
    assert done.returncode != 0 and "no report" in done.stderr and why in done.stderr, done.stderr
    assert not list(tmp_path.glob("*.md"))


@pytest.mark.parametrize("name", MADE)
def test_a_wrong_page_is_refused(tmp_path, name):
    done = report(tmp_path, name, MADE[name](), different=1)
    assert done.returncode != 0 and "1 of 10 pages are different" in done.stderr, done.stderr


def heap_page(lsn: int, content=b"") -> bytes:
    header = struct.pack("<IIHHHHHHI", 0, lsn, 0, 0, 24, 8192, 8192, 8192 | 4, 0)
    return (header + content).ljust(8192, b"\0")


class Pages:
    """A stream that serves one page, as of any LSN; with `then`, another one at an LSN of the past."""

    def __init__(self, page: bytes, then: bytes | None = None):
        self.page, self.then = page, then

    def pipelined(self, requests):
        for request in requests:
            yield self.page if request.lsn == LATEST or self.then is None else self.then


def reader(pages: Pages, lsn: int | None = None, wanted=b"") -> swmr_reader.Reader:
    job = swmr_reader.Job("", 0, "", "", Rel(1663, 5, 16384), blocks=1, lsn=lsn, since=10, pages=1, per_second=1,
                          begins=0, seconds=1, seed="")
    return swmr_reader.Reader(job, pages, wanted)


def test_a_reader_notices_pinned_pages_that_change():
    pages = Pages(heap_page(20))
    one = reader(pages, lsn=30, wanted=swmr_reader.digest(pages.page))
    one.read()
    assert (one.asked, one.seen, one.different) == (1, 1, 0)
    pages.page = heap_page(20, b"x")
    one.read()
    assert (one.asked, one.seen, one.different) == (2, 2, 1)


def test_a_reader_notices_pages_that_go_back():
    one = reader(Pages(heap_page(20)))
    for lsn, different in ((20, 0), (25, 0), (24, 1)):
        one.stream.page = heap_page(lsn)
        one.read()
        assert one.different == different, lsn
    # No page at all is wrong, too.
    one.stream.page = bytes(8192)
    one.read()
    assert one.different == 2


def test_a_reader_reads_again_what_was_at_the_head():
    for then, different in ((None, 0), (heap_page(20, b"x"), 1)):
        one = reader(Pages(heap_page(20), then))
        one.read()
        one.read_again()
        assert (one.asked, one.seen, one.different) == (2, 2, different)
    # What has not changed since the window began may have no history any more.
    one = reader(Pages(heap_page(9)))
    one.read()
    assert one.again == []
