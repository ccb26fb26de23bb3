"""The report about takeovers judges each figure, and refuses what proves nothing."""

import pytest

from regress.test_benchmark_reports import put, run


def results() -> dict:
    half = {"page_s": [9.1, 10.2, 10.9], "commit_s": [9.2, 10.3, 10.8]}
    moved = {"calm_s": [0.02, 0.03], "transactions": 5000}
    return {"pg_major": 15, "takeover_after_s": 10, "lease_interval_s": 2, "few": {"layers": 12, **half},
            "many": {"layers": 10_000, **half},
            "handovers": [{"layers": 12, "pause_s": [0.09, 0.11], **moved},
                          {"layers": 10_000, "pause_s": [0.09, 0.21], **moved}]}


def test_every_target_of_a_takeover_has_a_row(tmp_path):
    put(tmp_path, takeover=results())
    done = run("takeover", tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "takeover.md").read_text()
    assert "| first page after the kill, 12 layers (at most 11 s) | 10.90 s | yes |" in page
    assert "| first commit after the kill, 10,000 layers (at most 11 s) | 10.80 s | yes |" in page
    assert "| 10,000 | first commit | 9.20 | 10.30 | 10.80 |" in page
    assert "through a planned handover, 12 layers (at most 200 ms) | 110 ms | yes |" in page
    assert "through a planned handover, 10,000 layers (at most 200 ms) | 210 ms | **missed** |" in page
    assert "| 10,000 | with a handover | 90 | 150 | 210 |" in page and "10,000 transactions" in page


def test_a_takeover_that_took_too_long_is_said(tmp_path):
    found = results()
    found["many"]["page_s"] = [11.1, 10, 10]
    put(tmp_path, takeover=found)
    assert run("takeover", tmp_path).returncode == 0
    missed = [line for line in (tmp_path / "takeover.md").read_text().splitlines() if "**missed**" in line]
    assert len(missed) == 2 and "first page after the kill, 10,000 layers" in missed[0], missed


@pytest.mark.parametrize("spoil, why", [
    (lambda found: found["few"].update(page_s=[]), "not as many pages"),
    (lambda found: found["few"].update(page_s=[9, 9, 2]), "too early"),
    (lambda found: found["handovers"][1].update(pause_s=[]), "nothing was handed over"),
], ids=["none", "early", "no-handover"])
def test_takeovers_that_prove_nothing_are_refused(tmp_path, spoil, why):
    found = results()
    spoil(found)
    put(tmp_path, takeover=found)
    done = run("takeover", tmp_path)
    assert done.returncode and why in done.stderr and not (tmp_path / "takeover.md").exists(), done.stderr
