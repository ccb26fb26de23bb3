#!/usr/bin/env python3
"""Makes tiered.md from tiered.json, with the project's targets beside the figures."""

import os
import sys
from pathlib import Path

import artifact

MIB = 1 << 20
CHECKED = "* every page is compared with what was stored; a run with a wrong or missing page is not reported"
NAMES = [name for name in ("BENCH_TIERED_QUICK", "BENCH_S3_KIND") if name in os.environ]
WITH = "".join(f"{name}={os.environ[name]} " for name in NAMES)


def shape(run):
    told = run["shape"]
    size = told["layers"] * told["pages_per_layer"] * told["page_bytes"] / MIB
    yield from (f"## {run['store']}", "", f"* endpoint: {told['endpoint']}",
                f"* latency: {told['latencies_ms']} ms {told['latency']}",
                f"* data: {told['layers']} image layers of {told['pages_per_layer']:,} pages, {size:,.0f} MiB in all, "
                "pages that do not compress", "")


def points(run):
    yield from ("### Pages in random order", "",
                "Asked: at most 2 requests, one after the other, for a page with nothing cached, 1 with its index.", "",
                "| latency ms | cached | pages at once | p50 ms | p95 ms | p99 ms | GETs a read | GETs a page | "
                "KiB a page | memory MiB | disk MiB | reached |", "|---|---|---|---|---|---|---|---|---|---|---|---|")
    for case in run["points"]:
        most = {"none": 2, "index": 1}.get(case["level"], 0) if case["pages_per_read"] == 1 else None
        reached = "" if most is None else artifact.verdict(case["gets_per_read"] <= most)
        yield (f"| {case['latency_ms']} | {case['level']} | {case['pages_per_read']} | {case['p50_ms']:.3f} | "
               f"{case['p95_ms']:.3f} | {case['p99_ms']:.3f} | {case['gets_per_read']:.2f} | "
               f"{case['gets_per_page']:.2f} | {case['bytes_per_page'] / 1024:.1f} | "
               f"{case['cache_memory_bytes'] / MIB:.0f} | {case['cache_disk_bytes'] / MIB:.0f} | {reached} |")
    yield ""


def scans(run):
    yield from ("### All pages in order, 32 at once, nothing cached", "",
                "Asked: at most 1.3 times the bytes, in requests of 1 MiB or more. `whole` is the percentage of a "
                "layer after which it is fetched whole in the background (101: never).", "",
                "| latency ms | read-ahead max MiB | whole | MiB | MiB/s | GETs | bytes, times | mean GET MiB | "
                "first batch ms | reached |", "|---|---|---|---|---|---|---|---|---|---|")
    for case in run["scans"]:
        large = case["mean_get_bytes"] >= MIB and case["bytes_ratio"] <= 1.3
        reached = artifact.verdict(large) if case["read_ahead_max"] >= 4 * MIB else ""
        yield (f"| {case['latency_ms']} | {case['read_ahead_max'] / MIB:.0f} | {case['prefetch_whole_after']} | "
               f"{case['bytes'] / MIB:.0f} | {case['mib_per_second']:.0f} | {case['gets']} | "
               f"{case['bytes_ratio']:.3f} | {case['mean_get_bytes'] / MIB:.2f} | {case['first_batch_ms']:.1f} | "
               f"{reached} |")
    yield ""


def restarts(run):
    yield from ("### Start on an empty disk", "",
                "Asked: first page within 2 s with 10,000 layers at 25 ms. Medians.", "",
                "| layers | latency ms | all open, ms | first page, ms | requests until then |",
                "|---|---|---|---|---|")
    for case in run["restarts"]:
        yield (f"| {case['layers']:,} | {case['latency_ms']} | {case['open_ms']:.0f} | {case['first_page_ms']:.0f} | "
               f"{case['requests_until_first_page']:.0f} |")
    upload = run["upload"]
    yield from ("", f"Upload of {upload['layers']} layers, {upload['bytes'] / MIB:,.0f} MiB in all, no latency added: "
                f"{upload['mb_per_second']:.0f} MB/s (asked: 200 MB/s on the S3 server).", "")
    yield from processor(upload)


def processor(upload):
    """Processor time of the upload; earlier runs did not measure it."""
    spent = upload.get("processor")
    if spent is None:
        return
    server = spent["server_ms_per_mb"]
    yield ("Processor time: " + f"{spent['client_ms_per_mb']:.2f} ms a MB here"
           + (f", {server:.2f} in the server, contents {'' if upload['contents_signed'] else 'not '}signed"
              if server is not None else "")
           + f"; meanwhile {spent['cores_busy_elsewhere']:.1f} cores were busy with something else.")
    yield ""


def make():
    results = Path(sys.argv[1])
    found = artifact.read(results / "tiered.json")
    head = artifact.header("Pages from a bucket", f"`{WITH}make bench-tiered`", {"tiered": found}, CHECKED)
    parts = (shape, points, scans, restarts)
    tables = [line for run in found["results"] for part in parts for line in part(run)]
    artifact.report(results / "tiered.md", [*head, *tables])


if __name__ == "__main__":
    artifact.refusing(make)
