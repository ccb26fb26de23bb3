#!/usr/bin/env python3
"""Makes mixed.md from mixed.json."""

import os
import sys
from pathlib import Path
from statistics import median

import artifact

ARGS = os.environ.get("BENCH_MIXED_ARGS")
WITH = f"BENCH_MIXED_ARGS='{ARGS}' " if ARGS else ""
HOW = {"read": "nobody writes", "both": "beside pgbench"}
FIGURES = ("per_s", "p50_us", "p95_us", "p99_us", "max_us", "server_us", "rss_mib")


def check(results):
    """Refuses a run in which somebody did nothing, or a backup that has less than the database."""
    rounds, backups = results["rounds"], results["backups"]
    if not rounds or not backups:
        raise artifact.Refused("no rounds, or no backups")
    for one in rounds:
        if min(one["read"]["per_s"], one["both"]["per_s"], one["written"]["tps"], one["both"]["tps"]) <= 0:
            raise artifact.Refused(f"somebody did nothing: {one}")
    if min(one["mib"] for one in backups) < results["database_mib"]:
        raise artifact.Refused(f"a backup of less than the {results['database_mib']} MiB of the database")


def reads(results):
    yield from ("| reads | answers/s | slowest round | p50 us | p95 us | p99 us | max us | server's CPU us an answer | "
                "server MiB |", "|---|---|---|---|---|---|---|---|---|")
    for how, name in HOW.items():
        rounds = [one[how] for one in results["rounds"]]
        middle = {figure: median(one[figure] for one in rounds) for figure in FIGURES}
        slowest = min(one["per_s"] for one in rounds)
        rest = " | ".join(f"{middle[figure]:,.0f}" for figure in FIGURES[1:5])
        yield (f"| {name} | {middle['per_s']:,.0f} | {slowest:,} | {rest} | {middle['server_us']:.1f} | "
               f"{middle['rss_mib']:.0f} |")


def writes(results):
    yield from ("| writes | transactions/s | slowest round |", "|---|---|---|")
    for how, name in (("written", "nobody reads"), ("both", "beside reads")):
        rates = [one[how]["tps"] for one in results["rounds"]]
        yield f"| {name} | {median(rates):,.0f} | {min(rates):,.0f} |"


def backups(results):
    rates = [one["mib_per_s"] for one in results["backups"]]
    mib, cpu = (median(one[name] for one in results["backups"]) for name in ("mib", "server_cpu_s"))
    return (f"A whole backup (`fullbackup`), of {mib:,.0f} MiB, came at {median(rates):,.0f} MiB/s ({min(rates):,} in "
            f"the slowest round) and took {cpu:.1f} s of the server's processor time.")


def make():
    folder = Path(sys.argv[1])
    read = artifact.read(folder / "mixed.json")
    results = read["results"]
    check(results)
    header = artifact.header("Reads beside writes", f"`{WITH}make bench-mixed`", {"mixed": read},
                             f"* Postgres {results['pg_major']}; {results['connections']} connections read with one "
                             f"request in flight each, {results['clients']} clients of pgbench write; "
                             f"{len(results['rounds'])} rounds of {results['seconds']} s")
    lines = (f"A database of {results['database_mib']:,} MiB, of which {results['cached_pages']:,} pages may be in the",
             "pageserver's memory. Random pages of the largest table as of now, and for one request in ten its size.",
             "The server's processor time beside pgbench has the intake of WAL in it.", "", *reads(results), "",
             *writes(results), "", backups(results), "")
    artifact.report(folder / "mixed.md", [*header, *lines])


if __name__ == "__main__":
    artifact.refusing(make)
