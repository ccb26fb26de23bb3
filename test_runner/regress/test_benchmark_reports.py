"""Benchmark reports are produced only from artifacts that are valid evidence."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHES = Path(__file__).resolve().parents[2] / "benches"
TOPOLOGY = {
    "date": "2026-01-31", "commit": "unknown", "dirty": False, "cores": 2, "cpu": "a processor", "memory_gib": 24,
    "kernel": "6", "file_system": "ext4", "engine": "std-fs", "io_mode": "Direct", "allocator": "malloc",
    "profile": "release", "store": "none", "delay_ms": [0], "client_on_same_cores": True, "load_before": 0.1,
}
VALIDITY = {"unit": "pages", "expected": 10, "seen": 10, "compared": 10, "different": 0}
MODES = ("Buffered", "Direct", "DirectRw")
CASES = (("100", "Records", "Yes"), ("100", "Records", "No"), ("100", "Sequential", "Yes"), ("100", "Random", "Yes"),
         ("100", "RandomReuse(1023)", "Yes"), ("100", "Sequential", "No"), ("8192", "Sequential", "Yes"),
         ("8192", "Sequential", "No"))


def of(results) -> dict:
    return {"format": 1, "bench": "some", "topology": dict(TOPOLOGY), "validity": dict(VALIDITY), "results": results}


def intake_round():
    pageserver = {"cpu_seconds": 1.0, "peak_rss_mib": 100, "settled_s": 5.0, "settled_cpu_seconds": 2.0}
    return {"pageserver": pageserver, "standby": {"cpu_seconds": 1.0}}


def server(place: Path) -> list[Path]:
    pages = [{"case": "image in the open layer", "in_flight": depth, "pages_per_s": 9000.0, "p50_us": 70.0,
              "p99_us": 90.0, "p999_us": 100.0} for depth in (1, 16)]
    restart = [{"layers": 100, "load_ms": 1.0, "first_read_ms": 1.0, "rss_mib": 5.0, "branch_ms_median": 1.0,
                "branch_ms_max": 2.0}]
    intake = {"scale": 1, "gib": 1, "cases": [{
        "full_page_writes": True, "wal_mib": 9, "rounds": [intake_round()], "pageserver_mib_per_s": 9.0,
        "standby_mib_per_s": 4.0, "ratio": 2.25}]}
    return put(place, get_page=pages, restart=restart, wal_intake=intake)


def redo(place: Path) -> list[Path]:
    chain = {"kind": "heap", "records": 10, "us_per_page": 2.0, "best_us_per_page": 2.0, "pages_per_s": 1.0,
             "records_per_s": 1.0, "pages_per_s_all_cores": 2.0, "scaling": 2.0}
    whole = {"wal_bytes": 1, "cases": [{"threads": 1, "seconds": 1.0, "decoding_seconds": 0.1, "records": 5,
                                        "records_per_s": 5.0}]}
    types = [{"record": "INSERT", "block": 0, "changed": 1, "ns": 100.0, "records_per_s": 1.0}]
    standby = {"version": "15", "shared_buffers": "1GB", "rounds": [{"elapsed": 2.0}]}
    return put(place, redo={"quick": False, "cores": 2, "chains": [chain], "whole": whole, "types": types},
               redo_standby=standby)


def tiered(place: Path) -> list[Path]:
    point = {"latency_ms": 0, "level": "none", "pages_per_read": 1, "p50_ms": 1.0, "p95_ms": 1.0, "p99_ms": 1.0,
             "gets_per_read": 2.0, "gets_per_page": 2.0, "bytes_per_page": 1.0, "cache_memory_bytes": 1,
             "cache_disk_bytes": 1}
    scan = {"latency_ms": 0, "read_ahead_max": 4 << 20, "prefetch_whole_after": 101, "bytes": 1, "mib_per_second": 1.0,
            "gets": 1, "bytes_ratio": 1.0, "mean_get_bytes": 2 << 20, "first_batch_ms": 1.0}
    start = {"layers": 100, "latency_ms": 0, "open_ms": 1.0, "first_page_ms": 1.0, "requests_until_first_page": 3}
    run = {"store": "directory", "points": [point], "scans": [scan], "restarts": [start],
           "shape": {"endpoint": "here", "latencies_ms": [0], "latency": "added", "layers": 1, "pages_per_layer": 1,
                     "page_bytes": 8192},
           "upload": {"layers": 1, "bytes": 1, "mb_per_second": 1.0, "processor": None}}
    return put(place, tiered=[run])


def compute(place: Path) -> list[Path]:
    size = {"database_mib": 1, "store_mib": 1.0, "rounds": [{"first_answer_s": 0.2}], "ready_s": 0.1,
            "first_answer_s": 0.2, "disk_mib": 8.0, "scan": None}
    return put(place, compute={"pg_major": 15, "drop_caches": False, "sizes": [size], "pgbench": None})


def compaction(place: Path) -> list[Path]:
    depth = {"searched_p50": 1, "searched_p99": 3, "records_p50": 1, "records_p99": 20}
    sample = {"written_mib": 1, "read_p50_us": 90, "read_p99_us": 200, "depth": depth, "l0": 2, "layers": 9,
              "read_searched_p99": 8, "read_records_p99": 32, "space": 1.1, "stored_mib": 5, "rss_mib": 50.0}
    did = {"jobs": 1, "bytes_in": 1, "bytes_out": 1, "millis": 1}
    runs = [{"order": "uniform", "compaction": on, "pages": 4, "written_mib": 9, "kept_mib": 2, "import_mib": 1,
             "ingest_mib_per_s": 90.0, "pause_p99_us": 1000, "most_l0": 5, "settled_s": 0.5, "stored_mib": 10,
             "settling_read_p99_us": 120, "idle_read_p99_us": 100,
             "job_bytes_per_byte": 2.0, "jobs": dict.fromkeys(["sort", "merge", "image", "fold", "trim"], did),
             "samples": [sample] * 16}
            for on in (True, False)]
    return put(place, compaction=runs)


def load(place: Path) -> list[Path]:
    def row(form, order, connections, in_flight):
        return {"form": form, "order": order, "connections": connections, "in_flight": in_flight, "per_s": 80000.0,
                "p50_us": 50.0, "p95_us": 60.0, "p99_us": 70.0, "p999_us": 80.0, "max_us": 90.0, "client_us": 5.0,
                "server_us": 6.0, "client_core": 0.5, "server_rss_mib": 100}

    counts = [2**power for power in range(8)]
    rows = [row("echo", "", count, 1) for count in counts]
    for order in ("uniform", "zipf 0.99"):
        rows += [row("page", order, count, 1) for count in counts] + [row("page", order, 4, 16)]
    rows += [row(form, "", count, 1) for form in ("exists", "exists, missing") for count in (1, 16)]
    return put(place, load={"pages": 131072, "cached_pages": 32768, "rows": rows})


def ingest(place: Path) -> list[Path]:
    """Files as a run of the benchmark leaves them below the build's directory."""
    ids = [f"io_mode={mode} volume_mib=128 key_size_bytes={size} key_layout={layout} write_delta={delta}"
           for mode in MODES for size, layout, delta in CASES]
    criterion(place / "rounds" / "1-ours", ids, 1e9)
    limit = {"device_limit": 1000.0}
    reads = {f"point {way}": {"us": 1.0, "data_reads": 1.0} for way in ("sealed", "sorted")}
    cpu = [{"id": one, "cpu_ns_per_value": 100.0} for one in ids]
    return put(place / "tmp", device_limit_before=limit, device_limit_after=limit, bench_layer_read=reads,
               bench_ingest=cpu)


