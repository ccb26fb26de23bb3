"""The report of the completed write path has a row for all that is asked, and refuses what proves nothing."""

import json
import subprocess
import sys

import pytest

import test_benchmark_reports as reports

WRITES = [(size, delta) for size in (100, 8192) for delta in ("Yes", "No")]
DEVICE = {"direct_depth_1": 900.0, "direct_depth_2": 1000.0, "direct_depth_4": 950.0}


def run(rate, **more):
    processor = {"client_ms_per_mb": 1.0, "server_ms_per_mb": None, "cores_busy_elsewhere": 0.1}
    return {"mib_per_s": rate, "device": DEVICE, "processor": processor, **more}


def row(case, rate, **more):
    return {"case": case, "runs": [run(rate * factor, **more) for factor in (0.9, 1.0, 1.1)]}


def rows():
    """All cases: two timelines take in 1.7 times what one does, the others are what `RATES` says."""
    reads = {"per_s": 10.0, "p50_us": 5.0, "p99_us": 6.0, "max_us": 7.0}
    for size, delta in WRITES:
        case = {"kind": "write", "bytes": size, "delta": delta, "timelines": 1, "reads": True}
        yield row(case, 500.0, read=reads)
        for timelines, rate in ((1, 550.0), (2, 935.0), (5, 940.0)):
            yield row({**case, "timelines": timelines, "reads": False}, rate, read=None)
    for pages, stored in (("random", 129 << 20), ("rows", 60 << 20)):
        yield row({"kind": "image", "pages": pages}, 905.0, stored_bytes=stored)
        yield row({"kind": "compress", "pages": pages}, 950.0, stored_bytes=stored)
    yield from (row({"kind": kind}, 700.0) for kind in ("download", "copy"))


@pytest.fixture
def place(tmp_path):
    """What a run leaves, and the results of the other ingest benchmark."""
    results = {"volume_mib": 128, "rounds": 3, "keep_bytes": 1, "rows": list(rows())}
    reports.put(tmp_path / "1", ingest_more=results)
    modes = [(mode, *case) for case in reports.CASES for mode in reports.MODES]
    ingest = [dict(zip(("mode", "bytes", "layout", "delta", "mib_per_s"), (*case, 321.0))) for case in modes]
    reports.put(tmp_path, ingest={"ingest": ingest})
    return tmp_path


def report(place):
    command = [sys.executable, reports.BENCHES / "report_ingest_more.py", "--target", place,
               "--ingest", place / "ingest.json", "--out", place]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True)


def change(path, how):
    one = json.loads(path.read_text())
    how(one)
    path.write_text(json.dumps(one))


def of_kind(artifact, **wanted):
    return next(row for row in artifact["results"]["rows"] if wanted.items() <= row["case"].items())


def test_all_that_is_asked_has_a_row(place):
    done = report(place)
    assert done.returncode == 0, done.stderr
    page = (place / "ingest_more.md").read_text()
    asked = page.split("## Asked")[1].split("##")[0]
    rows = [line for line in asked.splitlines() if line.endswith(("| yes |", "| **missed** |"))]
    # With reads, of the disk, image layers, two timelines. Values of 8 KiB without delta reach 0.55 of the disk, not
    # 0.75, and with reads not four times 233.
    assert len(rows) == 4 + 2 + 2 + 4 and asked.count("**missed**") == 2, asked
    assert "AX102 (other hardware)" in page and "| 321, 321, 321 | 99, 98, 99 |" in page
    assert "of another day" in asked and "10 pages compared, 0 different" in page
    assert len(json.loads((place / "ingest_more.json").read_text())["results"]["rows"]) == 22


def test_more_timelines_need_not_exceed_the_disk(place):
    def slower(artifact):
        for run in of_kind(artifact, bytes=8192, delta="No", timelines=2)["runs"]:
            run["mib_per_s"] = 870.0

    change(place / "1" / "ingest_more.json", slower)
    report(place)
    # 1.58 times one, and 0.87 of the disk: neither is enough.
    assert (place / "ingest_more.md").read_text().split("## Read")[0].count("**missed**") == 3


def test_the_first_pageserver_in_the_same_run_is_the_measure(place):
    ids = [f"io_mode=DirectRw volume_mib=128 key_size_bytes={size} key_layout=Sequential write_delta={delta} reads=Yes"
           for size, delta in WRITES]
    for number in (2, 3):
        reports.criterion(place / "rounds" / f"{number}-baseline", ids, 1e9)
    (place / "rounds" / "baseline-version").write_text("first 1.0\n")
    reports.put(place / "4", ingest_more={"volume_mib": 128, "rounds": 3, "keep_bytes": 1, "rows": list(rows())[:1]})
    done = report(place)
    assert done.returncode == 0, done.stderr
    page = (place / "ingest_more.md").read_text()
    # It takes in 128 MiB/s, we 500.
    assert page.count("first pageserver's 128 in this run") == 4 and "| 128 | 3.9x |" in page and "first 1.0" in page
    joined = json.loads((place / "ingest_more.json").read_text())["results"]["rows"]
    assert [len(row["runs"]) for row in joined][:2] == [6, 3]


WRONG = {
    "two rounds": lambda one: of_kind(one, kind="copy")["runs"].pop(),
    "a case less": lambda one: one["results"]["rows"].pop(),
    "no rate": lambda one: of_kind(one, kind="download")["runs"][0].update(mib_per_s=0),
    "nothing read": lambda one: of_kind(one, reads=True)["runs"][1]["read"].update(per_s=0),
    "pages that shrink too much": lambda one: [
        run.update(stored_bytes=40 << 20) for run in of_kind(one, kind="image", pages="rows")["runs"]],
    "random pages that shrink": lambda one: [
        run.update(stored_bytes=1 << 20) for run in of_kind(one, kind="image", pages="random")["runs"]],
    **reports.SPOILED,
}


@pytest.mark.parametrize("what", WRONG)
def test_what_proves_nothing_is_refused(place, what):
    change(place / "1" / "ingest_more.json", WRONG[what])
    done = report(place)
    assert done.returncode != 0 and "no report" in done.stderr, done.stderr
    assert not (place / "ingest_more.md").exists() and not (place / "ingest_more.json").exists()
