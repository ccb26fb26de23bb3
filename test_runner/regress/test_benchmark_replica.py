"""The report about replicas judges each figure, and refuses what proves nothing."""

import pytest

from regress.test_benchmark_reports import put, run


def results() -> dict:
    starts = [{"ready_s": 0.6, "first_answer_s": seconds, "disk_mib": 20} for seconds in (0.7, 0.8, 0.9)]
    return {"pg_major": 15, "drop_caches": False, "mib": 20480, "clients": 4, "idle": starts, "loaded": starts,
            "lag": {"ms": [1.0] * 98 + [40.0, 90.0], "commits_per_s": 1200, "seconds": 60}, "promote_s": 1.5}


def test_every_target_of_a_replica_has_a_row(tmp_path):
    put(tmp_path, replica=results())
    done = run("replica", tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "replica.md").read_text()
    assert "| first answer of a replica, pgbench on the primary (at most 1 s) | 0.90 s, the slowest | yes |" in page
    assert "| lag, p99 (at most 100 ms) | 90.0 ms | yes |" in page and "1.50 s" in page


def test_a_replica_that_is_behind_is_said(tmp_path):
    found = results()
    found["lag"]["ms"][-1] = 200.0
    put(tmp_path, replica=found)
    assert run("replica", tmp_path).returncode == 0
    missed = [line for line in (tmp_path / "replica.md").read_text().splitlines() if "**missed**" in line]
    assert len(missed) == 1 and "lag, p99" in missed[0], missed


@pytest.mark.parametrize("spoil, why", [
    (lambda found: found.update(loaded=[]), "no replicas"),
    (lambda found: found["lag"].update(commits_per_s=0), "no load"),
], ids=["none", "idle"])
def test_replicas_that_prove_nothing_are_refused(tmp_path, spoil, why):
    found = results()
    spoil(found)
    put(tmp_path, replica=found)
    done = run("replica", tmp_path)
    assert done.returncode and why in done.stderr and not (tmp_path / "replica.md").exists(), done.stderr