def criterion(home: Path, ids, nanoseconds: float):
    for number, one in enumerate(ids):
        new = home / "ingest" / str(number) / "new"
        new.mkdir(parents=True)
        (new / "benchmark.json").write_text(json.dumps({"value_str": one}))
        (new / "estimates.json").write_text(json.dumps({"median": {"point_estimate": nanoseconds}}))


def put(place: Path, **results) -> list[Path]:
    place.mkdir(parents=True, exist_ok=True)
    paths = [place / f"{name.replace('compute_cold', 'compute-cold')}.json" for name in results]
    for path, result in zip(paths, results.values()):
        path.write_text(json.dumps(of(result)))
    return paths


def run(report: str, place: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, BENCHES / f"report_{report}.py"]
    if report == "ingest":
        command += ["--target", place, "--out", place]
    else:
        command += [place / "compute.json" if report == "compute" else place]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True)


REPORTS = {"ingest": ingest, "server": server, "redo": redo, "tiered": tiered, "compute": compute,
           "compaction": compaction, "load": load}
SPOILED = {
    "zero rows": lambda one: one["validity"].update(expected=0, seen=0, compared=0),
    "nothing compared": lambda one: one["validity"].update(compared=0),
    "a wrong row": lambda one: one["validity"].update(different=1),
    "a missing row": lambda one: one["validity"].update(seen=9),
    "no topology": lambda one: one.pop("topology"),
    "topology without a commit": lambda one: one["topology"].pop("commit"),
    "no validity": lambda one: one.pop("validity"),
    "no results": lambda one: one.update(results=[]),
    "another format": lambda one: one.update(format=0),
}


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_is_made_of_artifacts_that_prove_something(tmp_path, report):
    REPORTS[report](tmp_path)
    done = run(report, tmp_path)
    assert done.returncode == 0, done.stderr
    page = next(tmp_path.glob("*.md")).read_text()
    assert "commit unknown as committed" in page and "10 pages compared, 0 different" in page
    assert "older than the code" in page, "nobody knows of this commit whether the code is that of today"


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_refuses_what_proves_nothing(tmp_path, report):
    good = tmp_path / "good"
    names = [path.relative_to(good) for path in REPORTS[report](good)]
    for name in names:
        for what, spoil in SPOILED.items():
            place = tmp_path / "spoiled"
            shutil.copytree(good, place)
            one = json.loads((place / name).read_text())
            spoil(one)
            (place / name).write_text(json.dumps(one))
            done = run(report, place)
            assert done.returncode != 0 and "no report" in done.stderr, (name, what, done.stdout, done.stderr)
            assert not list(place.glob("*.md")) and not list(place.glob("*.svg")), (name, what)
            shutil.rmtree(place)


