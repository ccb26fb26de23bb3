#!/usr/bin/env python3
"""A model of compaction policies: what each would write, store and let a read search.

    benches/models/compaction_policy.py [--wal-gib 300] [--out benches/models/compaction_policy.md]

It decides between policies before any of them is code, and says nothing about this code's speed. Everything is counted
in bytes of values; there are no files, no clocks and no caches.

The database is a row of cells of 1 GiB of keys (131,072 pages); a cell's image takes 410 MiB. WAL arrives in records
of 200 bytes. Eight L0 layers of 256 MiB at a time are sorted into one delta for each cell that they touch. Then each
cell follows its policy: merge deltas, make an image, fold what lies below the horizon, drop what no read can reach.
100 GiB of WAL are the history to keep. Reads are of pages drawn like the pages that are written, at the newest LSN,
over four L0 layers, which wait to be sorted.

* `merge`: when more than `height` deltas lie above the newest image, the run of 3 to 6 neighbours with the fewest bytes
  for each delta saved becomes one.
* `image`: when the deltas above the newest image hold `image_ratio` times the bytes of an image (or, `image_deltas`,
  when there are so many of them).
* `fold`: when what lies below the horizon and above its image exceeds `fold` of image and history, an image is made at
  the horizon.
* `thin`: an image that is neither the horizon's nor the newest is dropped.
* `filters`: a delta counts as searched only if it has the page, or for one page in a hundred falsely.
* `embed`: a page with so many records in one sorted delta gets its image there, and a search for it goes no deeper.
"""

import argparse
import math
from dataclasses import dataclass, field, replace
from pathlib import Path

GIB = 1 << 30
MIB = 1 << 20
PAGES = GIB // 8192
IMAGE = 410 * MIB
RECORD = 200
L0 = 256 * MIB
SORT_AT = 4
SORT_MAX = 8
FALSE_POSITIVE = 0.01


@dataclass(frozen=True)
class Policy:
    """What a server would do; see the module."""

    name: str
    height: int | None = None
    image_ratio: float | None = None
    image_deltas: int | None = None
    fold: float | None = 0.3
    thin: bool = True
    filters: bool = True
    embed: int | None = None


@dataclass
class Delta:
    """Values of one cell: bytes, over WAL positions, and the sorts that it comes from."""

    size: float
    low: float
    high: float


@dataclass
class Cell:
    """The layers of one cell, oldest first. Images are LSNs."""

    images: list[float] = field(default_factory=lambda: [0.0])
    deltas: list[Delta] = field(default_factory=list)

    def above(self, lsn: float) -> list[Delta]:
        """Deltas with anything after `lsn`."""
        return [delta for delta in self.deltas if delta.high > lsn]

    def base(self, horizon: float) -> float:
        """The image from which the horizon is read."""
        return max((image for image in self.images if image <= horizon), default=self.images[0])


