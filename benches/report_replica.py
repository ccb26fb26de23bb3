#!/usr/bin/env python3
"""Makes replica.md from replica.json, with what is asked beside each figure."""

import os
import sys
from pathlib import Path
from statistics import median

import artifact

# Seconds until the first answer, and milliseconds of lag at the 99th percentile.
FIRST_ANSWER = 1.0
LAG = 100.0
ARGS = os.environ.get("BENCH_REPLICA_ARGS")
WITH = f"BENCH_REPLICA_ARGS='{ARGS}' " if ARGS else ""
WHEN = {"idle": "the primary idle", "loaded": "pgbench on the primary"}


def percentile(values, share):
    return values[min(len(values) - 1, int(len(values) * share))]


def asked(results):
    yield from ("| what | found | reached |", "|---|---|---|")
    for name, when in WHEN.items():
        slowest = max(one["first_answer_s"] for one in results[name])
        yield (f"| first answer of a replica, {when} (at most {FIRST_ANSWER:.0f} s) | {slowest:.2f} s, the slowest | "
               f"{artifact.verdict(slowest <= FIRST_ANSWER)} |")
    lag = percentile(results["lag"]["ms"], 0.99)
    yield f"| lag, p99 (at most {LAG:.0f} ms) | {lag:.1f} ms | {artifact.verdict(lag <= LAG)} |"


def rows(results):
    yield from ("| replicas | fastest, s | median, s | slowest, s | disk, MiB |", "|---|---|---|---|---|")
    for name, when in WHEN.items():
        times = [one["first_answer_s"] for one in results[name]]
        disk = median(one["disk_mib"] for one in results[name])
        yield f"| {when} | {min(times):.2f} | {median(times):.2f} | {max(times):.2f} | {disk:.0f} |"
    lag = results["lag"]
    yield from ("", "| lag, ms | p50 | p90 | p99 | most | commits/s |", "|---|---|---|---|---|---|")
    shares = [f"{percentile(lag['ms'], share):.1f}" for share in (0.5, 0.9, 0.99)]
    yield f"| {len(lag['ms'])} questions | {' | '.join(shares)} | {lag['ms'][-1]:.1f} | {lag['commits_per_s']:,} |"
    yield from ("", f"From `promote` to the first commit, the primary stopping in order: {results['promote_s']:.2f} s.")


def check(results):
    """Refuses what has no replicas, no load, or no questions."""
    if any(not results[name] for name in WHEN) or not results["lag"]["ms"]:
        raise artifact.Refused("no replicas, or nobody asked one")
    if results["lag"]["commits_per_s"] < 1:
        raise artifact.Refused("there was no load to lag behind")


def make():
    folder = Path(sys.argv[1])
    read = artifact.read(folder / "replica.json")
    results = read["results"]
    check(results)
    header = artifact.header("Replicas of a compute", f"`{WITH}make bench-replica`", {"replica": read},
                             f"* Postgres {results['pg_major']}; a database of {results['mib']:,} MiB; "
                             f"{results['clients']} clients of pgbench")
    lines = ("First answers are timed from the command. The lag is the age of the newest transaction that the replica "
             "shows, and so contains the time between two commits.", "", "## Asked", "", *asked(results), "",
             "## Figures", "", *rows(results), "")
    artifact.report(folder / "replica.md", [*header, *lines])


if __name__ == "__main__":
    artifact.refusing(make)
