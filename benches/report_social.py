#!/usr/bin/env python3
"""Makes social.md from social.json, with what a tiered file system has published beside it."""

import os
import sys
from pathlib import Path
from statistics import median

import artifact

sys.path.insert(0, str(Path(__file__).resolve().parent / "social"))

from queries import LEVELS, QUERIES  # noqa: E402

# MB that a point query may fetch; of the plain server's time with everything in memory; MB/s of a scan by delay.
POINT_MB, OF_PLAIN, SCAN_MB_PER_S = 2, 1.1, {4: 237, 25: 141}
MB_PER_MIB = 1.048576
WITH = f"BENCH_SOCIAL_ARGS='{os.environ['BENCH_SOCIAL_ARGS']}' " if "BENCH_SOCIAL_ARGS" in os.environ else ""
# Read-ahead in MiB, percent of a layer after which it is fetched whole, pages that Postgres asks for at once.
WITHOUT, DEFAULT = (0, 101, 1, 0), (4, 50, 1, 32)


def p90(figures) -> float:
    ordered = sorted(figures)
    return ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]


def select(executions, **wanted):
    return [one for one in executions if all(one[name] == value for name, value in wanted.items())]


def middle(some, what) -> float:
    return median(one[what] for one in some)


def check(found):
    """Refuses what contradicts itself: a level's requests, and times that cannot be."""
    for one in found["executions"]:
        # There may be requests to the bucket, for layers that the pageserver opens ahead, but none for the query.
        if one["level"] == "data" and one["pages"]:
            raise artifact.Refused(f"{one['query']}: {one['pages']} pages were read although all is in memory")
        if one["level"] == "none" and not one["gets"]:
            raise artifact.Refused(f"{one['query']}: no request although nothing is in memory")
        if one["ms"] <= 0 or one["start_to_row_ms"] < one["ms"]:
            raise artifact.Refused(f"times that cannot be, in {one}")


def against_theirs(executions, delays):
    yield ("| query | delay ms | p50 ms | theirs | ratio | p90 ms | theirs | GETs | theirs | MB | theirs | p50 at most "
           "theirs |")
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for name in QUERIES:
        for delay in delays:
            some = select(executions, query=name, delay_ms=delay, level="none")
            theirs = QUERIES[name].theirs.get(int(delay))
            if not some or not theirs:
                continue
            p50, mb = middle(some, "ms"), middle(some, "mib") * MB_PER_MIB
            yield (f"| {name} | {delay:g} | {p50:,.0f} | {theirs[0]:,} | {p50 / theirs[0]:.2f} | "
                   f"{p90(one['ms'] for one in some):,.0f} | {theirs[1]:,} | {middle(some, 'gets'):.0f} | "
                   f"{theirs[2]} | {mb:.1f} | {theirs[3]} | {artifact.verdict(p50 <= theirs[0])} |")


def every_level(executions, delays):
    yield ("| query | level | delay ms | executions | p50 ms | p90 ms | GETs | one after the other | MiB | pages | "
           "start to row p50 ms |")
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for name in QUERIES:
        for level in LEVELS:
            for delay in delays:
                some = select(executions, query=name, delay_ms=delay, level=level)
                if some:
                    yield (f"| {name} | {level} | {delay:g} | {len(some)} | {middle(some, 'ms'):,.1f} | "
                           f"{p90(one['ms'] for one in some):,.1f} | {middle(some, 'gets'):.0f} | "
                           f"{middle(some, 'round_trips'):.0f} | {middle(some, 'mib'):.2f} | "
                           f"{middle(some, 'pages'):,.0f} | {middle(some, 'start_to_row_ms'):,.0f} |")


def processor_time(executions, delays):
    """What the scan takes of the cores, by program: medians."""
    for delay in delays:
        some = select(executions, query="scan-filter", level="none", delay_ms=delay)
        if not some:
            continue
        middles = {name: median(one["cpu_ms"].get(name, 0) for one in some) for one in some for name in one["cpu_ms"]}
        most = sorted(middles.items(), key=lambda item: -item[1])
        took = ", ".join(f"{name} {ms:,.0f}" for name, ms in most if ms >= 20)
        yield f"* at {delay:g} ms, in {middle(some, 'ms'):,.0f} ms: {took}"


