#!/usr/bin/env python3
"""Makes wide.md from wide.json, with what is asked beside each figure."""

import os
import sys
from pathlib import Path
from statistics import median

import artifact

# Rows to load. Rows per second of a compute, of the plain server's: the medians of each kind of load, and any round.
# The first run of a query on a compute, of the second.
ROWS, LOAD, NEVER, COLD = 1_000_000, 0.9, 0.7, 15
WITH = f"BENCH_WIDE_ARGS='{os.environ['BENCH_WIDE_ARGS']}' " if "BENCH_WIDE_ARGS" in os.environ else ""


def cases(found):
    """Each kind of load: its name, the rounds of the compute, those of the plain server."""
    kinds = dict.fromkeys((load["indexes"], load["connections"]) for load in found["loads"])
    for indexes, connections in kinds:
        compute, plain = ([load for load in found["loads"] if load["who"] == who and load["indexes"] == indexes
                           and load["connections"] == connections] for who in ("compute", "plain"))
        yield f"{connections} connection{'s' * (connections > 1)}, indexes {indexes}", compute, plain


def middle(rounds, name) -> float:
    return median(one[name] for one in rounds)


def cold_ratio(read) -> float:
    rounds = read["rounds"]["compute"]
    return middle(rounds, "first_ms") / middle(rounds, "again_ms")


def load_ratio(compute, plain) -> float:
    return middle(compute, "rows_per_s") / middle(plain, "rows_per_s")


def lowest_ratio(compute, plain) -> float:
    return min(one["rows_per_s"] / other["rows_per_s"] for one, other in zip(compute, plain))


def asked(found):
    checks = []
    for name, *both in cases(found):
        ratio, lowest = load_ratio(*both), lowest_ratio(*both)
        checks += [(f"{name}: rows/s of the plain server's, medians (at least {LOAD})", f"{ratio:.2f}", ratio >= LOAD),
                   (f"{name}: the same, lowest of the rounds (never below {NEVER})", f"{lowest:.2f}", lowest >= NEVER)]
    for read in found["reads"]:
        ratio = cold_ratio(read)
        checks.append((f"{read['query']}: first run, of the second, medians (at most {COLD})", f"{ratio:.1f}",
                       ratio <= COLD))
    yield from ("| what | measured | reached |", "|---|---|---|")
    yield from (f"| {what} | {value} | {artifact.verdict(reached)} |" for what, value, reached in checks)


def loads(found):
    yield from ("| load | server | rows/s | slowest | COPY s | indexes s | pageserver behind s |",
                "|---|---|---|---|---|---|---|")
    for name, *both in cases(found):
        for who, rounds in zip(("compute", "plain"), both):
            behind = f"{middle(rounds, 'behind_s'):.2f}" if who == "compute" else ""
            yield (f"| {name} | {who} | {middle(rounds, 'rows_per_s'):,.0f} | "
                   f"{min(one['rows_per_s'] for one in rounds):,.0f} | {middle(rounds, 'copy_s'):.2f} | "
                   f"{middle(rounds, 'index_s'):.2f} | {behind} |")


def reads(found):
    yield from ("| query | server | first ms | slowest first ms | second ms | first, of the second |",
                "|---|---|---|---|---|---|")
    for read in found["reads"]:
        for who, rounds in read["rounds"].items():
            first, again = middle(rounds, "first_ms"), middle(rounds, "again_ms")
            yield (f"| {read['query']} | {who} | {first:,.1f} | {max(one['first_ms'] for one in rounds):,.1f} | "
                   f"{again:,.1f} | {first / again:.1f} |")


def lines(found):
    rounds = len(next(cases(found))[1])
    if found["rows"] < ROWS:
        yield f"Fewer rows than the {ROWS:,} that are asked for, so that it does not take too long."
    yield from (
        f"{found['rows']:,} rows of {found['columns']} columns and {found['row_bytes']:,} bytes: a table of "
        f"{found['table_mib']:,} MiB with {found['indexes']} indexes of {found['index_mib']:,} MiB.",
        f"Each load {rounds} times on each server, in turn; {found['disk_mib']:,} MiB of disk were taken. The "
        "pageserver takes in the compute's",
        "WAL on the same cores meanwhile. pg_amcheck found every index equal to its table on both servers.", "",
        "## Asked", "", *asked(found), "", "## Loads", "", "Until all rows are committed and all indexes are there:",
        "", *loads(found), "", "## Reads", "",
        "On servers that have read nothing yet: a new compute on a new branch, or the plain server after a restart.",
        "Twice in one session, after the query has been planned.", "", *reads(found), "")


def check(found):
    """Refuses loads without a counterpart, and times that cannot be."""
    for name, compute, plain in cases(found):
        if not compute or len(compute) != len(plain):
            raise artifact.Refused(f"{name}: {len(compute)} rounds of the compute, {len(plain)} of the plain server")
    times = [one[name] for read in found["reads"] for rounds in read["rounds"].values() for one in rounds
             for name in ("first_ms", "again_ms")]
    if not times or min(times + [load["rows_per_s"] for load in found["loads"]]) <= 0:
        raise artifact.Refused("times that cannot be")


def make():
    results = Path(sys.argv[1])
    read = artifact.read(results / "wide.json")
    found = read["results"]
    check(found)
    dropped = "dropped before each first run" if found["drop_caches"] else "left alone"
    header = artifact.header("Wide rows", f"`{WITH}make bench-wide`", {"wide": read},
                             f"* Postgres {found['pg_major']}; the kernel's caches are {dropped}")
    artifact.report(results / "wide.md", [*header, *lines(found)])


if __name__ == "__main__":
    artifact.refusing(make)
