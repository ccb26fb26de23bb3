#!/usr/bin/env python3
"""Makes swmr.md from swmr.json, with what is asked beside each figure."""

import os
import sys
from pathlib import Path
from statistics import median

import artifact

READERS = ("head light", "head heavy", "pinned light", "pinned heavy")
# The writer, of itself without readers and of itself where the bucket is local; readers, of where it is local.
ALONE, LOCAL, HEAD, PINNED = 0.9, 0.9, 1.5, 30
WITH = f"BENCH_SWMR_ARGS='{os.environ['BENCH_SWMR_ARGS']}' " if "BENCH_SWMR_ARGS" in os.environ else ""


def rate(place: dict, how: str, name="taken_in_per_s") -> float:
    return median(one[how][name] for one in place["rounds"])


def read_ms(place: dict, reader: str, name="p50_ms") -> float:
    return median(one["beside"]["readers"][reader][name] for one in place["rounds"])


def again(place: dict) -> int:
    """Pages that were at the head and were read again, as of their own LSNs."""
    return sum(one["beside"]["readers"][reader]["again"] for one in place["rounds"] for reader in READERS)


def check(results: dict):
    """Refuses a run that proves nothing."""
    names = [place["topology"] for place in results["places"]]
    if "local" not in names:
        raise artifact.Refused(f"nothing to compare with: only {', '.join(names)}")
    for place in results["places"]:
        name = place["topology"]
        gone, verified = place["forgotten"], place["verified"]
        if not verified["compared"] or verified["different"] or not gone["pages"] or gone["different"]:
            raise artifact.Refused(f"{name}: {gone} when history went, {verified} at the end")
        for one in place["rounds"]:
            for how in ("alone", "beside"):
                if not 0 < one[how]["taken_in_per_s"] <= one[how]["tps"]:
                    raise artifact.Refused(f"{name}: rates that cannot be, in {one[how]}")
            for reader in READERS:
                got = one["beside"]["readers"].get(reader)
                if not got or not got["reads"] or not 0 < got["p50_ms"] <= got["p95_ms"] <= got["max_ms"]:
                    raise artifact.Refused(f"{name}: {reader} has read nothing, or in no time: {got}")
        if not again(place):
            raise artifact.Refused(f"{name}: no page at the head that changed was read again")


def asked(results: dict):
    local = next(place for place in results["places"] if place["topology"] == "local")
    for place in results["places"]:
        name = place["topology"]
        beside = rate(place, "beside")
        alone = beside / rate(place, "alone")
        checks = [("writer beside readers, of itself alone", f"at least {ALONE}", f"{alone:.2f}", alone >= ALONE)]
        if place is not local:
            of_local = beside / rate(local, "beside")
            checks.append(("writer beside readers, of local", f"at least {LOCAL}", f"{of_local:.2f}",
                           of_local >= LOCAL))
            for reader in READERS:
                most = HEAD if reader.startswith("head") else PINNED
                times = read_ms(place, reader) / read_ms(local, reader)
                checks.append((f"{reader}, p50 of local", f"at most {most} times", f"{times:.1f} times", times <= most))
        for what, most, found, good in checks:
            yield f"| {name} | {what} | {most} | {found} | {artifact.verdict(good)} |"


def writers(results: dict):
    yield from ("", "## The writer", "",
                "Transactions a second: of pgbench, and by the time until the pageserver has taken all of them in,",
                "which is what counts. Medians of the rounds, and the worst one.", "",
                "| bucket | readers | pgbench's | taken in | worst | caught up after s | behind at most MiB | "
                "cores busy | of these the pageserver |", "|---|---|---|---|---|---|---|---|---|")
    for place in results["places"]:
        for how, many in (("alone", "none"), ("beside", f"{len(READERS) * results['readers_of_each']}")):
            rounds = [one[how] for one in place["rounds"]]
            busy, server = (median(one["cores"][name] for one in rounds) for name in ("busy", "server"))
            yield (f"| {place['topology']} | {many} | {rate(place, how, 'tps'):,.0f} | {rate(place, how):,.0f} | "
                   f"{min(one['taken_in_per_s'] for one in rounds):,.0f} | "
                   f"{median(one['caught_up_s'] for one in rounds):.1f} | "
                   f"{max(one['lag_mib'] for one in rounds):,.1f} | {busy:.2f} | {server:.2f} |")


