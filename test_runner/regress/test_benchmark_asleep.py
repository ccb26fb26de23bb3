"""The report about branches that sleep judges each figure, and refuses what proves nothing."""

import pytest

from regress.test_benchmark_reports import put, run


def held(processes: int, pageserver: float, gateway: float, disk=0.0) -> dict:
    return {"processes": processes, "mounts": processes, "pageserver_mib": pageserver, "gateway_mib": gateway,
            "disk_mib": disk}


def results() -> dict:
    return {"pg_major": 15, "database_mib": 1024, "branches": 100, "before": held(0, 200.0, 20.0),
            "asleep": held(0, 240.0, 30.0, 500.0), "woken": 20, "first_s": 0.5, "last_s": 4.0,
            "awake": held(140, 260.0, 31.0)}


def test_sleeping_branches_are_judged(tmp_path):
    put(tmp_path, asleep=results())
    done = run("asleep", tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "asleep.md").read_text()
    assert "| processes of 100 branches whose computes sleep (none) | 0 | yes |" in page
    assert "together (at most 1 MiB) | 0.50 MiB | yes |" in page
    assert "| 20 of them that are woken at once have all answered after (at most 5 s) | 4.0 s | yes |" in page
    assert "takes 5.0 MiB of local disk asleep" in page and "**missed**" not in page


@pytest.mark.parametrize("spoil, row", [
    (lambda found: found["asleep"].update(processes=1), "processes of 100"),
    (lambda found: found["asleep"].update(pageserver_mib=300.0), "memory for each"),
    (lambda found: found.update(last_s=5.1), "woken at once"),
], ids=["processes", "memory", "time"])
def test_what_sleepers_cost_too_much_is_said(tmp_path, spoil, row):
    found = results()
    spoil(found)
    put(tmp_path, asleep=found)
    assert run("asleep", tmp_path).returncode == 0
    missed = [line for line in (tmp_path / "asleep.md").read_text().splitlines() if "**missed**" in line]
    assert len(missed) == 1 and row in missed[0], missed


@pytest.mark.parametrize("spoil", [
    lambda found: found["awake"].update(processes=3),
    lambda found: found["asleep"].update(disk_mib=0),
    lambda found: found.update(branches=0),
], ids=["not counted", "no computes", "none"])
def test_sleepers_that_never_were_are_refused(tmp_path, spoil):
    found = results()
    spoil(found)
    put(tmp_path, asleep=found)
    done = run("asleep", tmp_path)
    assert done.returncode and not (tmp_path / "asleep.md").exists(), done.stderr
