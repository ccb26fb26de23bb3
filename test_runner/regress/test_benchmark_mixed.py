"""The report about reads beside writes shows medians and the worst, and refuses what proves nothing."""

import pytest

from regress.test_benchmark_reports import put, run


def results() -> dict:
    read = {"per_s": 40_000, "p50_us": 180, "p95_us": 400, "p99_us": 700, "max_us": 9000, "server_us": 21.5,
            "rss_mib": 200}
    both = {**read, "per_s": 20_000, "tps": 900.0}
    rounds = [{"written": {"tps": tps}, "read": read, "both": {**both, "per_s": rate}}
              for tps, rate in ((1000.0, 20_000), (1100.0, 19_000), (900.0, 21_000))]
    backup = {"mib": 1040, "seconds": 2.0, "mib_per_s": 520, "server_cpu_s": 1.4}
    return {"pg_major": 15, "connections": 8, "clients": 2, "seconds": 15, "database_mib": 1000, "cached_pages": 26_000,
            "rounds": rounds, "backups": [backup, {**backup, "mib_per_s": 480}, backup]}


def test_reads_and_writes_have_medians_and_the_worst(tmp_path):
    put(tmp_path, mixed=results())
    done = run("mixed", tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "mixed.md").read_text()
    assert "| nobody writes | 40,000 | 40,000 | 180 | 400 | 700 | 9,000 | 21.5 | 200 |" in page
    assert "| beside pgbench | 20,000 | 19,000 |" in page
    assert "| nobody reads | 1,000 | 900 |" in page and "| beside reads | 900 | 900 |" in page
    assert "of 1,040 MiB, came at 520 MiB/s (480 in the slowest round) and took 1.4 s" in page


@pytest.mark.parametrize("spoil, why", [
    (lambda found: found.update(rounds=[]), "no rounds"),
    (lambda found: found["rounds"][1]["both"].update(per_s=0), "did nothing"),
    (lambda found: found["backups"][0].update(mib=10), "less than the 1000 MiB"),
], ids=["none", "idle", "short"])
def test_reads_beside_writes_that_prove_nothing_are_refused(tmp_path, spoil, why):
    found = results()
    spoil(found)
    put(tmp_path, mixed=found)
    done = run("mixed", tmp_path)
    assert done.returncode and why in done.stderr and not (tmp_path / "mixed.md").exists(), done.stderr
