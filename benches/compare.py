"""Measures two commits in turn in one run, A B B A, and tells what became worse or better by more than the noise.

    benches/compare.py BASE [HEAD]

Each commit is checked out and built in a directory of its own below --dir, which later runs use again. Suites, their
quick settings and what counts as a regression are in benches/thresholds.toml. Writes compare.json and compare.md; ends
with 1 if something regressed, with 2 if it could not be measured.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import asdict
from pathlib import Path

import artifact
import baseline
import comparison
from comparison import Figure, Suite

HERE = Path(__file__).resolve().parent
OUT = artifact.REPOSITORY / "target" / "compare"
# How long a program waits for the machine to be idle, in seconds.
IDLE_WITHIN = 120


class Failed(Exception):
    """The commits cannot be measured."""


def run(command, **options) -> str:
    """The output of a command, which must succeed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-2000:]}"
                     f"{done.stderr[-4000:]}")
    return done.stdout


def resolve(name: str) -> str:
    return run(["git", "-C", HERE, "rev-parse", "--verify", f"{name}^{{commit}}"]).strip()


class Commit:
    """A commit, checked out and built."""

    def __init__(self, name: str, place: Path):
        self.name, self.commit = name, resolve(name)
        self.tree = place / self.commit[:12]
        self.environment = {**os.environ, "CARGO_TARGET_DIR": str(self.tree / "target")}

    def check_out(self):
        if not self.tree.exists():
            self.tree.parent.mkdir(parents=True, exist_ok=True)
            run(["git", "-C", HERE, "worktree", "prune"])
            run(["git", "-C", HERE, "worktree", "add", "--detach", self.tree, self.commit])
        found = run(["git", "-C", self.tree, "rev-parse", "HEAD"]).strip()
        changed = run(["git", "-C", self.tree, "status", "--porcelain", "--untracked-files=no"]).strip()
        if found != self.commit or changed:
            raise Failed(f"{self.tree} is not commit {self.commit} as committed: remove it")

    def has(self, suite: Suite) -> bool:
        """Whether there was such a benchmark yet."""
        if suite.script:
            return (self.tree / suite.script).exists()
        manifest = tomllib.loads((self.tree / "pageserver" / "Cargo.toml").read_text())
        return any(bench["name"] == suite.bench for bench in manifest.get("bench", []))

    def build(self, suites: list[Suite]):
        cargo = ["cargo", "bench", "--locked", "-p", "pageserver", "--no-run"]
        benches = [part for suite in suites if suite.bench for part in ("--bench", suite.bench)]
        programs = sorted({part for suite in suites for part in suite.builds})
        if benches:
            run([*cargo, *benches], cwd=self.tree, env=self.environment)
        if programs:
            bins = [part for program in programs for part in ("--bin", program)]
            run(["cargo", "build", "--locked", "--release", *bins], cwd=self.tree, env=self.environment)

    def measure(self, suite: Suite, out: Path) -> tuple[dict[Figure, float], dict]:
        """The figures of one run of a suite, and where it took place. Its artifact must prove something."""
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        environment = {**self.environment, **suite.environment, "BENCH_RESULTS": str(out),
                       "CRITERION_HOME": str(out / "criterion")}
        if suite.bench:
            command = ["cargo", "bench", "--locked", "-p", "pageserver", "--bench", suite.bench, "--", *suite.arguments]
        else:
            command = [sys.executable, suite.script, *suite.arguments, "--out", out]
        run(command, cwd=self.tree, env=environment)
        found = artifact.read(out / suite.file)
        figures = comparison.figures(suite, found["results"])
        if suite.criterion:
            rates = baseline.medians(out / "criterion")
            figures |= {Figure(suite.name, " ".join(case), "mib_per_s", "rate"): rate for case, rate in rates.items()}
        return figures, found["topology"]


