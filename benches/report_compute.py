#!/usr/bin/env python3
"""Makes a page from the results of compute_figures.py (compute.json) or compute_cold.py (compute-cold.json)."""

import os
import sys
from pathlib import Path
from statistics import median

import artifact

NAMES = [name for name in ("BENCH_COMPUTE_ARGS", "BENCH_COMPUTE_COLD_ARGS", "BENCH_COMPUTE_ONLY") if name in os.environ]
WITH = "".join(f"{name}='{os.environ[name]}' " for name in NAMES)


def starts(found):
    yield from ("## The first answer of a cold compute", "",
                "From the command `pagectl compute start --branch NEW` until psql has the row of a SELECT by key;",
                "each time a new compute on a new branch, medians.",
                "Asked: under 1.5 s at any size, less than 20 % apart; under 200 MB of local disk.", "",
                "| database MiB | store MiB | starts | command ends s | first answer s | slowest s | local disk MiB | "
                "reached |", "|---|---|---|---|---|---|---|---|")
    sizes = found["sizes"]
    for size in sizes:
        slowest = max(one["first_answer_s"] for one in size["rounds"])
        good = artifact.verdict(size["first_answer_s"] < 1.5 and size["disk_mib"] * 1.048576 < 200)
        yield (f"| {size['database_mib']:,} | {size['store_mib']:,.0f} | {len(size['rounds'])} | "
               f"{size['ready_s']:.2f} | {size['first_answer_s']:.2f} | {slowest:.2f} | {size['disk_mib']:.0f} | "
               f"{good} |")
    if len(sizes) > 1:
        first, last = (sizes[at]["first_answer_s"] for at in (0, -1))
        apart = 100 * (last / first - 1)
        yield from ("", f"The largest takes {apart:+.0f} % compared with the smallest; less than 20 % apart: "
                    f"{artifact.verdict(abs(apart) < 20)}.")
    yield ""


def scans(found):
    scanned = [size["scan"] for size in found["sizes"] if size["scan"]]
    if scanned:
        yield from ("## Scans", "",
                    "`SELECT sum(abalance) FROM pgbench_accounts` on a compute that has read none of it; then again.",
                    "Asked: cold at least 100 MB/s.", "",
                    "| table MiB | cold MiB/s | cold with 2 workers MiB/s | again MiB/s | reached |",
                    "|---|---|---|---|---|")
    for scan in scanned:
        yield (f"| {scan['table_mib']:,} | {scan['cold_mib_per_s']:.0f} | {scan['cold_parallel_mib_per_s']:.0f} | "
               f"{scan['warm_mib_per_s']:.0f} | {artifact.verdict(scan['cold_mib_per_s'] * 1.048576 >= 100)} |")
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
                "| | compute tps | plain tps | ratio of the medians | reached |", "|---|---|---|---|---|")
    for kind, name, asked in (("tpcb", "TPC-B", 0.7), ("select", "select-only, warm", 0.85)):
        every = (", ".join(f"{tps:,.0f}" for tps in run["tps"][who][kind]) for who in ("compute", "plain"))
        ratio = run["ratio"][kind]
        yield f"| {name} | {' | '.join(every)} | {ratio:.2f} | {artifact.verdict(ratio >= asked)} |"
    yield ""


def without_disk(found):
    yield from ("Everything is in the bucket only. The pageserver starts on an empty disk; then",
                "`pagectl compute start` makes a compute on a new branch, psql gets the row of a SELECT by key, and on",
                "databases that are not too large the sum over all rows. Each time on an empty disk again, and the",
                "list of what was hot is taken from the bucket, so that nothing is fetched unasked; medians. A link",
                "between both hands on what comes later, so that each request takes so many ms longer.", "",
                "| database MiB | in the bucket MiB | ms a request | starts | pageserver up s | first answer s | "
                "slowest s | pageserver's disk then MiB | scan MiB/s |", "|---|---|---|---|---|---|---|---|---|")
    for size in found["sizes"]:
        for delay in sorted({one["delay_ms"] for one in size["rounds"]}):
            rounds = [one for one in size["rounds"] if one["delay_ms"] == delay]
            server, answer, disk = (median(one[key] for one in rounds)
                                    for key in ("server_s", "first_answer_s", "disk_mib"))
            slowest = max(one["first_answer_s"] for one in rounds)
            scans = [one["scan_mib_per_s"] for one in rounds if "scan_mib_per_s" in one]
            scan = f"{median(scans):.0f}" if scans else ""
            yield (f"| {size['database_mib']:,} | {size['bucket_mib']:,} | {delay:.0f} | {len(rounds)} | "
                   f"{server:.2f} | {answer:.2f} | {slowest:.2f} | {disk:.0f} | {scan} |")
    yield ""


def head(title, name, artifact_read):
    found = artifact_read["results"]
    dropped = "dropped before each start and scan" if found["drop_caches"] else "left alone"
    return artifact.header(title, f"`{WITH}make bench-compute`", {name: artifact_read},
                           f"* Postgres {found['pg_major']}; the kernel's caches are {dropped}")


def plain(read):
    found = read["results"]
    return [*head("Computes", "compute", read), *starts(found), *scans(found), *load(found)]


def cold(read):
    title = "Computes on a pageserver with an empty disk"
    return [*head(title, "compute-cold", read), *without_disk(read["results"])]


def make():
    results = Path(sys.argv[1])
    read = artifact.read(results)
    artifact.report(results.with_suffix(".md"), (cold if "store" in read["results"] else plain)(read))


if __name__ == "__main__":
    artifact.refusing(make)
