#!/usr/bin/env python3
"""Makes gateway.md from gateway.json, with what is asked beside each figure."""

import os
import sys
from pathlib import Path
from statistics import median

import artifact

# Seconds until a sleeping branch has answered; seconds until all of those that are woken at once have; what a question
# takes longer, in us; selects per second, of those without; KiB for an idle connection, MiB for all of them.
ASLEEP, AT_ONCE, ADDED, SELECTS, EACH, ALL = 0.5, 5.0, 30, 0.95, 64, 100
ARGS = os.environ.get("BENCH_GATEWAY_ARGS")
WITH = f"BENCH_GATEWAY_ARGS='{ARGS}' " if ARGS else ""


def asked(results):
    latency, selects, idle = results["latency_us"], results["selects_per_s"], results["idle"]
    asleep, at_once = median(results["wakes"]["asleep_s"]), results["at_once"]
    added = p50(latency["gateway"]) - p50(latency["direct"])
    rate = median(selects["gateway"]) / median(selects["direct"])
    more = idle["after_mib"] - idle["before_mib"]
    each = more * 1024 / idle["connections"]
    checks = [
        (f"a sleeping branch of {results['database_mib']:,} MiB answers after (at most {ASLEEP} s)", f"{asleep:.2f} s",
         asleep <= ASLEEP),
        (f"{at_once['count']} that are woken at once have all answered after (at most {AT_ONCE:.0f} s)",
         f"{at_once['last_s']:.1f} s", at_once["last_s"] <= AT_ONCE),
        (f"one question takes longer, p50 (at most {ADDED} us)", f"{added:.0f} us", added <= ADDED),
        (f"selects by {results['clients']} clients, of those without a gateway (at least {SELECTS})", f"{rate:.2f}",
         rate >= SELECTS),
        (f"memory for a connection, of {idle['connections']:,} idle ones (at most {EACH} KiB)", f"{each:.0f} KiB",
         each <= EACH),
        (f"the gateway with all of them (at most {ALL} MiB)", f"{idle['after_mib']:.0f} MiB",
         idle["after_mib"] <= ALL),
    ]
    yield from ("| what | measured | reached |", "|---|---|---|")
    yield from (f"| {what} | {value} | {artifact.verdict(reached)} |" for what, value, reached in checks)


def p50(rounds) -> float:
    return median(one["p50"] for one in rounds)


def rows(results):
    wakes, latency, selects = results["wakes"], results["latency_us"], results["selects_per_s"]
    yield from ("| until psql has an answer, s | median | slowest |", "|---|---|---|")
    for name, what in (("new_s", "a branch without a compute"), ("asleep_s", "its compute sleeps"),
                       ("awake_s", "it is awake")):
        yield f"| {what} | {median(wakes[name]):.2f} | {max(wakes[name]):.2f} |"
    yield from ("", "| over TCP | one question, p50 us | p99 us | selects per second | slowest round |",
                "|---|---|---|---|---|")
    for way, what in (("direct", "straight to the compute"), ("gateway", "through the gateway")):
        p99 = median(one["p99"] for one in latency[way])
        yield (f"| {what} | {p50(latency[way]):.0f} | {p99:.0f} | {median(selects[way]):,.0f} | "
               f"{min(selects[way]):,.0f} |")


def check(results):
    """Refuses what is not comparable, and times that cannot be."""
    both = [results["latency_us"], results["selects_per_s"]]
    if any(len(one["direct"]) != len(one["gateway"]) or not one["direct"] for one in both):
        raise artifact.Refused("not as many rounds with the gateway as without")
    if min(min(times) for times in results["wakes"].values()) <= 0 or not results["idle"]["connections"]:
        raise artifact.Refused("times that cannot be, or nothing that was idle")


def make():
    folder = Path(sys.argv[1])
    read = artifact.read(folder / "gateway.json")
    results = read["results"]
    check(results)
    header = artifact.header("A gateway to all branches", f"`{WITH}make bench-gateway`", {"gateway": read},
                             f"* Postgres {results['pg_major']}, which asks for passwords (SCRAM), without TLS")
    lines = ("Client, gateway and computes share the cores. With and without the gateway in turn, "
             f"{len(results['selects_per_s']['direct'])} rounds; medians.", "", "## Asked", "", *asked(results), "",
             "## Figures", "", *rows(results), "")
    artifact.report(folder / "gateway.md", [*header, *lines])


if __name__ == "__main__":
    artifact.refusing(make)
