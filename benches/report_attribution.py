#!/usr/bin/env python3
"""Makes attribution.md from attribution.json: on what the write path spends its time, with what is asked.

A run whose stages do not account for the time that their tasks took is refused.
"""

import sys
from pathlib import Path
from statistics import median

import artifact

# All stages that the server tells of, by the task whose time they are.
STAGES = {
    "receive": ["wait_for_server", "receive", "wait_for_decoder"],
    "decode": ["wait_for_wal", "decode", "wait_for_ingest"],
    "ingest": ["wait_for_records", "metadata", "serialize", "wait_for_room", "writer_lock", "wait_for_seal", "freeze",
               "wait_for_buffer", "append", "index_insert"],
    "seal": ["wait_for_turn", "sort", "chain_moves", "index_write", "fsync", "publish"],
    "upload": ["upload", "index_part", "confirm", "tidy"],
}
# Tasks that run all the time; the others begin and end.
STREAMING = ("receive", "decode", "ingest")
# A task waits for the server or for another task: no work, whoever keeps it waiting has that.
IDLE = ("wait_for_server", "wait_for_decoder", "wait_for_wal", "wait_for_ingest", "wait_for_records")
# The intake waits for the disk, or for the bucket where the disk is full until it has something.
DISK = ("wait_for_room", "wait_for_seal", "wait_for_buffer")
# Waiting for the disk, of the intake's time; the intake with the bucket far away, of that without a bucket.
WAITING, FAR = 0.10, 0.95
# The stages of a task account for this much of its time.
WHOLE = (0.95, 1.05)
# Faster uploads than this share of the link's own rate say more of the link than of the server.
OF_LINK = 0.5


def sums(run) -> dict[str, tuple[float, float]]:
    """For each task that ran, the seconds of its stages and those that it took."""
    both = {task: (sum(run["stages"][stage] for stage in stages), run["walls"][task])
            for task, stages in STAGES.items()}
    return {task: pair for task, pair in both.items() if any(pair)}


def check(found):
    """Refuses results whose stages are not all known, or do not account for the time of their tasks."""
    known = {stage for stages in STAGES.values() for stage in stages}
    for place in found["topologies"]:
        for run in place["rounds"]:
            if set(run["stages"]) != known:
                raise artifact.Refused(f"stages that the report does not know, or misses: {known ^ set(run['stages'])}")
            missing = ({"seal", *STREAMING} | ({"upload"} if place["delay_ms"] is not None else set())) - set(sums(run))
            if missing:
                raise artifact.Refused(f"{title(place)}: nothing was measured of {', '.join(sorted(missing))}")
            for task, (seconds, wall) in sums(run).items():
                if not WHOLE[0] * wall <= seconds <= WHOLE[1] * wall:
                    raise artifact.Refused(f"{title(place)}: the stages of {task} took {seconds:.3f} s, the task "
                                           f"{wall:.3f} s")


def title(place) -> str:
    return "local disk" if place["delay_ms"] is None else f"S3, {place['delay_ms']:g} ms"


