"""The report on the write path's time is only made of stages that account for the time that their tasks took."""

import json
import sys
from pathlib import Path

import pytest

from test_benchmark_reports import BENCHES, of, run

sys.path.insert(0, str(BENCHES))

from report_attribution import STAGES, STREAMING  # noqa: E402


def one_run(delay, rate=100.0) -> dict:
    """One second in each stage; nothing is uploaded without a bucket."""
    stages = {stage: float(task != "upload" or delay is not None) for task, names in STAGES.items() for stage in names}
    walls = {task: sum(stages[stage] for stage in names) for task, names in STAGES.items()}
    # Tasks that run at the same time take the same time; the ingest has the most stages.
    for task in STREAMING:
        stages[STAGES[task][0]] += walls["ingest"] - walls[task]
        walls[task] = walls["ingest"]
    return {"intake_s": walls["ingest"], "stages": stages, "walls": walls, "cpu_s": 12.0, "mib": 100.0, "records": 1e6,
            "uploaded_mib": 300.0, "compaction": {"sort": 2.0, "merge": 0.0}, "durable_s": 9.0, "uploaded_s": 10.0,
            "mib_per_s": rate}


def results() -> dict:
    places = [{"delay_ms": delay, "rounds": [one_run(delay, rate)]} for delay, rate in ((None, 100.0), (25, 94.0))]
    return {"scale": 1, "wal_mib": 100.0, "link_mib_per_s": 500.0, "topologies": places}


def report(place: Path, found: dict):
    (place / "attribution.json").write_text(json.dumps(of(found)))
    return run("attribution", place)


def test_every_stage_has_a_row(tmp_path):
    done = report(tmp_path, results())
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "attribution.md").read_text()
    for row in ["| serialize | ingest | 1.000 | 10.0% | ", "| wait for wal | decode | 8.000 | 80.0% |  |  |",
                "| sort | seal | 1.000 |", "| *together* | ingest | 10.000 of 10.000 | 100.0% |",
                "| sort | compaction | 2.000 | 100.0% |", "| *processor time* | all | 12.000 | | | 12,000 |"]:
        assert row in page, (row, page)
    local, far = page.split("## S3, 25 ms")
    assert "| upload | upload |" in far and "| upload | upload |" not in local
    assert "at 300 MiB/s, **more than half of what the link does**" in far


def test_what_is_missed_is_said(tmp_path):
    assert report(tmp_path, results()).returncode == 0
    page = (tmp_path / "attribution.md").read_text()
    # Three of ten seconds go to the disk on both stores, and 94 is less than 0.95 of 100.
    assert page.count("at most 10% | 30.0% | **missed**") == 2 and "at least 0.95 | 0.94 | **missed**" in page, page


SPOILED = {
    "time that is not accounted for": lambda one: one["stages"].update(serialize=0.4),
    "more than the task took": lambda one: one["walls"].update(seal=5.0),
    "an unknown stage": lambda one: one["stages"].update(another=0.0),
    "no such stage": lambda one: one["stages"].pop("fsync"),
    "a task that did nothing": lambda one: (
        one["walls"].update(seal=0.0), one["stages"].update(dict.fromkeys(STAGES["seal"], 0.0))),
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_run_that_is_not_accounted_for_is_refused(tmp_path, what):
    found = results()
    SPOILED[what](found["topologies"][1]["rounds"][0])
    done = report(tmp_path, found)
    assert done.returncode != 0 and "no report" in done.stderr, (done.stdout, done.stderr)
    assert not (tmp_path / "attribution.md").exists()
