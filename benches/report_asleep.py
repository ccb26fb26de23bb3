#!/usr/bin/env python3
"""Makes asleep.md from asleep.json, with what is asked beside each figure."""

import os
import sys
from pathlib import Path

import artifact

# MiB of memory for a branch whose compute sleeps; seconds until all of those that are woken at once have answered.
EACH, AT_ONCE = 1.0, 5.0
ARGS = os.environ.get("BENCH_ASLEEP_ARGS")
WITH = f"BENCH_ASLEEP_ARGS='{ARGS}' " if ARGS else ""
SERVERS = ("pageserver_mib", "gateway_mib")


def each(results) -> float:
    """MiB that pageserver and gateway have more, for each branch."""
    more = sum(results["asleep"][server] - results["before"][server] for server in SERVERS)
    return more / results["branches"]


def asked(results):
    asleep, memory = results["asleep"], each(results)
    rows = [
        (f"processes of {results['branches']} branches whose computes sleep (none)", str(asleep["processes"]),
         asleep["processes"] == 0),
        (f"memory for each of them, pageserver and gateway together (at most {EACH:.0f} MiB)", f"{memory:.2f} MiB",
         memory <= EACH),
        (f"{results['woken']} of them that are woken at once have all answered after (at most {AT_ONCE:.0f} s)",
         f"{results['last_s']:.1f} s", results["last_s"] <= AT_ONCE),
    ]
    yield from ("| what | measured | reached |", "|---|---|---|")
    yield from (f"| {what} | {value} | {artifact.verdict(reached)} |" for what, value, reached in rows)


def figures(results):
    states = (("before", "before"), ("asleep", f"{results['branches']} asleep"),
              ("awake", f"{results['woken']} of them awake"))
    yield from ("| | processes of computes | mounts | pageserver, MiB | gateway, MiB |", "|---|---|---|---|---|")
    for state, what in states:
        found = results[state]
        yield (f"| {what} | {found['processes']} | {found['mounts']} | {found['pageserver_mib']:.0f} | "
               f"{found['gateway_mib']:.0f} |")


def check(results):
    """Refuses what proves nothing: computes that were never there, or are not counted when they are."""
    asleep, awake = results["asleep"], results["awake"]
    if not results["branches"] or asleep["disk_mib"] <= 0:
        raise artifact.Refused("no computes that sleep")
    if awake["processes"] < results["woken"] or awake["mounts"] < results["woken"] or results["first_s"] <= 0:
        raise artifact.Refused("computes that are awake were not found, so that none were found asleep says nothing")


def make():
    folder = Path(sys.argv[1])
    read = artifact.read(folder / "asleep.json")
    results = read["results"]
    check(results)
    disk = results["asleep"]["disk_mib"] / results["branches"]
    header = artifact.header("Branches whose computes sleep", f"`{WITH}make bench-asleep`", {"asleep": read},
                             f"* Postgres {results['pg_major']}, database of {results['database_mib']:,} MiB")
    lines = (f"Each branch has a compute that has answered once, and takes {disk:.1f} MiB of local disk asleep.", "",
             "## Asked", "", *asked(results), "", "## Figures", "", *figures(results), "")
    artifact.report(folder / "asleep.md", [*header, *lines])


if __name__ == "__main__":
    artifact.refusing(make)
