#!/usr/bin/env python3
"""Makes surface.md from surface.json, with what is asked beside each figure."""

import os
import sys
from pathlib import Path
from statistics import median

import artifact

STEPS = ("open", "light", "heavy", "write", "visible")
OPEN_MS, VISIBLE_MS, TRIPS = 50, 5, 2
# The slowest bucket, of the local one: steps that read from it, and those that should not notice it.
TIMES = {"open": 30, "light": 30, "heavy": 30, "write": 1.2, "visible": 1.2}
# A link that carries more of what it can is what is measured.
LINK_BOUND = 0.5
WITH = f"BENCH_SURFACE_ARGS='{os.environ['BENCH_SURFACE_ARGS']}' " if "BENCH_SURFACE_ARGS" in os.environ else ""


class Size:
    """The samples of one size, by topology and step."""

    def __init__(self, size: dict, places: list[dict]):
        self.size, self.places = size, places
        self.samples = {(place["name"], step): [sample for one in size["rounds"] if one["topology"] == place["name"]
                                                for sample in one[step]]
                        for place in places for step in STEPS}

    def middle(self, place: str, step: str, name="ms") -> float:
        return median(sample[name] for sample in self.samples[place, step])

    def times(self, place: str, step: str) -> float:
        """How many times the local median."""
        return self.middle(place, step) / self.middle("local", step)

    def trips(self, place: dict, step: str) -> float | None:
        """Requests of the bucket that wait for each other: what the delay costs, in delays."""
        same = [other["name"] for other in self.places if other["kind"] == place["kind"] and not other["delay"]]
        if not same or not place["delay"]:
            return None
        return (self.middle(place["name"], step) - self.middle(same[0], step)) / place["delay"]


def check(results: dict):
    """Refuses samples that prove nothing."""
    names = [place["name"] for place in results["topologies"]]
    if "local" not in names or len(names) < 2:
        raise artifact.Refused(f"nothing to compare: only {', '.join(names)}")
    for size in results["sizes"]:
        for (name, step), samples in Size(size, results["topologies"]).samples.items():
            if not samples:
                raise artifact.Refused(f"no {step} was measured at {name}")
            wrong = [one for one in samples if not 0 <= one["prepare_ms"] <= one["ms"] or not one["ms"]]
            if wrong:
                raise artifact.Refused(f"times that cannot be, of {step} at {name}: {wrong[0]}")
        # On an empty disk a page comes from the bucket, or the disk was not empty.
        for name in names:
            if not all(one["light"][0]["gets"] for one in size["rounds"] if one["topology"] == name):
                raise artifact.Refused(f"light reads at {name} asked the bucket for nothing")


def table(one: Size, link: float):
    size, delays = one.size, {place["name"]: place["delay"] for place in one.places}
    stored = ", ".join(f"{kind} {mib:,} MiB" for kind, mib in size["bucket_mib"].items())
    yield from ("", f"## Scale {size['scale']}: a database of {size['database_mib']:,} MiB", "",
                f"In the bucket: {stored}.", "",
                "| step | bucket | samples | median ms | worst ms | prepare ms | consume ms | requests | KiB | "
                "times local | round trips |", "|---|---|---|---|---|---|---|---|---|---|---|")
    for step in STEPS:
        for place in one.places:
            name, samples = place["name"], one.samples[place["name"], step]
            ms, prepare = one.middle(name, step), one.middle(name, step, "prepare_ms")
            consume = median(sample["ms"] - sample["prepare_ms"] for sample in samples)
            # Requests of a write are counted with what makes it visible.
            gets, kib = (one.middle(name, step, key) if key in samples[0] else None for key in ("gets", "kib"))
            bound = delays[name] and kib and kib / 1024 / (ms / 1000) > LINK_BOUND * link
            trips = one.trips(place, step)
            yield (f"| {step} | {name} | {len(samples)} | {ms:,.1f}{' link-bound' if bound else ''} | "
                   f"{max(sample['ms'] for sample in samples):,.1f} | {prepare:,.1f} | {consume:,.1f} | "
                   f"{'' if gets is None else f'{gets:,.0f}'} | {'' if kib is None else f'{kib:,.0f}'} | "
                   f"{one.times(name, step):.1f} | {'' if trips is None else f'{trips:.1f}'} |")


def asked(one: Size):
    scale = one.size["scale"]
    local_open, local_visible = one.middle("local", "open"), one.middle("local", "visible")
    far = max(one.places, key=lambda place: place["delay"])
    checks = [("local open, ms", f"{OPEN_MS}", f"{local_open:.1f}", local_open <= OPEN_MS),
              ("local visible, ms", f"{VISIBLE_MS}", f"{local_visible:.1f}", local_visible <= VISIBLE_MS)]
    if far["delay"]:
        for step, most in TIMES.items():
            times = one.times(far["name"], step)
            checks.append((f"{step} at {far['name']}, of local", f"{most} times", f"{times:.1f} times", times <= most))
        trips = one.trips(far, "light")
        if trips is not None:
            checks.append((f"light at {far['name']}, round trips", f"{TRIPS}", f"{trips:.1f}", trips <= TRIPS))
    return [f"| {scale} | {what} | at most {most} | {found} | {artifact.verdict(good)} |"
            for what, most, found, good in checks]


def lines(results: dict):
    sizes = [Size(size, results["topologies"]) for size in results["sizes"]]
    yield from (
        "Everything is in the bucket only, and the pageserver starts on an empty disk. `local` is a bucket that is a",
        "directory on the same disk, `s3-D` an S3 server behind a link that makes each request D ms slower. Medians.",
        "",
        "* open: from the command until the timeline can be read; prepare: until the process answers",
        f"* light: a connection and one random page; heavy: {results['heavy']:,} random pages, 64 in flight; prepare:",
        "  the server's time for the pages, by its own timer",
        "* write: COMMIT of a row on a compute; prepare: BEGIN and INSERT",
        "* visible: from the COMMIT's return until a page as of its LSN has the row; prepare: by its own timer, the",
        "  server's wait for the WAL", "",
        "Requests and KiB are reads from the bucket; of open, what a start asks it for; of visible, those of the write",
        "as well. Round trips are what the delay costs, in delays. The link itself, in Python on the same cores,",
        f"carries {results['link_mib_per_s']:,.0f} MiB/s; rows that take more than half of it are marked.", "",
        "An embedded columnar store on S3 publishes 613 to 1,004 times its local figures for the same steps.", "",
        "## Asked", "", "| scale | what | asked | measured | reached |", "|---|---|---|---|---|")
    for size in sizes:
        yield from asked(size)
    for size in sizes:
        yield from table(size, results["link_mib_per_s"])
    yield ""


def make():
    place = Path(sys.argv[1])
    found = artifact.read(place / "surface.json")
    check(found["results"])
    header = artifact.header("Open, fresh read, write, visible", f"`{WITH}make bench-surface`", {"surface": found},
                             f"* Postgres {found['results']['pg_major']}")
    artifact.report(place / "surface.md", [*header, *lines(found["results"])])


if __name__ == "__main__":
    artifact.refusing(make)