def test_missed_is_said(tmp_path):
    server(tmp_path)
    run("server", tmp_path)
    page = (tmp_path / "server.md").read_text()
    assert page.count("**missed**") == 3, page


def test_a_load_is_judged_row_by_row(tmp_path):
    load(tmp_path)
    found = json.loads((tmp_path / "load.json").read_text())
    slow = next(row for row in found["results"]["rows"] if row["order"] == "uniform" and row["connections"] == 16)
    slow.update(per_s=70000.0, p999_us=1300.0, client_core=0.97)
    found["results"]["rows"][-1].update(p50_us=51.0)
    (tmp_path / "load.json").write_text(json.dumps(found))
    assert run("load", tmp_path).returncode == 0
    page = (tmp_path / "load.md").read_text()
    # Of what is asked of sixteen in flight 80,000 pages/s are too few, twice.
    assert "| | 16 connections: exists, missing: p50, of one that is there (at most 1) | 1.02 | **missed** |" in page
    assert page.count("**missed**") == 5 and page.count("client-bound") == 1, page
    assert "<polyline" in (tmp_path / "load.svg").read_text()
    (tmp_path / "load.md").unlink()
    slow.update(p50_us=0.002, p99_us=0.002)
    (tmp_path / "load.json").write_text(json.dumps(found))
    done = run("load", tmp_path)
    assert done.returncode != 0 and "times that cannot be" in done.stderr and not (tmp_path / "load.md").exists()


def test_a_ratio_needs_the_other_program_in_the_same_run(tmp_path):
    ingest(tmp_path)
    run("ingest", tmp_path)
    assert "ratio" not in (tmp_path / "ingest.md").read_text()
    rounds = tmp_path / "rounds"
    theirs = [f"io_mode=Direct volume_mib=128 key_size_bytes={size} key_layout={layout} write_delta={delta} rest=No"
              for size, layout, delta in CASES[2:]]
    criterion(rounds / "2-baseline", theirs, 2e9)
    criterion(rounds / "3-baseline", theirs, 4e9)
    (rounds / "baseline-version").write_text("other 1.0\n")
    (rounds / "baseline-load").write_text("0.1\n0.2\n")
    done = run("ingest", tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "ingest.md").read_text()
    # The mean of 64 and 32 MiB/s, against our 128.
    assert page.count("| 48 | 2.7x |") == 6 and "other 1.0" in page and "0.1, 0.2" in page, page
    assert len(json.loads((tmp_path / "ingest.json").read_text())["results"]["baseline"]["rounds"]) == 2


def test_a_program_with_two_cases_for_one_of_ours_is_refused(tmp_path):
    ingest(tmp_path)
    one = "io_mode=Direct volume_mib=128 key_size_bytes=100 key_layout=Random write_delta=Yes concurrent_reads="
    criterion(tmp_path / "rounds" / "2-baseline", [f"{one}Yes", f"{one}No"], 2e9)
    done = run("ingest", tmp_path)
    assert done.returncode != 0 and "have the program run one of them" in done.stderr
