"""Two commits' figures are told apart where they differ, and only there."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

BENCHES = Path(__file__).resolve().parents[2] / "benches"
sys.path.insert(0, str(BENCHES))

import comparison  # noqa: E402
from comparison import Figure, Suite  # noqa: E402

LIMITS, SAME_RUN, SUITES = comparison.thresholds(BENCHES / "thresholds.toml")


def runs(seed: int, count: int, factor=1.0, noise=0.03) -> dict[Figure, list[float]]:
    """Figures of one commit in some runs, of a program that takes `factor` times as long."""
    chance = random.Random(seed)
    found = {}
    for row in range(20):
        for name, kind, usual in (("per_s", "rate", 50_000.0), ("p50_us", "latency", 70.0)):
            now = usual * (1 / factor if kind == "rate" else factor)
            found[Figure("load", f"row={row}", name, kind)] = [now * chance.gauss(1, noise) for _ in range(count)]
    return found


def verdicts(base, head) -> dict[str, int]:
    judged = comparison.judge(base, head, LIMITS, SAME_RUN)
    return {name: sum(one.verdict == name for one in judged) for name in ("ok", "noise", "regressed", "better")}


@pytest.mark.parametrize("seed", range(10))
def test_the_same_commit_twice_is_no_finding(seed):
    found = verdicts(runs(seed, 2), runs(seed + 100, 2))
    assert found["regressed"] == found["better"] == 0 and found["ok"] > 30, found


@pytest.mark.parametrize("seed", range(5))
def test_a_slowdown_of_15_percent_is_found(seed):
    found = verdicts(runs(seed, 2), runs(seed + 100, 2, factor=1.15))
    assert found["regressed"] >= 20 and found["better"] == 0, found
    found = verdicts(runs(seed, 2, factor=1.15), runs(seed + 100, 2))
    assert found["better"] > 10 and found["regressed"] == 0, found


def test_what_varies_as_much_by_itself_is_noise():
    # Of the same commit, one run is a third faster than the other.
    base, head = runs(1, 2, noise=0.001), runs(2, 2, factor=1.2, noise=0.001)
    noisy = {figure: [one * 1.3 for one in values[:1]] + values[1:] for figure, values in base.items()}
    found = verdicts(noisy, head)
    assert found["regressed"] == 0 and found["noise"] + found["ok"] == 40, found
    # What takes twice as long is a regression all the same.
    assert verdicts(noisy, runs(2, 2, factor=2.6, noise=0.001))["regressed"] == 40


def test_one_row_may_vary_more_than_it_shows():
    """Two runs that agree by chance do not make a figure exact: the others of its name tell how they vary."""
    base, head = runs(3, 2, noise=0.05), runs(4, 2, noise=0.05)
    lucky = next(iter(base))
    base[lucky], head[lucky] = [50_000.0, 50_000.0], [44_500.0, 44_500.0]
    judged = {one.figure: one for one in comparison.judge(base, head, LIMITS, SAME_RUN)}
    assert judged[lucky].noise > 0.03 and judged[lucky].verdict == "noise", judged[lucky]


def test_figures_that_only_one_has_are_not_comparable():
    base, head = runs(5, 2), runs(6, 2)
    gone = base.popitem()[0]
    head[Figure("load", "row=new", "per_s", "rate")] = [1.0, 1.0]
    judged = comparison.judge(base, head, LIMITS, SAME_RUN)
    alone = [one.figure for one in judged if one.verdict == "not comparable"]
    assert set(alone) == {gone, Figure("load", "row=new", "per_s", "rate")}
    assert any("**not comparable**: only one" in line for line in comparison.table(judged))


def test_places_that_differ_are_named():
    place = {"cores": 2, "engine": "std-fs", "date": "2026-01-31", "load_before": 0.1}
    assert comparison.differing([place, {**place, "date": "2026-02-01", "load_before": 0.4}]) == []
    assert comparison.differing([place, {**place, "engine": "tokio-epoll-uring", "cores": 4}]) == ["cores", "engine"]
    assert comparison.differing([]) == []


def test_figures_are_found_by_their_keys():
    rows = [{"at": "rows.*", "key": ["form", "c"], "rate": ["per_s"], "latency": ["p50_us"]}]
    suite = Suite("load", "load.json", rows, bench="bench_load")
    results = {"rows": [{"form": "page", "c": 1, "per_s": 9, "p50_us": 70.5}, {"form": "page", "c": 2, "per_s": 15}]}
    assert comparison.figures(suite, results) == {
        Figure("load", "form=page c=1", "per_s", "rate"): 9.0, Figure("load", "form=page c=2", "per_s", "rate"): 15.0,
        Figure("load", "form=page c=1", "p50_us", "latency"): 70.5}
    with pytest.raises(ValueError, match="two rows of load have the key form=page c=1"):
        comparison.figures(suite, {"rows": [results["rows"][0]] * 2})


def test_each_suite_reads_what_its_benchmark_has_written():
    """The results in the repository are of the same form as those of a run."""
    import json
    for suite in SUITES:
        name = "ingest.json" if suite.criterion else suite.file
        if not suite.criterion:
            assert comparison.figures(suite, json.loads((BENCHES / "results" / name).read_text())["results"]), suite
        assert (suite.bench is None) != (suite.script is None), suite
        kinds = {kind for rows in suite.rows for kind in rows} - {"at", "key"}
        assert kinds <= LIMITS.keys(), suite


def test_bad_arguments_say_what_there_is():
    compare = [sys.executable, str(BENCHES / "compare.py")]
    done = subprocess.run([*compare, "HEAD", "--suites", "all"], capture_output=True, text=True)
    assert done.returncode == 2 and "there is no suite all" in done.stderr
    done = subprocess.run([*compare, "no-such-commit", "--suites", "pages"], capture_output=True, text=True)
    assert done.returncode == 2 and "no-such-commit" in done.stderr and "not measured" in done.stderr


QUICK = """
import argparse
import artifact
parser = argparse.ArgumentParser()
parser.add_argument("--out")
out = parser.parse_args().out
validity = artifact.Validity("pages")
validity.add(1, 1, 0)
rows = [{"case": case, "p50_us": SPEED * case} for case in (1, 2, 3)]
artifact.write(f"{out}/quick.json", artifact.topology(out), validity, rows)
"""
THRESHOLDS = """
[limits]
latency = 2.0
[same_run]
change = 0.10
noises = 2.0
busy = 1000.0
[[suite]]
name = "quick"
script = "benches/quick.py"
file = "quick.json"
rows = [{ at = "*", key = ["case"], latency = ["p50_us"] }]
[[suite]]
name = "later"
script = "benches/later.py"
file = "later.json"
rows = []
"""


def test_commits_are_checked_out_measured_and_judged(tmp_path):
    """With a benchmark that needs no build: a commit that is slower by a fifth, and one that is as fast."""
    benches = tmp_path / "benches"
    benches.mkdir()
    for name in ("compare.py", "comparison.py", "artifact.py", "baseline.py"):
        (benches / name).write_bytes((BENCHES / name).read_bytes())
    (benches / "thresholds.toml").write_text(THRESHOLDS)

    def git(*arguments):
        whose = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
        return subprocess.run(["git", "-C", tmp_path, *whose, *arguments], check=True, capture_output=True, text=True)

    git("init", "--quiet")
    for name, speed in (("first", 10), ("slower", 12), ("again", 10)):
        (benches / "quick.py").write_text(f"SPEED = {speed}\n{QUICK}")
        git("add", "--all")
        git("commit", "--quiet", "--message", name)
        git("tag", name)

    def compare(*arguments):
        command = [sys.executable, str(benches / "compare.py"), *arguments, "--dir", str(tmp_path / "trees")]
        return subprocess.run([*command, "--out", str(tmp_path / "out")], capture_output=True, text=True)

    done = compare("first", "slower")
    assert done.returncode == 1 and "3 figures: 3 regressed, 0 better" in done.stdout, done
    assert "later: " in done.stdout and "does not have it yet" in done.stdout, done.stdout
    page = (tmp_path / "out" / "compare.md").read_text()
    assert "| quick | case=2 | p50_us | 20 | 24 | 0.833 |" in page and "**regressed**" in page, page
    done = compare("slower", "again")
    assert done.returncode == 0 and "0 regressed, 3 better" in done.stdout, done
    done = compare("first", "again", "--rounds", "2")
    assert done.returncode == 0 and "0 regressed, 0 better" in done.stdout, done
    assert done.stdout.count("quick: run") == 8 and "run 8 of 8, base" in done.stdout, done.stdout
    # A tree that was changed is not what its commit says.
    tree = tmp_path / "trees" / git("rev-parse", "first").stdout[:12]
    (tree / "benches" / "quick.py").write_text("raise SystemExit(3)")
    done = compare("first", "slower")
    assert done.returncode == 2 and "as committed: remove it" in done.stderr, done