def readers(results: dict):
    local = next(place for place in results["places"] if place["topology"] == "local")
    yield from ("", "## The readers", "",
                f"At most {results['per_second']:g} reads a second each, the next one when the one before has ended.",
                "",
                "| reader | bucket | reads | a second, each | p50 ms | worst p50 ms | p95 ms | max ms | "
                "p50, times local | cores of all |", "|---|---|---|---|---|---|---|---|---|---|")
    for reader in READERS:
        for place in results["places"]:
            every = [one["beside"]["readers"][reader] for one in place["rounds"]]
            p50, p95 = read_ms(place, reader), read_ms(place, reader, "p95_ms")
            yield (f"| {reader} | {place['topology']} | {sum(one['reads'] for one in every):,} | "
                   f"{median(one['per_s'] for one in every):.1f} | {p50:,.1f} | "
                   f"{max(one['p50_ms'] for one in every):,.1f} | {p95:,.1f} | "
                   f"{max(one['max_ms'] for one in every):,.1f} | {p50 / read_ms(local, reader):.1f} | "
                   f"{median(one['cores'] for one in every):.2f} |")


def stores(results: dict):
    yield from ("", "## What is stored", "",
                "After the first round all history went but for the pinned LSN, and all of its pages were compared; at "
                "the end, all", "pages with the server's files.", "",
                "| bucket | in it before MiB | after MiB | pageserver's RSS MiB | layers of history removed | "
                "pinned pages compared | pages verified |", "|---|---|---|---|---|---|---|")
    for place in results["places"]:
        gone = place["forgotten"]
        yield (f"| {place['topology']} | {place['bucket_mib']:,} | {place['bucket_mib_after']:,} | "
               f"{place['rss_mib']:,} | {gone['layers']} | {gone['pages']:,} | {place['verified']['compared']:,} |")


def lines(results: dict):
    rounds, seconds = len(results["places"][0]["rounds"]), results["seconds"]
    same = sum(map(again, results["places"]))
    yield from (
        f"{results['clients']} clients of pgbench write on a stock Postgres with a database of "
        f"{results['database_mib']:,} MiB, which a pageserver follows whose",
        f"local disk may hold {results['budget_mib']} MiB. {rounds} rounds of {seconds} s without and {seconds} s with "
        "readers, in turn, each from a checkpoint on.",
        "`local` is a bucket that is a directory on the same disk, `s3-D` an S3 server behind a link that makes each",
        f"request D ms slower; that link carries {results['link_mib_per_s']:,.0f} MiB/s.", "",
        f"Light reads have one page, heavy ones {results['heavy']:,} random pages. Head: at the newest LSN; pinned: at",
        "one that only a lease keeps, from the second round on. Pinned pages had the hashes of its beginning; the LSN",
        f"of a page at the head never went back, and {same:,} of those that had changed were the same again as of",
        "their own LSNs.", "",
        "An embedded columnar store on S3 publishes 45 to 117 times its local figures for reads beside one writer.", "",
        "## Asked", "", "| bucket | what | asked | measured | reached |", "|---|---|---|---|---|")
    yield from asked(results)
    yield from writers(results)
    yield from readers(results)
    yield from stores(results)
    yield ""


def make():
    place = Path(sys.argv[1])
    found = artifact.read(place / "swmr.json")
    check(found["results"])
    header = artifact.header("One writer, many readers", f"`{WITH}make bench-swmr`", {"swmr": found},
                             f"* Postgres {found['results']['pg_major']}")
    artifact.report(place / "swmr.md", [*header, *lines(found["results"])])


if __name__ == "__main__":
    artifact.refusing(make)
