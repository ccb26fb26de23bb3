"""The report about the first copy judges each size, and refuses what has no counterpart."""

import pytest

from regress.test_benchmark_reports import put, run


def results() -> dict:
    plain = [{"who": "plain", "seconds": seconds, "cpu_s": 2.0, "mib": 1000} for seconds in (9.0, 10.0, 20.0)]
    store = [{"who": "store", "seconds": seconds, "cpu_s": 2.2, "mib": 400, "peak_mib": 200} for seconds in (8, 10, 11)]
    sizes = [{"database_mib": mib, "rounds": plain + store} for mib in (1000, 4000)]
    return {"pg_major": 15, "drop_caches": False, "sizes": sizes}


def made(tmp_path, found) -> str:
    put(tmp_path, first_copy=found)
    done = run("first_copy", tmp_path)
    assert done.returncode == 0, done.stderr
    return (tmp_path / "first_copy.md").read_text()


def changed(found, which, **more):
    """The rounds of the pageserver at one size, with other figures."""
    size = found["sizes"][which]
    size["rounds"] = [{**one, **more} if one["who"] == "store" else one for one in size["rounds"]]


def test_every_target_has_a_row(tmp_path):
    page = made(tmp_path, results())
    assert "| 1,000 MiB: rate of the copy, of pg_basebackup's (at least 0.9) | 1.00 | yes |" in page
    assert "| 4,000 MiB: processor time, of pg_basebackup's (at most 1.2) | 1.1 | yes |" in page
    assert "| 4,000 MiB: most memory, of that of the smallest (at most 1.2) | 1.00 | yes |" in page
    assert "| 4,000 | pg_basebackup | 10.00 | 20.00 | 400 | 2.0 | 1,000 |  |" in page and "**missed**" not in page


@pytest.mark.parametrize("more, row", [
    ({"seconds": 12.0}, "4,000 MiB: rate of the copy"), ({"cpu_s": 2.5}, "4,000 MiB: processor time"),
    ({"peak_mib": 300}, "4,000 MiB: most memory"),
], ids=["rate", "cpu", "memory"])
def test_a_missed_target_is_said(tmp_path, more, row):
    found = results()
    changed(found, 1, **more)
    missed = [line for line in made(tmp_path, found).splitlines() if "**missed**" in line]
    assert len(missed) == 1 and row in missed[0], missed


@pytest.mark.parametrize("spoil, why", [
    (lambda found: found["sizes"][0].update(rounds=found["sizes"][0]["rounds"][1:]), "3 copies, 2 of pg_basebackup"),
    (lambda found: changed(found, 0, seconds=0.0), "times that cannot be"),
    (lambda found: found["sizes"].reverse(), "do not ascend"),
], ids=["counterpart", "time", "order"])
def test_what_proves_nothing_is_refused(tmp_path, spoil, why):
    found = results()
    spoil(found)
    put(tmp_path, first_copy=found)
    done = run("first_copy", tmp_path)
    assert done.returncode and why in done.stderr and not (tmp_path / "first_copy.md").exists(), done.stderr
