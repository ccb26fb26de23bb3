#!/usr/bin/env python3
"""Makes server.md from the results of run_server.sh, with the project's target beside each figure."""

import sys
from pathlib import Path

import artifact

# Targets: median us with one request in flight, pages per second with sixteen.
ONE_US = 60
MANY = {"image in the open layer": 60_000, "image in an image layer": 60_000, "10 records to apply": 40_000}
INTAKE = 3


def pages(cases):
    yield from ("## Pages over TCP on loopback", "",
                "Client and server share the cores; every page is compared with what was stored. The echo is what two "
                "processes", "take that only exchange as many bytes. Asked: one in flight p50 under 60 us; sixteen in "
                "flight over 60,000", "pages/s, with ten records to apply over 40,000.", "",
                "| pages | in flight | pages/s | p50 us | p99 us | p99.9 us | reached |",
                "|---|---|---|---|---|---|---|")
    for case in cases:
        reached = ""
        if case["case"] in MANY:
            one = case["in_flight"] == 1
            fast = case["p50_us"] < ONE_US if one else case["pages_per_s"] > MANY[case["case"]]
            reached = artifact.verdict(fast)
        yield (f"| {case['case']} | {case['in_flight']} | {case['pages_per_s']:,.0f} | {case['p50_us']:.1f} | "
               f"{case['p99_us']:.1f} | {case['p999_us']:.1f} | {reached} |")
    yield ""


def restart(cases):
    yield from ("## Opening and branching", "",
                "Asked with 10,000 layers: ready under 2 s, memory under 200 MB; a branch under 10 ms at any size.", "",
                "| layers | open ms | first page ms | memory MiB | branch ms, median | branch ms, worst | reached |",
                "|---|---|---|---|---|---|---|")
    for case in cases:
        good = case["load_ms"] < 2000 and case["rss_mib"] * 1.048576 < 200 and case["branch_ms_max"] < 10
        yield (f"| {case['layers']:,} | {case['load_ms']:.0f} | {case['first_read_ms']:.1f} | {case['rss_mib']:.0f} | "
               f"{case['branch_ms_median']:.1f} | {case['branch_ms_max']:.1f} | {artifact.verdict(good)} |")
    yield ""


def touched(found):
    if found.get("touched_gib"):
        yield (f"Before each run {found['touched_gib']:g} GiB of memory were used and freed: the host of a virtual "
               "machine may take back what has been free for some seconds, and who uses it next pays for that.")


def intake(found):
    yield from ("## WAL from a live server", "",
                f"{found.get('by', 'pgbench')}, scale {found['scale']}; pageserver and stock standby catch up from the "
                "same walsender in turn (medians).", "Of both counts what is on disk: `disk_consistent_lsn`, and a "
                "standby's flushed and replayed WAL. Afterwards every page is compared with the server's.",
                f"Asked: at least {INTAKE} times. *Sender alone* is how fast the same WAL comes from the same "
                "walsender to somebody who drops it.", *touched(found),
                "",
                "| full_page_writes | WAL MiB | rounds | sender alone MiB/s | pageserver MiB/s | standby MiB/s | "
                "ratio | CPU s: pageserver, standby | all due work done after s, CPU s by then | peak memory MiB | "
                "reached |",
                "|---|---|---|---|---|---|---|---|---|---|---|")
    for case in found["cases"]:
        first = case["rounds"][0]
        peak = max(one["pageserver"]["peak_rss_mib"] for one in case["rounds"])
        sender = f"{case['sender_mib_per_s']:,.0f}" if "sender_mib_per_s" in case else ""
        yield (f"| {'on' if case['full_page_writes'] else 'off'} | {case['wal_mib']} | {len(case['rounds'])} | "
               f"{sender} | {case['pageserver_mib_per_s']:.0f} | {case['standby_mib_per_s']:.0f} | {case['ratio']}x | "
               f"{first['pageserver']['cpu_seconds']:.1f}, {first['standby']['cpu_seconds']:.1f} | "
               f"{first['pageserver']['settled_s']:.0f}, {first['pageserver']['settled_cpu_seconds']:.0f} | {peak} | "
               f"{artifact.verdict(case['ratio'] >= INTAKE)} |")
    yield ""


PARTS = {"get_page": pages, "restart": restart, "wal_intake": intake}


def make():
    results = Path(sys.argv[1])
    found = {name: artifact.read(results / f"{name}.json") for name in PARTS}
    tables = [line for name, part in PARTS.items() for line in part(found[name]["results"])]
    artifact.report(results / "server.md", [*artifact.header("The server", "`make bench-server`", found), *tables])


if __name__ == "__main__":
    artifact.refusing(make)
