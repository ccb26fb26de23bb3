#!/usr/bin/env python3
"""Makes redo.md from the results of run_redo.sh, with the project's target beside each figure."""

import sys
from pathlib import Path

import artifact


def chains(found):
    yield from ("## Pages with records to apply", "",
                "From the image and the stored records to the page, decoding and the image's copy included. Asked: "
                "10 records under", "3 us a page on one core; throughput that scales with cores.", "",
                "| page | records | us/page | us/page, fastest | pages/s | records/s "
                f"| pages/s, {found['cores']} threads | scaling | reached |",
                "|---|---|---|---|---|---|---|---|---|")
    for case in found["chains"]:
        reached = artifact.verdict(case["us_per_page"] < 3) if case["records"] == 10 else ""
        yield (f"| {case['kind']} | {case['records']} | {case['us_per_page']:.2f} | "
               f"{case['best_us_per_page']:.2f} | {case['pages_per_s']:,.0f} | "
               f"{case['records_per_s']:,.0f} | {case['pages_per_s_all_cores']:,.0f} | {case['scaling']:.2f}x | "
               f"{reached} |")
    yield ""


def whole(found, standby):
    elapsed = min(one["elapsed"] for one in standby["rounds"])
    yield from ("## All of the WAL, against a stock server", "",
                f"Recorded WAL of pgbench ({found['whole']['wal_bytes'] / 2**20:.0f} MiB of segments), from the "
                "segments' bytes to the last version of", f"every page. Postgres {standby['version']} replays the "
                f"same segments (archive recovery, fsync off, {standby['shared_buffers']} of shared", "buffers); its "
                "time is the one in its log. The best round of each counts.", "",
                "| what | seconds | of it decoding | records/s | times Postgres |", "|---|---|---|---|---|",
                f"| Postgres | {elapsed:.2f} | | {found['whole']['cases'][0]['records'] / elapsed:,.0f} | 1.0x |")
    for case in found["whole"]["cases"]:
        threads = "1 thread" if case["threads"] == 1 else f"{case['threads']} threads"
        yield (f"| native redo, {threads} | {case['seconds']:.2f} | {case['decoding_seconds']:.2f} | "
               f"{case['records_per_s']:,.0f} | {elapsed / case['seconds']:.1f}x |")
    yield ""


def types(found):
    yield from ("## Records of each type", "",
                "One record on one thread, from its stored bytes to the changed page.", "",
                "| record | block | samples | ns | records/s |", "|---|---|---|---|---|")
    for case in found["types"]:
        yield (f"| {case['record']} | {case['block']} | {case['changed']} | {case['ns']:.0f} | "
               f"{case['records_per_s']:,.0f} |")
    yield ""


def make():
    results = Path(sys.argv[1])
    found = {name: artifact.read(results / f"{name}.json") for name in ("redo", "redo_standby")}
    redo, standby = (one["results"] for one in found.values())
    command = "`make bench-redo`" + (", quick mode" if redo["quick"] else "")
    head = artifact.header("Redo", command, found, f"* the stock server: Postgres {standby['version']}")
    artifact.report(results / "redo.md", [*head, *chains(redo), *whole(redo, standby), *types(redo)])


if __name__ == "__main__":
    artifact.refusing(make)
