#!/usr/bin/env python3
"""Makes load.md and load.svg from load.json, with what is asked beside each figure."""

import math
import sys
from pathlib import Path

import artifact
from ingest_plot import Drawing

# One in flight: the median of one connection, of that of the echo; pages per second at best; with 128 connections, of
# that, and its p99, of its median; with 16 connections, pages per second and p99.9 in us. Sixteen in flight: pages per
# second at best.
ONE, PEAK, HELD, SPREAD, SIXTEEN, SIXTEEN_US, DEEP_PEAK = 1.3, 60_000, 0.9, 2.5, 75_000, 1_200, 112_000
# A client that takes more of its core is what is measured.
CLIENT_BOUND = 0.95
COLORS = {"uniform": "#3f7fbf", "zipf 0.99": "#d9822b", "echo": "#7a8ca3"}


def select(rows, form, order, in_flight):
    return [row for row in rows if (row["form"], row["order"], row["in_flight"]) == (form, order, in_flight)]


def table(rows, echo):
    yield ("| connections | in flight | pages/s | of the echo | p50 us | p95 us | p99 us | p99.9 us | max us | "
           "CPU us a page: client, server | the client's core | server MiB |")
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        same = echo.get(row["connections"]) if row["in_flight"] == 1 else None
        of_echo = f"{row['per_s'] / same['per_s']:.2f}" if same else ""
        times = " | ".join(f"{row[name]:,.0f}" for name in ("p50_us", "p95_us", "p99_us", "p999_us", "max_us"))
        bound = " client-bound" if row["client_core"] >= CLIENT_BOUND else ""
        yield (f"| {row['connections']} | {row['in_flight']} | {row['per_s']:,.0f} | {of_echo} | {times} | "
               f"{row['client_us']:.1f}, {row['server_us']:.1f} | {row['client_core']:.2f}{bound} | "
               f"{row['server_rss_mib']} |")


def asked(order, strict, deep, echo):
    by = {row["connections"]: row for row in strict}
    peak, first, last = max(row["per_s"] for row in strict), by[1], by[128]
    over = first["p50_us"] / echo[1]["p50_us"]
    checks = [
        (f"one connection: p50, of the echo's (at most {ONE})", f"{over:.2f}", over <= ONE),
        (f"one in flight each: pages/s at best ({PEAK:,})", f"{peak:,.0f}", peak >= PEAK),
        (f"16 connections: pages/s ({SIXTEEN:,})", f"{by[16]['per_s']:,.0f}", by[16]["per_s"] >= SIXTEEN),
        (f"16 connections: p99.9 us (below {SIXTEEN_US:,})", f"{by[16]['p999_us']:,.0f}",
         by[16]["p999_us"] < SIXTEEN_US),
        (f"128 connections: pages/s, of the best ({HELD})", f"{last['per_s'] / peak:.2f}",
         last["per_s"] >= HELD * peak),
        (f"128 connections: p99, of p50 (at most {SPREAD})", f"{last['p99_us'] / last['p50_us']:.1f}",
         last["p99_us"] <= SPREAD * last["p50_us"]),
    ]
    best = max(row["per_s"] for row in deep)
    checks.append((f"sixteen in flight each: pages/s at best ({DEEP_PEAK:,})", f"{best:,.0f}", best >= DEEP_PEAK))
    return [f"| {order} | {what} | {found} | {artifact.verdict(reached)} |" for what, found, reached in checks]


def others(rows):
    """Whether a relation is there, sizes, and many pages in flight."""
    yield "| request | connections | per s | p50 us | p99 us | CPU us each: client, server |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        if row["form"] not in ("page", "echo"):
            yield (f"| {row['form']} | {row['connections']} | {row['per_s']:,.0f} | {row['p50_us']:,.0f} | "
                   f"{row['p99_us']:,.0f} | {row['client_us']:.1f}, {row['server_us']:.1f} |")


def missing_costs_no_more(rows):
    """Whether asking for a relation that is not there takes no longer than for one that is."""
    by = {(row["form"], row["connections"]): row["p50_us"] for row in rows}
    for connections in (1, 16):
        there, missing = by["exists", connections], by["exists, missing", connections]
        yield (f"| | {connections} connections: exists, missing: p50, of one that is there (at most 1) | "
               f"{missing / there:.2f} | {artifact.verdict(missing <= there)} |")


def check(rows):
    """Refuses times that cannot be."""
    wrong = [row for row in rows if not 1 < row["p50_us"] <= row["p99_us"]]
    if wrong:
        raise artifact.Refused(f"times that cannot be, in {wrong[0]}")


def lines(found):
    rows, gib = found["rows"], found["pages"] * 8192 / 2**30
    echo = {row["connections"]: row for row in select(rows, "echo", "", 1)}
    cached = f"{found['cached_pages']:,}"
    yield from (f"{gib:g} GiB of pages in an image layer on the local disk; {cached} of them may be kept in memory as",
                "they are rebuilt. The server is a process of its own, the client has one thread and compares every",
                "page. The echo is what as many connections exchange with that process that only answer as many bytes.",
                "", "## Asked", "", "| pages drawn | what | measured | reached |", "|---|---|---|---|")
    for order in ("uniform", "zipf 0.99"):
        yield from asked(order, select(rows, "page", order, 1), select(rows, "page", order, 16), echo)
    yield from missing_costs_no_more(rows)
    for order in ("uniform", "zipf 0.99"):
        pages = select(rows, "page", order, 1) + select(rows, "page", order, 16)
        yield from ("", f"## Pages drawn: {order}", "", *table(pages, echo))
    yield from ("", "## Other requests", "", *others(rows))
    yield from ("", "## The echo", "", *table(echo.values(), {}), "", "![curve](load.svg)", "")


def plot(rows):
    left, top, width, height = 80, 60, 560, 300
    drawing = Drawing(left + width + 40, top + height + 50)
    drawing.text(left, 20, "Pages per second by connections, one request in flight each", extra='font-size="15"')
    highest = max(row["per_s"] for row in rows if row["in_flight"] == 1) * 1.05
    for share in range(5):
        y = top + height * (1 - share / 4)
        drawing.line(left, left + width, y, "#e5e5e5")
        drawing.text(left - 6, y + 4, f"{highest * share / 4:,.0f}", "end")
    for number, (order, color) in enumerate(COLORS.items()):
        line = select(rows, "echo", "", 1) if order == "echo" else select(rows, "page", order, 1)
        points = [(left + math.log2(row["connections"]) / 7 * width, top + height * (1 - row["per_s"] / highest))
                  for row in line]
        drawing.polyline(points, color)
        drawing.box(left + number * 120, 34, 12, 12, color)
        drawing.text(left + number * 120 + 18, 44, order)
    for power in range(8):
        drawing.text(left + power / 7 * width, top + height + 20, 2**power, "middle")
    return drawing.finish()


def make():
    results = Path(sys.argv[1])
    found = artifact.read(results / "load.json")
    check(found["results"]["rows"])
    header = artifact.header("Load", "`make bench-load`", {"load": found})
    artifact.report(results / "load.md", [*header, *lines(found["results"])])
    (results / "load.svg").write_text(plot(found["results"]["rows"]))


if __name__ == "__main__":
    artifact.refusing(make)