def processors_busy(seconds=1.0) -> float:
    """How many processors the machine uses for `seconds`."""
    def ticks():
        user, nice, system, _idle, _wait, *rest = map(int, open("/proc/stat").readline().split()[1:])
        return user + nice + system + sum(rest[:3])
    before = ticks()
    time.sleep(seconds)
    return (ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds


def wait_until_idle(most: float) -> float:
    """Waits until less than `most` processors are busy, for some time. Returns how many are at the end."""
    end = time.monotonic() + IDLE_WITHIN
    while (busy := processors_busy()) >= most and time.monotonic() < end:
        pass
    return busy


def measure_all(sides, suites: list[Suite], rounds: int, out: Path, busy: float, stop_at: float):
    """Figures by side, where the first run took place, and what was wrong."""
    figures, place, wrong = ({}, {}), None, []
    for suite in suites:
        topologies = []
        for number, side in enumerate([0, 1, 1, 0] * rounds):
            if time.monotonic() > stop_at and number % 4 == 0:
                wrong.append(f"{suite.name}: {number // 4} of {rounds} rounds, for want of time")
                break
            found_busy = wait_until_idle(busy)
            if found_busy >= busy:
                wrong.append(f"{suite.name}: {found_busy:.2f} processors were busy with something else before a run")
            name, began = "head" if side else "base", time.monotonic()
            results = out / "runs" / f"{suite.name}-{number}-{name}"
            measured, topology = sides[side].measure(suite, results)
            for figure, value in measured.items():
                figures[side].setdefault(figure, []).append(value)
            topologies.append(topology)
            took = time.monotonic() - began
            print(f"{suite.name}: run {number + 1} of {4 * rounds}, {name}, {took:.0f} s", flush=True)
        differs = comparison.differing(topologies)
        if differs:
            wrong.append(f"{suite.name}: not comparable, as the runs differ in {', '.join(differs)}")
            figures = tuple({figure: values for figure, values in of.items() if figure.suite != suite.name}
                            for of in figures)
        place = place or next(iter(topologies), None)
    return figures, place, wrong


def report(sides, suites, judged, wrong, topology, seconds: float, out: Path):
    bad = [one for one in judged if one.verdict == "regressed"]
    better = [one for one in judged if one.verdict == "better"]
    lines = [
        "# Comparison of two commits", "",
        f"* command: `benches/compare.py {sides[0].name} {sides[1].name}`, suites {', '.join(s.name for s in suites)}",
        f"* base {sides[0].commit[:12]}, head {sides[1].commit[:12]}; measured in turn, A B B A, in {seconds / 60:.0f} "
        "minutes; medians; gain above 1 is better",
        f"* machine: {topology['cores']} cores, {topology['cpu']}, {topology['memory_gib']} GiB; kernel "
        f"{topology['kernel']}; {topology['file_system']}; {topology['date']}",
        *(f"* **{line}**" for line in wrong),
        f"* {len(judged)} figures: {len(bad)} regressed, {len(better)} better", "",
        *comparison.table(sorted(judged, key=lambda one: one.verdict not in comparison.BAD)), "",
    ]
    (out / "compare.md").write_text("\n".join(lines))
    told = {"base": sides[0].commit, "head": sides[1].commit, "wrong": wrong, "topology": topology,
            "figures": [asdict(one) for one in judged]}
    (out / "compare.json").write_text(json.dumps(told, indent=1) + "\n")
    print("\n".join(line for line in lines if "**" in line or line.startswith("* ")))
    print(out / "compare.md")
    return bad


def main() -> int:
    limits, same_run, all_suites = comparison.thresholds(HERE / "thresholds.toml")
    names = [suite.name for suite in all_suites]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="commit, branch or tag to compare with")
    parser.add_argument("head", nargs="?", default="HEAD")
    parser.add_argument("--suites", default=",".join(names), help="those to run, of: %(default)s")
    parser.add_argument("--rounds", type=int, default=1, help="how often A B B A is measured")
    parser.add_argument("--minutes", type=float, default=40, help="no further round begins after so many")
    parser.add_argument("--dir", type=Path, default=OUT, help="where both are built")
    parser.add_argument("--out", type=Path, default=OUT, help="where results go")
    options = parser.parse_args()
    unknown = [name for name in options.suites.split(",") if name not in names]
    if unknown or options.rounds < 1:
        parser.error(f"there is no suite {', '.join(unknown)}" if unknown else "there must be one round at least")
    suites = [suite for suite in all_suites if suite.name in options.suites.split(",")]
    try:
        sides = [Commit(name, options.dir.resolve()) for name in (options.base, options.head)]
        for side in sides:
            side.check_out()
        lacking = [f"{suite.name}: {side.commit[:12]} does not have it yet"
                   for suite in suites for side in sides if not side.has(suite)]
        suites = [suite for suite in suites if all(side.has(suite) for side in sides)]
        for side in sides:
            print(f"building {side.name}, {side.commit[:12]}, in {side.tree}", flush=True)
            side.build(suites)
        began = time.monotonic()
        out = options.out.resolve()
        figures, place, wrong = measure_all(
            sides, suites, options.rounds, out, same_run["busy"], began + 60 * options.minutes)
    except (Failed, artifact.Refused, baseline.Ambiguous, KeyError, ValueError) as failed:
        print(f"not measured: {failed}", file=sys.stderr)
        return 2
    wrong = lacking + wrong
    judged = comparison.judge(*figures, limits, same_run)
    if not judged:
        print("not measured: no suite gave a figure", file=sys.stderr)
        return 2
    bad = report(sides, suites, judged, wrong, place, time.monotonic() - began, out)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
