"""The report about commits judges each figure, and refuses what has no counterpart."""

import pytest

from regress.test_benchmark_reports import put, run

RATES = {"nobody": 900.0, "standby": 500.0, "journal": 490.0, "memory": 600.0}


def one(who: str, clients: int, rate: float) -> dict:
    found = {"clients": clients, "waits_for": who, "per_s": rate, "p50_us": 2000, "p99_us": 9000, "wal_mib": 10.0}
    if who != "nobody":
        found["cpu_ms_per_mib"] = 40.0
    return {**found, "commits_per_sync": 2.0} if who == "journal" else found


def results() -> dict:
    waits = [one(who, clients, rate + more) for clients in (1, 16) for who, rate in RATES.items() for more in range(3)]
    intake = [{"journal": journal, "wal_mib": 1000, "mib_per_s": 100.0, "cpu_ms_per_mib": 10.0}
              for journal in (False, True)]
    group = {"servers": 16, "clients": 4, "commits": 4000, "syncs": 1200, "per_s": 1600.0, "syncs_per_4_commits": 1.2}
    return {"scale": 20, "seconds": 15, "waits": waits, "group": group, "intake": intake}


def made(tmp_path, found) -> str:
    put(tmp_path, commit=found)
    done = run("commit", tmp_path)
    assert done.returncode == 0, done.stderr
    return (tmp_path / "commit.md").read_text()


def of_journal(found, clients: int, **more):
    chosen = [one for one in found["waits"] if one["waits_for"] == "journal" and one["clients"] == clients]
    for one_round in chosen:
        one_round.update(more)


def test_every_target_has_a_row(tmp_path):
    page = made(tmp_path, results())
    assert "| 1 clients: of a stock standby's median (at most 1.1) | 1.00 | yes |" in page
    assert "| 16 clients: of a stock standby's transactions per second (at least 0.95) | 0.98 | yes |" in page
    assert "| 16 servers with 4 clients each: syncs of 4 commits (at most 1.3) | 1.20 | yes |" in page
    assert "| 16 | the pageserver's journal | 491 | 490 to 492 | 2.00 | 9.00 | 40.0 | 2.00 |" in page
    assert "**missed**" not in page


@pytest.mark.parametrize("spoil, row", [
    (lambda found: of_journal(found, 1, p50_us=2300), "1 clients: of a stock standby's median"),
    (lambda found: of_journal(found, 16, p99_us=9999), "16 clients: of a stock standby's p99"),
    (lambda found: of_journal(found, 16, per_s=470.0), "16 clients: of a stock standby's transactions"),
    (lambda found: found["group"].update(syncs_per_4_commits=1.4), "syncs of 4 commits"),
    (lambda found: found["intake"][1].update(cpu_ms_per_mib=11.5), "processor time of the intake"),
], ids=["median", "p99", "rate", "syncs", "cpu"])
def test_a_missed_target_is_said(tmp_path, spoil, row):
    found = results()
    spoil(found)
    missed = [line for line in made(tmp_path, found).splitlines() if "**missed**" in line]
    assert len(missed) == 1 and row in missed[0], missed


@pytest.mark.parametrize("spoil, why", [
    (lambda found: found["waits"].pop(), "not everybody was waited for as often"),
    (lambda found: found["intake"].pop(), "nothing was committed, or taken in"),
    (lambda found: found["group"].update(commits=0), "nothing was committed, or taken in"),
], ids=["counterpart", "journal", "commits"])
def test_what_proves_nothing_is_refused(tmp_path, spoil, why):
    found = results()
    spoil(found)
    put(tmp_path, commit=found)
    done = run("commit", tmp_path)
    assert done.returncode and why in done.stderr and not (tmp_path / "commit.md").exists(), done.stderr
