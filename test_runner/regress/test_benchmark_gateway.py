"""The report about a gateway judges each figure, and refuses what has no counterpart."""

import pytest

from regress.test_benchmark_reports import put, run


def results() -> dict:
    def latency(p50: int) -> dict:
        return {"count": 1000, "p50": p50, "p99": 4 * p50}

    return {
        "pg_major": 15, "drop_caches": False, "clients": 16, "database_mib": 20000,
        "wakes": {"new_s": [0.6, 0.5, 0.4], "asleep_s": [0.3, 0.4, 0.9], "awake_s": [0.02, 0.02, 0.03]},
        "at_once": {"count": 20, "first_s": 0.5, "last_s": 4.0, "gateway_mib": 20.0},
        "latency_us": {"direct": [latency(50), latency(60)], "gateway": [latency(70), latency(90)]},
        "selects_per_s": {"direct": [10_000, 12_000], "gateway": [10_600, 11_000]},
        "idle": {"connections": 2000, "before_mib": 20.0, "after_mib": 95.0},
    }


def made(tmp_path, found) -> str:
    put(tmp_path, gateway=found)
    done = run("gateway", tmp_path)
    assert done.returncode == 0, done.stderr
    return (tmp_path / "gateway.md").read_text()


def test_every_target_has_a_row(tmp_path):
    page = made(tmp_path, results())
    assert "| a sleeping branch of 20,000 MiB answers after (at most 0.5 s) | 0.40 s | yes |" in page
    assert "| 20 that are woken at once have all answered after (at most 5 s) | 4.0 s | yes |" in page
    assert "| one question takes longer, p50 (at most 30 us) | 25 us | yes |" in page
    assert "| selects by 16 clients, of those without a gateway (at least 0.95) | 0.98 | yes |" in page
    assert "| memory for a connection, of 2,000 idle ones (at most 64 KiB) | 38 KiB | yes |" in page
    assert "| the gateway with all of them (at most 100 MiB) | 95 MiB | yes |" in page
    assert "| its compute sleeps | 0.40 | 0.90 |" in page and "| through the gateway | 80 | 320 | 10,800 |" in page
    assert "**missed**" not in page


@pytest.mark.parametrize("spoil, row", [
    (lambda found: found["wakes"].update(asleep_s=[0.6, 0.6, 0.1]), "a sleeping branch"),
    (lambda found: found["at_once"].update(last_s=5.1), "woken at once"),
    (lambda found: found["latency_us"].update(direct=[{"count": 9, "p50": 40, "p99": 50}] * 2), "one question"),
    (lambda found: found["selects_per_s"].update(gateway=[10_000, 10_000]), "selects by 16"),
    (lambda found: found["idle"].update(connections=1000), "memory for a connection"),
    (lambda found: found["idle"].update(before_mib=60.0, after_mib=101.0), "with all of them"),
], ids=["asleep", "at once", "latency", "selects", "each", "all"])
def test_a_missed_target_is_said(tmp_path, spoil, row):
    found = results()
    spoil(found)
    missed = [line for line in made(tmp_path, found).splitlines() if "**missed**" in line]
    assert len(missed) == 1 and row in missed[0], missed


@pytest.mark.parametrize("spoil, why", [
    (lambda found: found["selects_per_s"].update(gateway=[1]), "not as many rounds"),
    (lambda found: found["latency_us"].update(direct=[], gateway=[]), "not as many rounds"),
    (lambda found: found["wakes"].update(new_s=[0.0]), "times that cannot be"),
    (lambda found: found["idle"].update(connections=0), "nothing that was idle"),
], ids=["rounds", "none", "time", "idle"])
def test_what_proves_nothing_is_refused(tmp_path, spoil, why):
    found = results()
    spoil(found)
    put(tmp_path, gateway=found)
    done = run("gateway", tmp_path)
    assert done.returncode and why in done.stderr and not (tmp_path / "gateway.md").exists(), done.stderr