class Store:
    """A database under one policy and one distribution of writes."""

    def __init__(self, policy: Policy, cells: int, weights: list[float], history: float):
        self.policy, self.weights, self.history = policy, weights, history
        self.cells = [Cell() for _ in range(cells)]
        self.lsn = 0.0
        self.written = {"L0": 0.0, "sort": 0.0, "merge": 0.0, "image": 0.0, "fold": 0.0}

    def sort(self, wal: float) -> None:
        """Takes in `wal` bytes and sorts them into every cell's share; then each cell is put in order."""
        low, self.lsn = self.lsn, self.lsn + wal
        self.written["L0"] += wal
        self.written["sort"] += wal
        for cell, weight in zip(self.cells, self.weights):
            if wal * weight >= RECORD:
                cell.deltas.append(Delta(wal * weight, low, self.lsn))
                self.settle(cell)
        for cell in self.cells:
            self.collect(cell)

    def settle(self, cell: Cell) -> None:
        """Merges and images until the policy asks for nothing more."""
        policy = self.policy
        while True:
            newest = cell.above(cell.images[-1])
            size = sum(delta.size for delta in newest)
            ratio, count = policy.image_ratio, policy.image_deltas
            if (ratio is not None and size >= ratio * IMAGE) or (count is not None and len(newest) >= count):
                cell.images.append(self.lsn)
                self.written["image"] += IMAGE
            elif policy.height is not None and len(newest) > policy.height:
                self.merge(cell, len(cell.deltas) - len(newest))
            else:
                return

    def merge(self, cell: Cell, first: int) -> None:
        """Makes one delta of the neighbours that cost least for each one saved."""
        runs = [
            (sum(delta.size for delta in cell.deltas[at : at + k]) / (k - 1), at, k)
            for k in range(3, 7)
            for at in range(first, len(cell.deltas) - k + 1)
        ] or [(sum(delta.size for delta in cell.deltas[first:]), first, len(cell.deltas) - first)]
        _, at, k = min(runs)
        inputs = cell.deltas[at : at + k]
        self.written["merge"] += sum(delta.size for delta in inputs)
        cell.deltas[at : at + k] = [Delta(sum(delta.size for delta in inputs), inputs[0].low, inputs[-1].high)]

    def collect(self, cell: Cell) -> None:
        """Folds at the horizon if that pays, and drops what no read can reach."""
        horizon = self.lsn - self.history
        if horizon <= 0:
            return
        garbage, kept = self.below(cell, horizon)
        if self.policy.fold is not None and garbage >= self.policy.fold * (IMAGE + kept):
            if cell.images[-1] < horizon:
                cell.images.append(horizon)
            else:
                cell.images = sorted([*cell.images, horizon])
            self.written["fold"] += IMAGE
        base = cell.base(horizon)
        cell.images = [image for image in cell.images if image >= base]
        cell.deltas = [delta for delta in cell.deltas if delta.high > base]
        if self.policy.thin and len(cell.images) > 2:
            cell.images = [cell.images[0], cell.images[-1]]

    @staticmethod
    def below(cell: Cell, horizon: float) -> tuple[float, float]:
        """Bytes that an image at the horizon would free, and those of the history."""
        garbage = kept = 0.0
        for delta in cell.deltas:
            share = min(max((horizon - delta.low) / (delta.high - delta.low), 0.0), 1.0)
            whole = delta.high <= horizon
            garbage += delta.size if whole else 0.0
            kept += delta.size * (1 - share)
        return garbage, kept

    def space(self) -> float:
        """Stored bytes for each byte that an image at the horizon and the history would take."""
        horizon = max(self.lsn - self.history, 0.0)
        stored = needed = 0.0
        for cell in self.cells:
            stored += IMAGE * len(cell.images) + sum(delta.size for delta in cell.deltas)
            needed += IMAGE + self.below(cell, horizon)[1]
        return stored / needed

    def searched(self, has: float) -> float:
        """How often a delta is searched that has a page with probability `has`."""
        return has + (1 - has) * FALSE_POSITIVE if self.policy.filters else 1.0

    def searches(self, hot: list[tuple[float, int]]) -> list[tuple[float, float]]:
        """Searched layers with their share of reads; `hot` are shares of a cell's writes, by page class."""
        found = []
        for cell, weight in zip(self.cells, self.weights):
            deltas = cell.above(cell.images[-1])
            for share, pages in hot:
                searched = lambda records: self.searched(1 - math.exp(-records))
                depth = SORT_AT * searched(L0 * weight / RECORD * share / pages)
                for delta in reversed(deltas):
                    records = delta.size / RECORD * share / pages
                    depth += searched(records)
                    if self.policy.embed is not None and records >= self.policy.embed:
                        break
                else:
                    depth += 1.0
                found.append((depth, weight * share))
        return found


def zipf(count: int, theta: float) -> list[float]:
    weights = [1.0 / rank**theta for rank in range(1, count + 1)]
    total = sum(weights)
    return [weight / total for weight in weights]


def page_classes(workload: str) -> list[tuple[float, int]]:
    """How a cell's writes go to its pages: (share of the writes, number of pages)."""
    if workload != "zipf":
        return [(1.0, PAGES)]
    weights = zipf(PAGES, 0.99)
    bounds = [0, 16, 256, 4096, PAGES]
    return [(sum(weights[a:b]), b - a) for a, b in zip(bounds, bounds[1:])]


