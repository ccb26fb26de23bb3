#!/usr/bin/env python3
"""Makes first_copy.md from first_copy.json, with what is asked beside each figure."""

import os
import sys
from pathlib import Path
from statistics import median

import artifact

# The rate of the copy, of pg_basebackup's; its processor time, of pg_basebackup's; the most memory, of that at the
# smallest size.
RATE, CPU, MEMORY = 0.9, 1.2, 1.2
ARGS = os.environ.get("BENCH_FIRST_COPY_ARGS")
WITH = f"BENCH_FIRST_COPY_ARGS='{ARGS}' " if ARGS else ""


def rounds_of(size, who):
    return [one for one in size["rounds"] if one["who"] == who]


def middle(size, who, name) -> float:
    return median(one[name] for one in rounds_of(size, who))


def peak(size) -> float:
    return max(one["peak_mib"] for one in rounds_of(size, "store"))


def asked(sizes):
    checks = []
    for size in sizes:
        name = f"{size['database_mib']:,} MiB"
        rate = middle(size, "plain", "seconds") / middle(size, "store", "seconds")
        cpu = middle(size, "store", "cpu_s") / middle(size, "plain", "cpu_s")
        checks += [(f"{name}: rate of the copy, of pg_basebackup's (at least {RATE})", f"{rate:.2f}", rate >= RATE),
                   (f"{name}: processor time, of pg_basebackup's (at most {CPU})", f"{cpu:.1f}", cpu <= CPU)]
    smallest = peak(sizes[0])
    for size in sizes[1:]:
        more = peak(size) / smallest
        checks.append((f"{size['database_mib']:,} MiB: most memory, of that of the smallest (at most {MEMORY})",
                       f"{more:.2f}", more <= MEMORY))
    yield from ("| what | measured | reached |", "|---|---|---|")
    yield from (f"| {what} | {value} | {artifact.verdict(reached)} |" for what, value, reached in checks)


def copies(sizes):
    yield from ("| database MiB | what | seconds | slowest | MiB/s | processor s | written MiB | most memory MiB |",
                "|---|---|---|---|---|---|---|---|")
    for size in sizes:
        for who, name in (("plain", "pg_basebackup"), ("store", "pageserver")):
            seconds = middle(size, who, "seconds")
            memory = f"{peak(size):,}" if who == "store" else ""
            yield (f"| {size['database_mib']:,} | {name} | {seconds:.2f} | "
                   f"{max(one['seconds'] for one in rounds_of(size, who)):.2f} | "
                   f"{size['database_mib'] / seconds:,.0f} | {middle(size, who, 'cpu_s'):.1f} | "
                   f"{middle(size, who, 'mib'):,.0f} | {memory} |")


def check(sizes):
    """Refuses sizes that are not comparable, and times that cannot be."""
    for size in sizes:
        store, plain = rounds_of(size, "store"), rounds_of(size, "plain")
        if not store or len(store) != len(plain):
            raise artifact.Refused(f"{size['database_mib']} MiB: {len(store)} copies, {len(plain)} of pg_basebackup")
        if min(one[name] for one in size["rounds"] for name in ("seconds", "cpu_s")) <= 0:
            raise artifact.Refused("times that cannot be")
    if [size["database_mib"] for size in sizes] != sorted(size["database_mib"] for size in sizes):
        raise artifact.Refused("the sizes do not ascend")


def make():
    results = Path(sys.argv[1])
    read = artifact.read(results / "first_copy.json")
    sizes = read["results"]["sizes"]
    check(sizes)
    dropped = "dropped before each copy" if read["results"]["drop_caches"] else "left alone"
    header = artifact.header("The first copy of a server", f"`{WITH}make bench-first-copy`", {"first_copy": read},
                             f"* Postgres {read['results']['pg_major']}; the kernel's caches are {dropped}")
    lines = (f"Each copy {len(rounds_of(sizes[0], 'store'))} times, in turn, of a server on the same cores and disk. "
             "pg_basebackup writes files and syncs them;", "the pageserver starts, copies, and makes durable what it "
             "has. Processor time is theirs, not the server's.", "", "## Asked", "", *asked(sizes), "", "## Copies",
             "", "Medians, and the slowest round:", "", *copies(sizes), "")
    artifact.report(results / "first_copy.md", [*header, *lines])


if __name__ == "__main__":
    artifact.refusing(make)
