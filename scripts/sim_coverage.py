"""Writes what the simulation reaches of the code that it runs: sim_coverage.py EXPORT LOG PAGE.

EXPORT is what `llvm-cov export` writes, LOG what `sim` has printed, PAGE the page to be written. Branches are those of
conditions, both ways; a function that is compiled several times is reached if one of them is.
"""

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# Crates whose functions that are never reached are listed.
LISTED = ("engine", "pageserver/src/walreceiver")
# Crates of the table.
CRATES = ("engine", "remote_storage", "virtual_file", "libs/layer_format", "pgdata", "wal_decoder", "redo",
          "pageserver")
# The name of a function within what the compiler calls it (version 0 of mangled names), with its modules.
PIECE = re.compile(r"(\d+)_?([A-Za-z_])")


def source(name: str) -> str | None:
    """The path below the repository, of a file of one of the crates that is not a test."""
    path = Path(name)
    if not path.is_relative_to(REPOSITORY):
        return None
    relative = str(path.relative_to(REPOSITORY))
    is_test = "/tests" in relative or relative.endswith("tests.rs")
    return relative if "/src/" in relative and not is_test else None


def pieces(mangled: str) -> list[str]:
    """The identifiers in a mangled name."""
    found, at = [], 0
    while match := PIECE.search(mangled, at):
        length, start = int(match[1]), match.start(2)
        word = mangled[start:start + length]
        if len(word) == length and word.isidentifier():
            found.append(word)
            at = start + length
        else:
            at = match.end(1)
    return found


def unreached(functions) -> dict[str, list[str]]:
    """For each file the functions that never ran, in their order."""
    ran, lines = defaultdict(bool), {}
    for function in functions:
        name = source(function["filenames"][0])
        # Closures and bodies of asynchronous functions are parts of what they are in.
        if name is None or not name.startswith(LISTED):
            continue
        line = function["regions"][0][0]
        words = [word for word in pieces(function["name"]) if not word.startswith("closure")]
        place = (name, line)
        ran[place] |= function["count"] > 0
        lines[place] = words[-1] if words else "?"
    found = defaultdict(list)
    for (name, line), has_run in sorted(ran.items()):
        if not has_run and lines[name, line] not in found[name]:
            found[name].append(lines[name, line])
    return {name: names for name, names in found.items() if names}


def table(files) -> list[str]:
    """Shares of branches, lines and functions by crate."""
    sums = {crate: defaultdict(lambda: [0, 0]) for crate in CRATES}
    for file in files:
        name = source(file["filename"])
        crate = next((crate for crate in CRATES if name and name.startswith(f"{crate}/")), None)
        if crate is None:
            continue
        for kind in ("branches", "lines", "functions"):
            sums[crate][kind][0] += file["summary"][kind]["covered"]
            sums[crate][kind][1] += file["summary"][kind]["count"]
    rows = ["| crate | branches | of | lines | functions |", "|---|---|---|---|---|"]
    for crate, kinds in sums.items():
        def share(kind):
            covered, count = kinds[kind]
            return f"{100 * covered / count:.0f} %" if count else "-"
        rows.append(f"| `{crate}` | {share('branches')} | {kinds['branches'][1]:,} | {share('lines')} "
                    f"| {share('functions')} |")
    return rows


def main():
    export, log, page = sys.argv[1:]
    data = json.loads(Path(export).read_text())["data"][0]
    seeds = next(line for line in Path(log).read_text().splitlines() if " seeds from " in line)
    listed = unreached(data["functions"])
    lines = [
        "# What the simulation reaches", "",
        "Written by `make sim-coverage`: which branches of the code ran at least once, of all that the simulation is "
        "built", "with. What other tests reach does not count.", "",
        f"{seeds.split(',')[0]}.", "", *table(data["files"]), "",
        "## What it never reaches", "",
        f"Functions of {' and '.join(f'`{crate}`' for crate in LISTED)} that never ran:", "",
    ]
    for name, names in listed.items():
        lines.append(f"* `{name}`: {', '.join(names)}")
    Path(page).write_text("\n".join(lines) + "\n")
    print("\n".join(table(data["files"])))
    print(page)


if __name__ == "__main__":
    main()
