"""The report about wide rows judges loads and queries one by one, and refuses loads that have no counterpart."""

import json

import pytest

from regress.test_benchmark_reports import put, run


def results() -> dict:
    loads = [{"who": who, "connections": connections, "indexes": indexes, "index_s": 1.0, "copy_s": 1.0,
              "rows_per_s": rate, "behind_s": 0.1}
             for connections, indexes in ((1, "after"), (5, "before"))
             for who, rates in (("plain", (1000, 1000, 1000)), ("compute", (920, 800, 950))) for rate in rates]
    times = [{"first_ms": first, "again_ms": 2.0} for first in (20.0, 24.0, 90.0)]
    reads = [{"query": query, "rounds": {"plain": times, "compute": times}} for query in ("eq", "sum")]
    return {"pg_major": 15, "drop_caches": False, "rows": 1000, "columns": 64, "indexes": 14, "row_bytes": 1900,
            "table_mib": 2, "index_mib": 1, "disk_mib": 10, "loads": loads, "reads": reads}


def made(tmp_path, found) -> str:
    put(tmp_path, wide=found)
    done = run("wide", tmp_path)
    assert done.returncode == 0, done.stderr
    return (tmp_path / "wide.md").read_text()


def test_every_target_has_a_row(tmp_path):
    page = made(tmp_path, results())
    assert "| 1 connection, indexes after: rows/s of the plain server's, medians (at least 0.9) | 0.92 | yes |" in page
    assert "| 5 connections, indexes before: the same, lowest of the rounds (never below 0.7) | 0.80 | yes |" in page
    assert "| sum: first run, of the second, medians (at most 15) | 12.0 | yes |" in page
    assert "| eq | compute | 24.0 | 90.0 | 2.0 | 12.0 |" in page and "**missed**" not in page


def change(rates):
    """Changes the rates of the compute in the last kind of load."""
    def spoil(found):
        for load, rate in zip(found["loads"][-3:], rates):
            load["rows_per_s"] = rate
    return spoil


@pytest.mark.parametrize("spoil, row", [
    (change((880, 950, 700)), "5 connections, indexes before: rows/s of the plain server's, medians"),
    (change((950, 950, 690)), "5 connections, indexes before: the same, lowest"),
    (lambda found: found["reads"][1].update(rounds={who: [{"first_ms": 32.0, "again_ms": 2.0}] for who in
                                                    ("plain", "compute")}), "sum: first run"),
], ids=["median", "one round", "cold"])
def test_a_missed_target_is_said(tmp_path, spoil, row):
    found = results()
    spoil(found)
    missed = [line for line in made(tmp_path, found).splitlines() if "**missed**" in line]
    assert len(missed) == 1 and row in missed[0], missed


@pytest.mark.parametrize("spoil, why", [
    (lambda found: found["loads"].pop(), "2 rounds of the compute, 3 of the plain server"),
    (lambda found: found["loads"][0].update(rows_per_s=0), "times that cannot be"),
    (lambda found: found["reads"][0]["rounds"]["compute"][0].update(again_ms=0.0), "times that cannot be"),
    (lambda found: found["reads"].clear(), "times that cannot be"),
], ids=["no counterpart", "no rate", "no time", "no reads"])
def test_what_compares_nothing_is_refused(tmp_path, spoil, why):
    found = results()
    spoil(found)
    put(tmp_path, wide=found)
    done = run("wide", tmp_path)
    assert done.returncode != 0 and why in done.stderr and not list(tmp_path.glob("*.md")), done.stderr


def test_an_artifact_that_proves_nothing_is_refused(tmp_path):
    (path,) = put(tmp_path, wide=results())
    spoiled = json.loads(path.read_text())
    spoiled["validity"]["different"] = 1
    path.write_text(json.dumps(spoiled))
    assert "no report" in run("wide", tmp_path).stderr and not (tmp_path / "wide.md").exists()