def asked(found, delays):
    executions = found["executions"]
    points = [one for one in executions if one["query"] != "scan-filter" and one["level"] == "none"]
    if points:
        worst = max(middle(select(points, query=name), "mib") for name in {one["query"] for one in points})
        worst *= MB_PER_MIB
        yield (f"MB of a point query at most ({POINT_MB})", f"{worst:.1f}", worst <= POINT_MB)
    for delay in delays:
        some = select(executions, query="scan-filter", level="none", delay_ms=delay)
        if some and int(delay) in SCAN_MB_PER_S:
            rate = median(one["mib"] * MB_PER_MIB / one["ms"] * 1000 for one in some)
            # The link is a program on the same cores: what comes near to what it can do says little.
            near = " (more than half of what the link gives)" if rate > found["link_mib_per_s"] / 2 else ""
            wanted = SCAN_MB_PER_S[int(delay)]
            yield f"scan at {delay:g} ms: MB/s of the bucket ({wanted})", f"{rate:.0f}{near}", rate >= wanted
    for name, plain in found["plain_ms"].items():
        some = select(executions, query=name, level="data")
        if some:
            ratio = middle(some, "ms") / plain
            yield (f"{name} with all in memory, of the plain server's {plain:.2f} ms (at most {OF_PLAIN})",
                   f"{ratio:.2f}", ratio <= OF_PLAIN)


def combinations(matrix):
    """For each query the three best combinations of settings, that without any fetching ahead, and the default."""
    yield ("| query | read-ahead MiB | whole layer after % | pages asked for at once | MiB ahead by the compute | ms | "
           "GETs | MiB | of the one without |")
    yield "|---|---|---|---|---|---|---|---|---|"
    for name in QUERIES:
        some = sorted(select(matrix, query=name), key=lambda one: one["ms"])
        without = [one for one in some if settings_of(one) == WITHOUT]
        if not without:
            continue
        marked = [(one, "") for one in some[:3]]
        marked += [(without[0], " (without)"), *((one, " (default)") for one in some if settings_of(one) == DEFAULT)]
        for one, mark in marked:
            ahead, whole, at_once, of_compute = settings_of(one)
            yield (f"| {name}{mark} | {ahead} | {'never' if whole > 100 else whole} | {at_once} | {of_compute} | "
                   f"{one['ms']:,.0f} | {one['gets']:.0f} | {one['mib']:.1f} | {one['ms'] / without[0]['ms']:.2f} |")


def settings_of(one) -> tuple[int, int, int, int]:
    return one["read_ahead_mib"], one["whole_after"], one["io_concurrency"], one["ahead_mib"]


def lines(found):
    executions = found["executions"]
    delays = sorted({one["delay_ms"] for one in executions})
    yield (f"{found['users']:,} users, a database of {found['database_mib']:,.0f} MiB, in the bucket "
           f"{found['bucket_mib']:,.0f} MiB; the table that scan-filter reads has {found['posts_mib']:,.0f} MiB. "
           f"Postgres {found['pg_major']}.")
    yield from ("Each execution is on a new compute, with a pageserver that has just been started on an empty disk.",
                "Levels say what is in the compute's shared buffers: nothing but catalogs; pages of indexes above the",
                "leaves; indexes; everything. The link that delays requests gives "
                f"{found['link_mib_per_s']:,.0f} MiB/s by itself.")
    yield from ("", "## With nothing in memory, beside a tiered file system", "",
                "Theirs are published figures, of other hardware and with pages of 64 KiB.", "",
                *against_theirs(executions, delays))
    yield from ("", "## Asked", "", "| what | measured | reached |", "|---|---|---|")
    yield from (f"| {what} | {measured} | {artifact.verdict(reached)} |" for what, measured, reached in
                asked(found, delays))
    yield from ("", "## Processor time of scan-filter with nothing in memory", "",
                "Two cores. In ms; python is the link, versitygw the S3 server.", "",
                *processor_time(executions, delays))
    yield from ("", "## All", "", *every_level(executions, delays), "")


def matrix_lines(found):
    yield f"{found['users']:,} users, a database of {found['database_mib']:,.0f} MiB, in the bucket. Each execution is"
    yield "on a new compute with nothing but catalogs in memory, after the pageserver was started on an empty disk."
    yield (f"Each request to the bucket takes {found['matrix'][0]['delay_ms']:g} ms longer. The three quickest of 72 "
           "combinations, and two to compare with.")
    yield from ("", *combinations(found["matrix"]), "")


def make():
    results, title = Path(sys.argv[1]), "Six queries from S3"
    if (results / "social.json").exists():
        found = artifact.read(results / "social.json")
        check(found["results"])
        header = artifact.header(title, f"`{WITH}make bench-social`", {"social": found})
        artifact.report(results / "social.md", [*header, *lines(found["results"])])
    if (results / "social_matrix.json").exists():
        found = artifact.read(results / "social_matrix.json")
        command = "`BENCH_SOCIAL_ARGS='--matrix 1' make bench-social`"
        header = artifact.header(f"{title}: settings", command, {"social_matrix": found})
        artifact.report(results / "social_matrix.md", [*header, *matrix_lines(found["results"])])


if __name__ == "__main__":
    artifact.refusing(make)
