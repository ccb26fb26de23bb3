"""Judges the figures of two commits that were measured in turn in one run, A B B A.

How much a figure differs between runs of the same commit is its noise. Only what changes by more than that is a
finding.
"""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import artifact

# For which kinds more is better.
RISING = {"rate"}
KINDS = ("rate", "latency", "cpu", "memory")
# What two runs must have in common to be compared.
SAME = tuple(name for name in artifact.TOPOLOGY if name not in ("date", "commit", "dirty", "load_before"))
BAD = ("regressed", "not comparable")


@dataclass(frozen=True)
class Figure:
    """Which figure of which row."""
    suite: str
    row: str
    name: str
    kind: str


@dataclass
class Judged:
    figure: Figure
    base: float | None
    head: float | None
    # How many times worse or better: above 1 is better.
    gain: float | None = None
    noise: float | None = None
    limit: float | None = None
    verdict: str = "not comparable"
    why: str = ""


@dataclass
class Suite:
    """One `[[suite]]` of thresholds.toml."""
    name: str
    file: str
    rows: list[dict]
    bench: str | None = None
    script: str | None = None
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    builds: list[str] = field(default_factory=list)
    criterion: bool = False


def thresholds(path: Path) -> tuple[dict, dict, list[Suite]]:
    """Limits between any two commits, those within one run, and the suites."""
    read = tomllib.loads(path.read_text())
    return read["limits"], read["same_run"], [Suite(**suite) for suite in read["suite"]]


def _items(results, at: str):
    """All that `at` leads to: names separated by dots, `*` for every item of a list, a number for one of them."""
    found = [results]
    for step in at.split("."):
        name = int(step) if step.isdigit() else step
        found = [inner for one in found for inner in (one if step == "*" else [one[name]])]
    return found


def figures(suite: Suite, results) -> dict[Figure, float]:
    """The figures of one run, as `rows` of the suite name them."""
    found = {}
    for rows in suite.rows:
        for item in _items(results, rows["at"]):
            row = " ".join(f"{key}={item[key]}" for key in rows["key"])
            for kind in KINDS:
                for name in rows.get(kind, []):
                    figure = Figure(suite.name, row, name, kind)
                    if figure in found:
                        raise ValueError(f"two rows of {suite.name} have the key {row}")
                    if item.get(name) is not None:
                        found[figure] = float(item[name])
    return found


def spread(values: list[float]) -> float:
    """How far the values of one commit lie apart, as a part of their median."""
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def noises(base: dict[Figure, list[float]], head: dict[Figure, list[float]]) -> dict[Figure, float]:
    """The noise of each figure: its own, or that of most figures of the same name in its suite if that is more, as two
    or three runs may agree by chance."""
    own = {figure: max(spread(base[figure]), spread(head[figure])) for figure in base.keys() & head.keys()}
    columns: dict[tuple, list[float]] = {}
    for figure, noise in own.items():
        columns.setdefault((figure.suite, figure.name), []).append(noise)
    usual = {column: quantiles(all_of, n=4, method="inclusive")[2] if len(all_of) > 1 else all_of[0]
             for column, all_of in columns.items()}
    return {figure: max(noise, usual[figure.suite, figure.name]) for figure, noise in own.items()}


def judge(base: dict, head: dict, limits: dict, same_run: dict) -> list[Judged]:
    """Each figure of either commit, in the order of the base: of each, the values of all its runs."""
    noise, judged = noises(base, head), []
    for figure in list(base) + [figure for figure in head if figure not in base]:
        of = {"base": median(base[figure]) if figure in base else None,
              "head": median(head[figure]) if figure in head else None}
        one = Judged(figure, **of)
        judged.append(one)
        if one.base is None or one.head is None:
            one.why = "only one of the commits has it"
        elif min(one.base, one.head) <= 0:
            # Nothing was measured that has a ratio; equal is equal.
            one.verdict, one.why = ("ok", "") if one.base == one.head else ("not comparable", "a figure is 0")
        else:
            _judge(one, noise[figure], limits[figure.kind], same_run)
    return judged


def _judge(one: Judged, noise: float, limit: float, same_run: dict):
    one.gain = one.head / one.base if one.figure.kind in RISING else one.base / one.head
    one.noise, one.limit = noise, max(same_run["change"], same_run["noises"] * noise)
    worse = 1 / one.gain - 1
    # Limits are given as ratios of head and base.
    most = (1 / limit if one.figure.kind in RISING else limit) - 1
    if worse > min(one.limit, most):
        one.verdict = "regressed"
    elif one.gain - 1 > one.limit:
        one.verdict = "better"
    elif abs(one.gain - 1) > same_run["change"]:
        one.verdict = "noise"
    else:
        one.verdict = "ok"


def differing(topologies: list[dict]) -> list[str]:
    """In what the places of several runs differ."""
    return [name for name in SAME if any(one.get(name) != topologies[0].get(name) for one in topologies[1:])]


def table(judged: list[Judged]) -> list[str]:
    """The lines of a table, in the order given."""
    lines = ["| suite | row | figure | base | head | gain | noise | asked within | verdict |",
             "|---|---|---|---|---|---|---|---|---|"]
    for one in judged:
        figure, number = one.figure, lambda value: "" if value is None else f"{value:,.4g}"
        part = lambda value: "" if value is None else f"{value:.1%}"
        verdict = f"**{one.verdict}**" if one.verdict in BAD else one.verdict
        gain = "" if one.gain is None else f"{one.gain:.3f}"
        lines.append(f"| {figure.suite} | {figure.row} | {figure.name} | {number(one.base)} | {number(one.head)} | "
                     f"{gain} | {part(one.noise)} | {part(one.limit)} | {verdict}{': ' if one.why else ''}{one.why} |")
    return lines
