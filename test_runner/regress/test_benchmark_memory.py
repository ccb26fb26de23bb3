"""The report about memory judges each target, and refuses runs that show neither growth nor a recovery."""

import json

import pytest

from regress.test_benchmark_reports import put, run

MIB = 1 << 20


def sample(what: str, rss: float, **used) -> dict:
    return {"what": what, "layers": 4, "rss_mib": rss, "program_mib": 20.0,
            "used_mib": {"page_cache": 15.0, "in_memory_index": 10.0, "block_cache": 0.0, **used},
            "allocator_mib": {"allocated": 30.0, "resident": 32.5}}


def results() -> dict:
    steps = [{"wal_mib": 1024, "seconds": 10.0, "mib_per_s": rate, "peak_mib": peak, "slowed_s": 0.0, "layers": 4,
              "stored_mib": 10, "sample": sample("intake", 50.0)} for rate, peak in ((100.0, 60.0), (90.0, 70.0))]
    samples = [sample(f"{what} {when}", 50.0) for when in ("before", "after") for what in ("idle", "loaded")]
    kills = [{"open_mib": 180.0, "wal_mib": 95.0, "up_s": 0.1, "seconds": seconds, "slowed_s": 0.0, "peak_mib": 60.0}
             for seconds in (1.0, 1.5)]
    size = {"database_mib": 1000, "imported_mib": 500, "stored_mib": 2548, "samples": samples, "steps": steps,
            "kills": kills}
    limits = {"page_cache_size": 8192, "block_cache_memory": 96 * MIB, "compaction_memory": 96 * MIB,
              "checkpoint_distance": 256 * MIB}
    return {"pg_major": 15, "limits": limits, "disk_budget_mib": 4096, "step_mib": 1024, "told_wal_mib": [1024, 2048],
            "reads": 10, "sizes": [size]}


def made(tmp_path, found) -> str:
    put(tmp_path, memory=found)
    done = run("memory", tmp_path)
    assert done.returncode == 0, done.stderr
    return (tmp_path / "memory.md").read_text()


def test_every_target_has_a_row(tmp_path):
    page = made(tmp_path, results())
    # 20 of the program, 25 counted and 2.5 that the allocator keeps leave 2.5 of 50.
    assert "| 1,000 | memory that no metric accounts for, at worst (at most 15%) | 5% | yes |" in page
    assert "| 1,000 | idle: of the budgets and 2 KiB a layer (at most 1) | 0.31 | yes |" in page
    assert "| 1,000 | rate of the last step, of the first (at least 0.85) | 0.90 | yes |" in page
    assert "| 1,000 | recovery, of the intake of the same WAL: slowest (at most 2) | 1.50 | yes |" in page
    assert "| 1,000 | intake of 2,048 MiB, peak | 4 | 70 |" in page and "| 2,548 | 1.00 |" in page
    assert "| 5% | 30 | 2 |" in page, "what the allocator has"
    assert "**missed**" not in page and "No metric has" not in page
    assert (tmp_path / "memory.svg").read_text().count("<polyline") == 2


@pytest.mark.parametrize("spoil, row", [
    (lambda size: size["samples"][0]["used_mib"].update(page_cache=None), "no metric accounts for"),
    (lambda size: size["samples"][0]["used_mib"].update(page_cache=40.0), "no metric accounts for"),
    (lambda size: size["samples"][0]["allocator_mib"].update(resident=45.0), "no metric accounts for"),
    (lambda size: size["samples"][2].update(rss_mib=161.0, program_mib=131.0), "idle"),
    (lambda size: size["samples"][3].update(rss_mib=201.0, program_mib=171.0), "loaded"),
    (lambda size: size["steps"][1].update(mib_per_s=84.0), "rate of the last step"),
    (lambda size: size["kills"][1].update(seconds=2.1), "slowest"),
], ids=["unknown", "counted twice", "kept twice", "idle", "loaded", "slower", "slow recovery"])
def test_a_missed_target_is_said(tmp_path, spoil, row):
    found = results()
    spoil(found["sizes"][0])
    missed = [line for line in made(tmp_path, found).splitlines() if "**missed**" in line]
    assert len(missed) == 1 and row in missed[0], missed


def test_a_use_without_a_metric_is_named(tmp_path):
    found = results()
    for one in found["sizes"][0]["samples"]:
        one["used_mib"]["in_memory_index"] = None
    assert "No metric has: in memory index." in made(tmp_path, found)


@pytest.mark.parametrize("spoil, why", [
    (lambda size: size["steps"].pop(), "one step"),
    (lambda size: size["steps"][0].update(wal_mib=1000), "was not taken in"),
    (lambda size: size["kills"].clear(), "no kill"),
    (lambda size: size["kills"][0].update(open_mib=100.0), "no kill"),
], ids=["one step", "less WAL", "no kill", "open layer not full"])
def test_a_run_that_shows_neither_growth_nor_recovery_is_refused(tmp_path, spoil, why):
    found = results()
    spoil(found["sizes"][0])
    put(tmp_path, memory=found)
    done = run("memory", tmp_path)
    assert done.returncode != 0 and why in done.stderr, done.stderr
    assert not list(tmp_path.glob("*.md")) and not list(tmp_path.glob("*.svg"))


def test_an_artifact_that_proves_nothing_is_refused(tmp_path):
    (path,) = put(tmp_path, memory=results())
    spoiled = json.loads(path.read_text())
    spoiled["validity"]["different"] = 1
    path.write_text(json.dumps(spoiled))
    assert "no report" in run("memory", tmp_path).stderr and not (tmp_path / "memory.md").exists()