def middle(place) -> dict:
    """The run with the median rate."""
    return sorted(place["rounds"], key=lambda run: run["mib_per_s"])[len(place["rounds"]) // 2]


def table(run):
    """All stages of a run, task by task, with their sum."""
    work = sum(seconds for stage, seconds in run["stages"].items() if stage not in IDLE)
    work += sum(run["compaction"].values())
    yield "| stage | task | s | % of its task's time | % of all work | ns a record |"
    yield "|---|---|---|---|---|---|"

    def row(name, task, seconds, wall, idle=False):
        of_work = "" if idle else f"{seconds / work:.1%}"
        each = "" if idle else f"{seconds * 1e9 / run['records']:,.0f}"
        return f"| {name} | {task} | {seconds:.3f} | {seconds / wall:.1%} | {of_work} | {each} |"

    for task, (total, wall) in sums(run).items():
        for stage in STAGES[task]:
            yield row(stage.replace("_", " "), task, run["stages"][stage], wall, stage in IDLE)
        yield f"| *together* | {task} | {total:.3f} of {wall:.3f} | {total / wall:.1%} | | |"
    compaction = sum(run["compaction"].values())
    for job, seconds in run["compaction"].items():
        if seconds:
            yield row(job, "compaction", seconds, compaction)
    yield f"| *processor time* | all | {run['cpu_s']:.3f} | | | {run['cpu_s'] * 1e9 / run['records']:,.0f} |"


def waiting(place) -> float:
    """The most, of all rounds, of the intake's time that it waited for the disk."""
    return max(sum(run["stages"][stage] for stage in DISK) / run["intake_s"] for run in place["rounds"])


def asked(places):
    rates = {place["delay_ms"]: median(run["mib_per_s"] for run in place["rounds"]) for place in places}
    yield "| what | where | asked | measured | reached |"
    yield "|---|---|---|---|---|"
    for place in places:
        share = waiting(place)
        yield (f"| the intake waits for disk or bucket, worst round | {title(place)} | at most {WAITING:.0%} | "
               f"{share:.1%} | {artifact.verdict(share <= WAITING)} |")
    for place in places:
        if place["delay_ms"] is not None:
            ratio = rates[place["delay_ms"]] / rates[None]
            far = place["delay_ms"] == max(delay for delay in rates if delay is not None)
            reached = artifact.verdict(ratio >= FAR) if far else ""
            yield (f"| intake, of that on the local disk, medians | {title(place)} | {f'at least {FAR}' if far else ''}"
                   f" | {ratio:.2f} | {reached} |")


def rounds(places):
    yield "| where | MiB/s | worst | all records there, s | durable on disk, s | safe in the bucket, s |"
    yield "|---|---|---|---|---|---|"
    for place in places:
        run, worst = middle(place), min(run["mib_per_s"] for run in place["rounds"])
        safe = "" if place["delay_ms"] is None else f"{run['uploaded_s']:.2f}"
        yield (f"| {title(place)} | {run['mib_per_s']:.0f} | {worst:.0f} | {run['intake_s']:.2f} | "
               f"{run['durable_s']:.2f} | {safe} |")


def lines(found):
    places, link = found["topologies"], found["link_mib_per_s"]
    count = len(places[0]["rounds"])
    yield from (f"{found['wal_mib']:,.0f} MiB of WAL that pgbench has written at scale {found['scale']}, with full",
                f"pages, taken in {count} times on each store. The tables are of the run with the median rate. Stages",
                "of one task follow each other; tasks run at the same time. Receive, decode and ingest are looked at",
                "from the first WAL to the last record, seal and upload from the start of the process until all is",
                "safe. Waiting for the server or another task is no work. Nanoseconds a record are of the clock and",
                "include what a stage waits; the last row says how much processor time all took. The rate is of the",
                "WAL until all of it is durable on the local disk.", "",
                f"The link to the bucket forwards {link:,.0f} MiB/s by itself.", "",
                "## Asked", "", *asked(places), "", "## Rates", "", *rounds(places))
    for place in places:
        run = middle(place)
        yield from ("", f"## {title(place)}", "", *table(run))
        if place["delay_ms"] is not None:
            rate = run["uploaded_mib"] / run["stages"]["upload"]
            near = ", **more than half of what the link does**" if rate > OF_LINK * link else ""
            yield from ("", f"{run['uploaded_mib']:,.0f} MiB of layers were uploaded, at {rate:,.0f} MiB/s{near}.")
    yield ""


def make():
    results = Path(sys.argv[1])
    found = artifact.read(results / "attribution.json")
    check(found["results"])
    header = artifact.header("Where the time of the write path goes", "`make bench-attribution`",
                             {"attribution": found})
    artifact.report(results / "attribution.md", [*header, *lines(found["results"])])


if __name__ == "__main__":
    artifact.refusing(make)
