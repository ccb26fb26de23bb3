#!/usr/bin/env python3
"""Makes takeover.md from takeover.json, with what is asked beside each figure."""

import os
import sys
from pathlib import Path
from statistics import median

import artifact

# Seconds beyond takeover_after.
BEYOND = 1.0
# Seconds that a transaction may take during which the tenant is handed over on purpose.
PAUSE = 0.2
ARGS = os.environ.get("BENCH_TAKEOVER_ARGS")
WITH = f"BENCH_TAKEOVER_ARGS='{ARGS}' " if ARGS else ""
WHAT = {"page_s": "first page", "commit_s": "first commit"}


def halves(results):
    return [results[name] for name in ("few", "many") if name in results]


def asked(results):
    limit = results["takeover_after_s"] + BEYOND
    yield from ("| what | slowest of the rounds | reached |", "|---|---|---|")
    for half in halves(results):
        for name, what in WHAT.items():
            slowest = max(half[name])
            yield (f"| {what} after the kill, {half['layers']:,} layers (at most {limit:.0f} s) | {slowest:.2f} s | "
                   f"{artifact.verdict(slowest <= limit)} |")
    for handover in results["handovers"]:
        slowest = max(handover["pause_s"])
        yield (f"| longest transaction of pgbench through a planned handover, {handover['layers']:,} layers (at most "
               f"{PAUSE * 1000:.0f} ms) | {slowest * 1000:.0f} ms | {artifact.verdict(slowest <= PAUSE)} |")


def rows(results):
    yield from ("| layers | what | fastest, s | median, s | slowest, s |", "|---|---|---|---|---|")
    for half in halves(results):
        for name, what in WHAT.items():
            times = half[name]
            yield f"| {half['layers']:,} | {what} | {min(times):.2f} | {median(times):.2f} | {max(times):.2f} |"


def handovers(results):
    transactions = sum(found["transactions"] for found in results["handovers"])
    yield from ("## Planned handover", "",
                f"The longest transaction of each run of pgbench; {transactions:,} transactions in all. "
                "No client saw an error.", "",
                "| layers | | fastest run, ms | median, ms | slowest run, ms |", "|---|---|---|---|---|")
    for found in results["handovers"]:
        for name, what in (("pause_s", "with a handover"), ("calm_s", "without")):
            times = [seconds * 1000 for seconds in found[name]]
            yield (f"| {found['layers']:,} | {what} | {min(times):.0f} | {median(times):.0f} | {max(times):.0f} |")
    yield ""


def check(results):
    """Refuses what has no rounds, and a takeover before it may be."""
    for half in halves(results):
        if not half["page_s"] or len(half["page_s"]) != len(half["commit_s"]):
            raise artifact.Refused("not as many pages as commits, or none")
        # A commit that was on its way may have been acknowledged by the standby at once.
        if min(half["page_s"]) < results["takeover_after_s"] / 2:
            raise artifact.Refused("somebody has taken over too early, or nobody had to")
    for found in results["handovers"]:
        if not found["pause_s"] or len(found["pause_s"]) != len(found["calm_s"]) or not found["transactions"]:
            raise artifact.Refused("nothing was handed over, or nobody has looked")


def make():
    folder = Path(sys.argv[1])
    read = artifact.read(folder / "takeover.json")
    results = read["results"]
    check(results)
    header = artifact.header("Takeover by a standby", f"`{WITH}make bench-takeover`", {"takeover": read},
                             f"* Postgres {results['pg_major']}; `takeover_after` {results['takeover_after_s']} s, "
                             f"`lease_interval` {results['lease_interval_s']} s")
    lines = ("Time since the SIGKILL of the owner, as a client of the compute sees it. The lease is up to one interval "
             "old then.", "", "## Asked", "", *asked(results), "", "## Figures", "", *rows(results), "",
             *handovers(results))
    artifact.report(folder / "takeover.md", [*header, *lines])


if __name__ == "__main__":
    artifact.refusing(make)