def quantile(values: list[tuple[float, float]], q: float) -> float:
    total, at = sum(weight for _, weight in values), 0.0
    for value, weight in sorted(values):
        at += weight
        if at >= q * total:
            return value
    return max(values)[0]


def run(policy: Policy, cells: int, workload: str, wal: float, history: float) -> dict:
    """Figures of the second half of the WAL: what a store comes to, not how it begins."""
    weights = [1 / cells] * cells if workload == "uniform" else zipf(cells, 0.99)
    store = Store(policy, cells, weights, history)
    step, steps = SORT_MAX * L0, int(wal // (SORT_MAX * L0))
    depths, spaces, before = [], [], {}
    for done in range(steps):
        if done == steps // 2:
            before = dict(store.written)
        store.sort(step)
        if done >= steps // 2 and done % 4 == 0:
            depths += store.searches(page_classes(workload))
            spaces.append(store.space())
    late = {name: store.written[name] - before[name] for name in store.written}
    taken = step * (steps - steps // 2)
    return {
        "amplification": sum(late.values()) / taken,
        "by": {name: size / taken for name, size in late.items()},
        "p50": quantile(depths, 0.5), "p99": quantile(depths, 0.99),
        "space": sum(spaces) / len(spaces), "worst": max(spaces),
    }


BASE = Policy("height 6, image at 1 x, filters", height=6, image_ratio=1.0)
POLICIES = [
    Policy("image after 3 deltas, no merge, no filters", image_deltas=3, filters=False, thin=False, fold=None),
    Policy("height 3, image at 1 x, no filters", height=3, image_ratio=1.0, filters=False),
    BASE,
    replace(BASE, name="height 6, image at 1 x, no filters", filters=False),
    replace(BASE, name="height 4, image at 1 x, filters", height=4),
    replace(BASE, name="height 8, image at 1 x, filters", height=8),
    replace(BASE, name="height 12, image at 1 x, filters", height=12),
    replace(BASE, name="height 6, image at 1 x, filters, images embedded at 32 records", embed=32),
    replace(BASE, name="height 12, image at 1 x, filters, images embedded at 32 records", height=12, embed=32),
    replace(BASE, name="height 6, image at 0.5 x, filters", image_ratio=0.5),
    replace(BASE, name="height 6, image at 2 x, filters", image_ratio=2.0),
    replace(BASE, name="height 6, image at 4 x, filters", image_ratio=4.0),
    replace(BASE, name="height 6, image at 1 x, filters, no thinning", thin=False),
    replace(BASE, name="height 6, image at 1 x, filters, fold at 0.15", fold=0.15),
    replace(BASE, name="height 6, image at 1 x, filters, no fold", fold=None),
]
WORLDS = [(128, "uniform"), (128, "zipf"), (1024, "uniform"), (1024, "zipf")]


def table(wal: float, history: float) -> str:
    lines = []
    for cells, workload in WORLDS:
        lines += [f"\n## {cells} GiB, {workload}\n"]
        lines += ["| policy | write amplification | of it sort, merge, image, fold | layers searched p50, p99 | "
                  "space mean, worst |", "|---|---|---|---|---|"]
        for policy in POLICIES:
            got = run(policy, cells, workload, wal, history)
            by = ", ".join(f"{got['by'][name]:.2f}" for name in ("sort", "merge", "image", "fold"))
            lines.append(f"| {policy.name} | {got['amplification']:.1f} | {by} | {got['p50']:.1f}, {got['p99']:.1f} | "
                         f"{got['space']:.2f}, {got['worst']:.2f} |")
            print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wal-gib", type=float, default=400, help="WAL that arrives; figures are of the second half")
    parser.add_argument("--history-gib", type=float, default=100, help="WAL whose history is kept")
    parser.add_argument("--out", type=Path, help="where the table goes")
    args = parser.parse_args()
    found = table(args.wal_gib * GIB, args.history_gib * GIB)
    if args.out:
        head = (f"# Compaction policies, modelled\n\nMade by `{Path(__file__).name}`, which says what is modelled: "
                f"{args.wal_gib:g} GiB of WAL,\n{args.history_gib:g} GiB of history kept. "
                "No measurement of this code.\n")
        args.out.write_text(head + found)


if __name__ == "__main__":
    main()
