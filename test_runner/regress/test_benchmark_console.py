"""The report about the console judges each figure, and refuses what says nothing."""

import pytest

from regress.test_benchmark_reports import put, run


def results() -> dict:
    opened = {"first_paint_ms": 300.0, "branches_ms": 700, "requests": 20, "page_bytes": 60_000, "other_hosts": []}
    moved = {"frames_per_s": 55.0, "gap_p99_ms": 30.0, "gap_max_ms": 40.0, "draw_p50_ms": 8.0, "draw_p99_ms": 12.0}
    return {
        "pg_major": 15, "browser": "156.0", "layers": 10_200, "opened": [opened, {**opened, "first_paint_ms": 400.0}],
        "map": {"shown": 10_201, "moves": {"all": [moved, {**moved, "frames_per_s": 50.0}], "closer": [moved]}},
    }


def made(tmp_path, found) -> str:
    put(tmp_path, console=found)
    done = run("console", tmp_path)
    assert done.returncode == 0, done.stderr
    return (tmp_path / "console.md").read_text()


def test_every_figure_of_the_console_has_a_row(tmp_path):
    page = made(tmp_path, results())
    assert "| first paint, the slowest of 2 (at most 1,000 ms) | 400 ms | yes |" in page
    assert "compressed (at most 300 KiB) | 59 KiB | yes |" in page
    assert "with 10,201 layers, the slowest round (at least 30 with 10,000) | 50 | yes |" in page
    assert "| other hosts that are asked for anything (none) | none | yes |" in page
    assert "Chromium 156.0" in page and "**missed**" not in page


@pytest.mark.parametrize("spoil, row", [
    (lambda found: found["opened"][1].update(first_paint_ms=1001.0), "first paint"),
    (lambda found: found["opened"][0].update(page_bytes=400 << 10), "compressed"),
    (lambda found: found["map"]["moves"]["closer"][0].update(frames_per_s=29.0), "frames per second"),
    (lambda found: found["map"].update(shown=9_000), "frames per second"),
    (lambda found: found["opened"][1].update(other_hosts=["cdn.example"]), "other hosts"),
], ids=["paint", "weight", "frames", "layers", "hosts"])
def test_a_missed_figure_of_the_console_is_said(tmp_path, spoil, row):
    found = results()
    spoil(found)
    missed = [line for line in made(tmp_path, found).splitlines() if "**missed**" in line]
    assert len(missed) == 1 and row in missed[0], missed


@pytest.mark.parametrize("spoil, why", [
    (lambda found: found["map"]["moves"].update(all=[]), "not everything was measured"),
    (lambda found: found.update(opened=[]), "not everything was measured"),
    (lambda found: found["opened"][0].update(first_paint_ms=0), "took no time"),
    (lambda found: found["opened"][0].update(page_bytes=9), "weighs nothing"),
], ids=["moves", "opened", "paint", "weight"])
def test_a_report_of_the_console_that_says_nothing_is_not_made(tmp_path, spoil, why):
    found = results()
    spoil(found)
    put(tmp_path, console=found)
    done = run("console", tmp_path)
    assert done.returncode != 0 and why in done.stderr and not (tmp_path / "console.md").exists()
