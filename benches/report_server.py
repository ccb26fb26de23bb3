#!/usr/bin/env python3
"""Makes server.md of the results of run_server.sh, with what the project asks for beside each figure."""

import json
import sys
from pathlib import Path

from machine import machine


def pages(results):
    yield from ("## Pages over TCP on loopback", "",
                "Client and server share the cores; every page is compared with what was stored. Asked: one in flight "
                "p50 under 60 us;", "sixteen in flight over 60,000 pages/s, with ten records to apply over 40,000.", "",
                "| pages | in flight | pages/s | p50 us | p99 us |", "|---|---|---|---|---|")
    for case in json.loads((results / "get_page.json").read_text()):
        yield (f"| {case['case']} | {case['in_flight']} | {case['pages_per_s']:,.0f} | {case['p50_us']:.1f} | "
               f"{case['p99_us']:.1f} |")
    yield ""


def restart(results):
    yield from ("## Opening and branching", "",
                "Asked with 10,000 layers: ready under 2 s, memory under 200 MB; a branch under 10 ms at any size.", "",
                "| layers | open ms | first page ms | memory MiB | branch ms, median | branch ms, worst |",
                "|---|---|---|---|---|---|")
    for case in json.loads((results / "restart.json").read_text()):
        yield (f"| {case['layers']:,} | {case['load_ms']:.0f} | {case['first_read_ms']:.1f} | {case['rss_mib']:.0f} | "
               f"{case['branch_ms_median']:.1f} | {case['branch_ms_max']:.1f} |")
    yield ""


def intake(results):
    found = json.loads((results / "wal_intake.json").read_text())
    yield from ("## WAL from a live server", "",
                f"pgbench, scale {found['scale']}; pageserver and stock standby catch up from the same walsender in "
                "turn (medians). Asked: at least 3 times.", "",
                "| full_page_writes | WAL MiB | pageserver MiB/s | standby MiB/s | ratio | "
                "CPU s: pageserver, standby | peak memory MiB |", "|---|---|---|---|---|---|---|")
    for case in found["results"]:
        first = case["rounds"][0]
        peak = max(one["pageserver"]["peak_rss_mib"] for one in case["rounds"])
        yield (f"| {'on' if case['full_page_writes'] else 'off'} | {case['wal_mib']} | "
               f"{case['pageserver_mib_per_s']} | {case['standby_mib_per_s']} | {case['ratio']}x | "
               f"{first['pageserver']['cpu_seconds']:.1f}, {first['standby']['cpu_seconds']:.1f} | {peak} |")
    yield ""


def main():
    results = Path(sys.argv[1])
    lines = ["# The server", "", *machine("`make bench-server`")]
    for part, source in ((pages, "get_page.json"), (restart, "restart.json"), (intake, "wal_intake.json")):
        if (results / source).exists():
            lines += part(results)
    (results / "server.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
