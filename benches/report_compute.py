#!/usr/bin/env python3
"""Makes compute.md of the results of compute_figures.py, with what the project asks for beside each figure."""

import json
import os
import sys
from pathlib import Path

from machine import machine

GIVEN = os.environ.get("BENCH_COMPUTE_ARGS")


def starts(found):
    yield from ("## The first answer of a cold compute", "",
                "From the command `pagectl compute start --branch NEW` until psql has the row of a SELECT by key;",
                "each time a new compute on a new branch, medians.",
                "Asked: under 1.5 s at any size, less than 20 % apart; under 200 MB of local disk.", "",
                "| database MiB | store MiB | starts | command ends s | first answer s | slowest s | local disk MiB |",
                "|---|---|---|---|---|---|---|")
    sizes = found["sizes"]
    for size in sizes:
        slowest = max(one["first_answer_s"] for one in size["rounds"])
        yield (f"| {size['database_mib']:,} | {size['store_mib']:,.0f} | {len(size['rounds'])} | "
               f"{size['ready_s']:.2f} | {size['first_answer_s']:.2f} | {slowest:.2f} | {size['disk_mib']:.0f} |")
    if len(sizes) > 1:
        first, last = (sizes[at]["first_answer_s"] for at in (0, -1))
        yield from ("", f"The largest takes {100 * (last / first - 1):+.0f} % compared with the smallest.")
    yield ""


def scans(found):
    scanned = [size["scan"] for size in found["sizes"] if size["scan"]]
    if scanned:
        yield from ("## Scans", "",
                    "`SELECT sum(abalance) FROM pgbench_accounts` on a compute that has read none of it; then again.",
                    "Asked: cold at least 100 MB/s.", "",
                    "| table MiB | cold MiB/s | cold with 2 workers MiB/s | again MiB/s |", "|---|---|---|---|")
    for scan in scanned:
        yield (f"| {scan['table_mib']:,} | {scan['cold_mib_per_s']:.0f} | {scan['cold_parallel_mib_per_s']:.0f} | "
               f"{scan['warm_mib_per_s']:.0f} |")
    yield ""


def load(found):
    run = found["pgbench"]
    if not run:
        return
    yield from ("## pgbench", "",
                f"Scale {run['scale']}, {run['clients']} clients, runs of {run['seconds']} s in turn: a compute, whose "
                "pageserver takes its WAL in meanwhile on the", "same cores, and the server that it is a branch of, on "
                "a plain directory with the same settings and nobody behind it.", "Asked: TPC-B at least 0.7 times, "
                "selects of what is in memory at least 0.85 times.", "",
                "| | compute tps | plain tps | ratio of the medians |", "|---|---|---|---|")
    for kind, name in (("tpcb", "TPC-B"), ("select", "select-only, warm")):
        every = (", ".join(f"{tps:,.0f}" for tps in run["tps"][who][kind]) for who in ("compute", "plain"))
        yield f"| {name} | {' | '.join(every)} | {run['ratio'][kind]:.2f} |"
    yield ""


def main():
    results = Path(sys.argv[1])
    found = json.loads((results / "compute.json").read_text())
    command = f"`BENCH_COMPUTE_ARGS='{GIVEN}' make bench-compute`" if GIVEN else "`make bench-compute`"
    dropped = "dropped before each start and scan" if found["drop_caches"] else "left alone"
    about = (f"* Postgres {found['pg_major']}, profile {found['profile']}; store on local disk; the kernel's caches "
             f"are {dropped}", f"* load average at the beginning: {found['load_before']:.1f}")
    lines = ["# Computes", "", *machine(command, *about), *starts(found), *scans(found), *load(found)]
    (results / "compute.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
