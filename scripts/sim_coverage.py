"""Writes what the simulation reaches of the code that it is built with: sim_coverage.py FUNCTIONS LOG PAGE.

FUNCTIONS is what `llvm-profdata show --all-functions --counts` prints, LOG what `sim` has printed, PAGE the page to be
written. A counter stands for code between two branches. Of a function that was compiled several times, for several
types, each counter counts once; closures and bodies of asynchronous functions count as what they are in.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

CRATES = (
    "engine", "remote_storage", "virtual_file", "layer_format", "pgdata", "wal_decoder", "redo", "journal",
    "pageserver",
)
LISTED = "engine"
FUNCTION = re.compile(r"^  (\S+):\n    Hash: \S+\n    Counters: \d+\n    Function count: (\d+)\n"
                      r"    Block counts: \[([^\]]*)\]", re.M)
# The first path of a name says where it is defined: `<engine::tenant::Manager>::tend::{closure#0}`.
PLACE = re.compile(r"^[<&\s]*(?:impl )?(?:([a-z_0-9]+)(?:\[[0-9a-f]+\])?)::")
CLOSURE = re.compile(r"::\{[^}]*\}")


def plain(name: str) -> str:
    """A name without what it was compiled for, and which of several crates of that name it is from."""
    name = CLOSURE.sub("", re.sub(r"\[[0-9a-f]+\]", "", name)).replace("->", "")
    method = re.match(r"<(.*)>(::\w+)?$", name)
    name = method[1] + (method[2] or "") if method else name
    while (shorter := re.sub(r"(::)?<[^<>]*>", "", name)) != name:
        name = shorter
    return name.strip("&<>: ")


def demangled(names: list[str]) -> list[str]:
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def main():
    functions, log, page = sys.argv[1:]
    found = FUNCTION.findall(Path(functions).read_text())
    # A name that is not visible elsewhere is preceded by a file's.
    names = demangled([name.rsplit(";", 1)[-1].rsplit(":", 1)[-1] for name, _, _ in found])
    counters = {crate: defaultdict(dict) for crate in CRATES}
    for name, (mangled, entered, counts) in zip(names, found):
        place = PLACE.match(name)
        if not place or place[1] not in counters:
            continue
        one = counters[place[1]][plain(name)]
        values = [int(entered), *(int(count) for count in counts.split(",") if count.strip())]
        body = name.count("{closure")
        for at, value in enumerate(values):
            one[body, at] = max(one.get((body, at), 0), value)
    seeds = next(line for line in Path(log).read_text().splitlines() if " seeds from " in line)
    rows = ["| crate | counters that moved | of | functions that ran | of |", "|---|---|---|---|---|"]
    for crate, all_of in counters.items():
        values = [value for one in all_of.values() for value in one.values()]
        ran = sum(any(one.values()) for one in all_of.values())
        moved = sum(value > 0 for value in values)
        rows.append(f"| `{crate}` | {100 * moved / max(len(values), 1):.0f} % | {len(values):,} "
                    f"| {100 * ran / max(len(all_of), 1):.0f} % | {len(all_of):,} |")
    is_shown = re.compile(r" as core::fmt::| as thiserror").search
    never = sorted(name for name, one in counters[LISTED].items()
                   if not any(one.values()) and LISTED in name and not is_shown(name))
    lines = ["# What the simulation reaches", "",
             "Written by `make sim-coverage`. A counter stands for the code between two branches; what other tests",
             "reach does not count here.", "", f"{seeds.split(',')[0]}.", "", *rows, "",
             "## What it never reaches", "", f"Functions of `{LISTED}` that never ran, but those that print:", "",
             *(f"* `{name}`" for name in never)]
    Path(page).write_text("\n".join(lines) + "\n")
    print("\n".join(rows))
    print(f"{len(never)} functions of {LISTED} never ran: {page}")


if __name__ == "__main__":
    main()
