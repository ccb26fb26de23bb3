#!/usr/bin/env python3
"""Makes console.md from console.json, with what is asked beside each figure."""

import os
import sys
from pathlib import Path
from statistics import median

import artifact

# Milliseconds to the first paint; KiB of the page, as transferred; frames per second with so many layers.
PAINT, WEIGHT, FRAMES, LAYERS = 1000, 300, 30, 10_000
ARGS = os.environ.get("BENCH_CONSOLE_ARGS")
WITH = f"BENCH_CONSOLE_ARGS='{ARGS}' " if ARGS else ""
WAYS = (("all", "all layers in view"), ("closer", "a tenth of the picture in view"))


def asked(results):
    opened, moves = results["opened"], results["map"]["moves"]
    paint = max(one["first_paint_ms"] for one in opened)
    weight = max(one["page_bytes"] for one in opened) / 1024
    frames = min(one["frames_per_s"] for rounds in moves.values() for one in rounds)
    hosts = sorted({host for one in opened for host in one["other_hosts"]})
    enough = results["map"]["shown"] >= LAYERS
    checks = [
        (f"first paint, the slowest of {len(opened)} (at most {PAINT:,} ms)", f"{paint:.0f} ms", paint <= PAINT),
        (f"the page with all it loads, compressed (at most {WEIGHT} KiB)", f"{weight:.0f} KiB", weight <= WEIGHT),
        (f"frames per second with {results['map']['shown']:,} layers, the slowest round (at least {FRAMES} with "
         f"{LAYERS:,})", f"{frames:.0f}", frames >= FRAMES and enough),
        ("other hosts that are asked for anything (none)", ", ".join(hosts) or "none", not hosts),
    ]
    yield from ("| what | measured | reached |", "|---|---|---|")
    yield from (f"| {what} | {value} | {artifact.verdict(reached)} |" for what, value, reached in checks)


def rows(results):
    opened = results["opened"]
    yield from ("| a new browser | median | slowest |", "|---|---|---|")
    for name, what in (("first_paint_ms", "first paint, ms"), ("branches_ms", "branches are shown, ms, with the "
                       "driver's own time")):
        values = [one[name] for one in opened]
        yield f"| {what} | {median(values):.0f} | {max(values):.0f} |"
    yield f"| requests for the page | {median(one['requests'] for one in opened):.0f} | |"
    yield from ("", "| the layer map in motion | frames per second | slowest round | between two frames, p99 ms | "
                "drawing, p50 ms | p99 ms |", "|---|---|---|---|---|---|")
    for name, what in WAYS:
        rounds = results["map"]["moves"][name]
        of = lambda field, rounds=rounds: median(one[field] for one in rounds)  # noqa: E731
        slowest = min(one["frames_per_s"] for one in rounds)
        yield (f"| {what} | {of('frames_per_s'):.0f} | {slowest:.0f} | {of('gap_p99_ms'):.0f} | "
               f"{of('draw_p50_ms'):.1f} | {of('draw_p99_ms'):.1f} |")


def check(results):
    """Refuses what says nothing."""
    moves = results["map"]["moves"]
    if not results["opened"] or any(not moves.get(name) for name, _ in WAYS):
        raise artifact.Refused("not everything was measured")
    if min(one["first_paint_ms"] for one in results["opened"]) <= 0:
        raise artifact.Refused("a paint that took no time")
    if min(one["page_bytes"] for one in results["opened"]) < 10_000:
        raise artifact.Refused("a page that weighs nothing")


def make():
    folder = Path(sys.argv[1])
    read = artifact.read(folder / "console.json")
    results = read["results"]
    check(results)
    header = artifact.header("The console", f"`{WITH}make bench-console`", {"console": read},
                             f"* Chromium {results['browser']}, headless, without a graphics card")
    lines = ("The browser, its driver, Postgres and the pageserver share the cores. A frame is one that was drawn; the "
             "map is moved with each, and the pointer with it.", "", "## Asked", "", *asked(results), "", "## Figures",
             "", *rows(results), "")
    artifact.report(folder / "console.md", [*header, *lines])


if __name__ == "__main__":
    artifact.refusing(make)
