#!/usr/bin/env python3
"""Makes compaction-postgres.md and .svg from compaction-postgres.json, with the contract's figure beside each."""

import sys
from pathlib import Path

import artifact
from compaction import GROWTH, IDLE_CPU, MOST_L0, RECORDS, SEARCHED, SETTLED
from ingest_plot import Drawing
from report_compaction import judged, quarter

AMPLIFICATION = 7
CURVES = (("searched", "layers searched per page, p99"), ("records", "records per page, p99"),
          ("read_p50_us", "read p50, us"), ("read_p99_us", "read p99, us"), ("l0", "L0 layers"),
          ("stored_mib", "stored, MiB"), ("rss_mib", "RSS, MiB"), ("debt_mib", "due work, MiB"))


def rows(run):
    samples = run["samples"]
    with_reads = [sample for sample in samples if sample["reads"]]

    def worst(name):
        return max(sample[name] for sample in with_reads)

    def growth(name):
        shaped = {"samples": [{**sample, "depth": {}} for sample in with_reads]}
        return quarter(shaped, name, True) / max(quarter(shaped, name, False), 1e-9)

    yield "layers searched per page, p99 of the worst sample", SEARCHED, f"{worst('searched'):.0f}", worst("searched")
    yield "records applied per page, p99 of the worst sample", RECORDS, f"{worst('records'):.0f}", worst("records")
    yield "L0 layers, at most", MOST_L0, str(run["most_l0"]), run["most_l0"]
    amplified = run["write_amplification"]
    if amplified is not None:
        yield "bytes written to layers for each byte of values", AMPLIFICATION, f"{amplified:.2f}", amplified
    yield "s until no work was due, after the load", SETTLED, f"{run['settled_s']:.1f}", run["settled_s"]
    idle = run["idle_cpu_percent"]
    yield "percent of a core while idle afterwards", IDLE_CPU, f"{idle:.2f}", idle
    for name in ("read_p50_us", "read_p99_us", "rss_mib"):
        times = growth(name)
        yield f"{name.replace('_', ' ')}, last quarter of the first", GROWTH, f"{times:.2f}", times


def plot(samples):
    cell, high, left, top = 330, 150, 60, 40
    drawing = Drawing(left + cell * 4, top + (high + 50) * 2)
    for number, (name, title) in enumerate(CURVES):
        x0, y0 = left + number % 4 * cell, top + number // 4 * (high + 50)
        line = [sample[name] or 0 for sample in samples]
        highest = max([*line, 1])
        drawing.text(x0, y0 - 8, title, extra='font-size="12"')
        for mark in (0, highest):
            y = y0 + high - mark / highest * high
            drawing.line(x0, x0 + cell - 70, y, "#e5e5e5")
            drawing.text(x0 - 4, y + 4, f"{mark:,.0f}", "end", 'font-size="10"')
        step = (cell - 70) / max(len(line) - 1, 1)
        points = ((x0 + at * step, y0 + high - one / highest * high) for at, one in enumerate(line))
        drawing.polyline(points, "#3f7fbf", 1.5)
    return drawing.finish()


def make():
    results = Path(sys.argv[1])
    found = artifact.read(results / "compaction-postgres.json")
    run = found["results"]
    settings = ", ".join(run["settings"]) or "the default ones, without a bucket"
    kept = "of which these settings keep a part" if run["settings"] else "all kept"
    # The run of commit e5b8710 looked in vain for metrics without labels: what it took for their sums is null there.
    slowed = "an unknown time" if run["slowed_s"] is None else f"{run['slowed_s']} s in all"
    lines = [
        *artifact.header("Compaction of what a Postgres writes", "`make bench-compaction-postgres`",
                         {"compaction-postgres": found}),
        f"A database of {run['database_mib']:,} MiB takes {run['wal_mib']:,} MiB of WAL from pgbench (TPC-B, and",
        f"updates of a hundred neighboring rows, {run['wal_mib_per_s']} MiB/s on average) while random pages are",
        f"read; the pageserver's settings are {settings}. Postgres, pgbench, reader and pageserver share the cores.",
        "",
        "| | asked | found |", "|---|---|---|",
        *(f"| {what} | {asked} | {judged(text, value <= asked)} |" for what, asked, text, value in rows(run)), "",
        f"Stored at the end: {run['stored_mib']:,} MiB ({run['imported_mib']:,} MiB of them at the beginning), for",
        f"{run['values_mib']:,} MiB of values, {kept}. Ingest was slowed for {slowed}.", "",
        "| job | jobs | bytes written for each byte of values |", "|---|---|---|",
        *(f"| {kind} | {run['jobs'][kind]} | {share} |" for kind, share in run["written_per_value"].items()), "",
        "## Verified against the server's own files", "", "| what | LSN | pages compared | different |",
        "|---|---|---|---|",
        *(f"| {one['what']} | {one['lsn']} | {one['compared']:,} | {one['different']} |" for one in run["verified"]),
        "",
        "![curves](compaction-postgres.svg)", "",
    ]
    artifact.report(results / "compaction-postgres.md", lines)
    (results / "compaction-postgres.svg").write_text(plot(run["samples"]))


if __name__ == "__main__":
    artifact.refusing(make)
