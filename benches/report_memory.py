#!/usr/bin/env python3
"""Makes memory.md and memory.svg from memory.json, with what is asked beside each figure."""

import os
import sys
from pathlib import Path
from statistics import median

import artifact
from ingest_plot import Drawing

# What no metric accounts for, of the memory in use; idle, beyond the budgets, for each layer, in KiB; loaded, of the
# budgets; the last step's rate, of the first one's; a recovery, of the time that taking in the same WAL takes.
UNEXPLAINED, LAYER_KIB, LOADED, STEADY, RECOVERY = 0.15, 2, 1.25, 0.85, 2
# A kill counts with an open layer that is at least this full.
FULL = 0.5
MIB = 1 << 20
COLORS = ("#3f7fbf", "#d9822b", "#4a9a5a", "#b03030")
WITH = f"BENCH_MEMORY_ARGS='{os.environ['BENCH_MEMORY_ARGS']}' " if "BENCH_MEMORY_ARGS" in os.environ else ""


def unexplained(sample) -> float:
    """The part of the memory in use that is neither the program itself, nor counted by a metric. What the allocator
    keeps is counted by one."""
    known = [sample["program_mib"], *sample["used_mib"].values(), kept(sample)]
    return 1 - sum(one or 0 for one in known) / sample["rss_mib"]


def kept(sample) -> float:
    """MiB that the allocator has in memory beyond what it was asked for."""
    return sample["allocator_mib"]["resident"] - sample["allocator_mib"]["allocated"]


def told_steps(found, size):
    """For each amount of WAL that is told about, the steps up to there."""
    for wal in found["told_wal_mib"]:
        count = -(-wal // found["step_mib"])
        yield f"intake of {wal:,} MiB, peak", size["steps"][:count]


def moments(found, size):
    """Each moment that is told about, with its sample and the most memory at that time."""
    half = len(size["samples"]) // 2
    for sample in size["samples"][:half]:
        yield sample["what"], sample, sample["rss_mib"]
    for what, steps in told_steps(found, size):
        highest = max(steps, key=lambda step: step["peak_mib"])
        yield what, highest["sample"], highest["peak_mib"]
    for sample in size["samples"][half:]:
        yield sample["what"], sample, sample["rss_mib"]


def budget_mib(found) -> float:
    """What the caches may take."""
    return found["limits"]["page_cache_size"] * 8192 / MIB + found["limits"]["block_cache_memory"] / MIB


def recovery_ratios(size) -> list[float]:
    """The time of each recovery, of what taking in its WAL took at the usual rate."""
    rate = median(step["mib_per_s"] for step in size["steps"])
    return [kill["seconds"] / (kill["wal_mib"] / rate) for kill in size["kills"]]


def asked(found, size):
    budget, database = budget_mib(found), f"{size['database_mib']:,}"
    every = [sample for _, sample, _ in moments(found, size)]
    worst = max((unexplained(sample) for sample in every), key=abs)
    idle = [sample for sample in size["samples"] if sample["what"].startswith("idle")]
    over = max(sample["rss_mib"] / (budget + sample["layers"] * LAYER_KIB / 1024) for sample in idle)
    loaded = max(sample["rss_mib"] for sample in size["samples"] if sample not in idle) / budget
    steady = size["steps"][-1]["mib_per_s"] / size["steps"][0]["mib_per_s"]
    ratios = recovery_ratios(size)
    checks = (
        (f"memory that no metric accounts for, at worst (at most {UNEXPLAINED:.0%})", f"{worst:.0%}",
         abs(worst) <= UNEXPLAINED),
        (f"idle: of the budgets and {LAYER_KIB} KiB a layer (at most 1)", f"{over:.2f}", over <= 1),
        (f"loaded: of the budgets (at most {LOADED})", f"{loaded:.2f}", loaded <= LOADED),
        (f"rate of the last step, of the first (at least {STEADY})", f"{steady:.2f}", steady >= STEADY),
        (f"recovery, of the intake of the same WAL: median (at most {RECOVERY})", f"{median(ratios):.2f}",
         median(ratios) <= RECOVERY),
        (f"recovery, of the intake of the same WAL: slowest (at most {RECOVERY})", f"{max(ratios):.2f}",
         max(ratios) <= RECOVERY),
    )
    return [f"| {database} | {what} | {value} | {artifact.verdict(reached)} |" for what, value, reached in checks]


def memory(found):
    uses = list(found["sizes"][0]["samples"][0]["used_mib"])
    names = " | ".join(use.replace("_", " ") for use in uses)
    yield from (f"| database MiB | when | layers | most MiB | sampled MiB | program | {names} | "
                "unexplained | allocated | kept |", "|---|---|---|---|---|---|" + "---|" * (len(uses) + 3))
    for size in found["sizes"]:
        for what, sample, most in moments(found, size):
            used = " | ".join(cell(sample["used_mib"][use]) for use in uses)
            yield (f"| {size['database_mib']:,} | {what} | {sample['layers']} | {most:.0f} | {sample['rss_mib']:.0f} | "
                   f"{sample['program_mib']:.0f} | {used} | {unexplained(sample):.0%} | "
                   f"{sample['allocator_mib']['allocated']:.0f} | {kept(sample):.0f} |")
    yield from ("", "Allocated is what the allocator was asked for, kept what it has in memory besides.")
    missing = [use.replace("_", " ") for use in uses if found["sizes"][0]["samples"][0]["used_mib"][use] is None]
    if missing:
        yield from ("", f"No metric has: {', '.join(missing)}. What these take counts as unexplained.")


def cell(value) -> str:
    return "no metric" if value is None else f"{value:.1f}"


def intake(found):
    yield from ("| database MiB | step | WAL MiB | MiB/s | slowed s | peak MiB | layers | stored MiB |",
                "|---|---|---|---|---|---|---|---|")
    for size in found["sizes"]:
        for number, step in enumerate(size["steps"], 1):
            yield (f"| {size['database_mib']:,} | {number} | {step['wal_mib']:,} | {step['mib_per_s']:.0f} | "
                   f"{step['slowed_s']:.1f} | {step['peak_mib']:.0f} | {step['layers']} | {step['stored_mib']:,} |")


def store(found):
    yield from ("| database MiB | stored then MiB | of the database | WAL MiB | stored at the end MiB | more, of the "
                "WAL |", "|---|---|---|---|---|---|")
    for size in found["sizes"]:
        wal, more = sum(step["wal_mib"] for step in size["steps"]), size["stored_mib"] - size["imported_mib"]
        yield (f"| {size['database_mib']:,} | {size['imported_mib']:,} | "
               f"{size['imported_mib'] / size['database_mib']:.2f} | {wal:,} | {size['stored_mib']:,} | "
               f"{more / wal:.2f} |")


def recovery(found):
    yield from ("| database MiB | open layer MiB | WAL to take in again MiB | up s | s | of its intake | slowed s | "
                "peak MiB |", "|---|---|---|---|---|---|---|---|")
    for size in found["sizes"]:
        for kill, ratio in zip(size["kills"], recovery_ratios(size)):
            yield (f"| {size['database_mib']:,} | {kill['open_mib']:.0f} | {kill['wal_mib']:.0f} | "
                   f"{kill['up_s']:.2f} | {kill['seconds']:.2f} | {ratio:.2f} | {kill['slowed_s']:.1f} | "
                   f"{kill['peak_mib']:.0f} |")


def lines(found):
    limits = found["limits"]
    yield from (
        f"The budgets are `page_cache_size` and `block_cache_memory`, together {budget_mib(found):.0f} MiB; compaction",
        f"may take twice {limits['compaction_memory'] // MIB} MiB more while it works, an in-memory layer has up to "
        f"{limits['checkpoint_distance'] // MIB} MiB of values, and of all that are not written out yet",
        f"{limits.get('ephemeral_memory', 0) // MIB} MiB may be in memory.",
        f"The pageserver may use {found['disk_budget_mib']:,} MiB of local disk. It takes in "
        f"{found['step_mib']:,} MiB of WAL at a time, which were",
        f"written while it was stopped. Loaded is after {found['reads']:,} reads of random pages.",
        "", "## Asked", "", "| database MiB | what | measured | reached |", "|---|---|---|---|")
    for size in found["sizes"]:
        yield from asked(found, size)
    yield from ("", "## Memory", "", *memory(found), "", "## Intake", "",
                "Slowed is while it waits for compaction, or for room on the disk.", "", *intake(found), "",
                "![curve](memory.svg)", "", "## The store", "",
                "Once nothing waits for compaction, all layers that the bucket has:", "", *store(found), "",
                "## Recovery", "",
                "Killed with an open layer that is nearly full, whose WAL has to come again; from the command to",
                "where the pageserver was, beside what that WAL takes at the median rate of all steps, and the most",
                "memory until then:", "", *recovery(found), "")


def check(found):
    """Refuses what proves nothing about growth or recovery."""
    for size in found["sizes"]:
        if len(size["steps"]) < 2:
            raise artifact.Refused("one step of WAL shows no growth")
        if any(one["mib_per_s"] <= 0 or one["wal_mib"] < found["step_mib"] for one in size["steps"]):
            raise artifact.Refused("a step of WAL was not taken in")
        full = FULL * found["limits"]["checkpoint_distance"] / MIB
        if not size["kills"] or any(kill["open_mib"] < full or kill["wal_mib"] <= 0 for kill in size["kills"]):
            raise artifact.Refused("no kill with an open layer that was nearly full")


def panel(drawing, left, found, name, title):
    top, width, height = 70, 380, 220
    most_steps = max(len(size["steps"]) for size in found["sizes"])
    highest = max(step[name] for size in found["sizes"] for step in size["steps"]) * 1.05
    drawing.text(left, top - 12, title)
    for share in range(5):
        y = top + height * (1 - share / 4)
        drawing.line(left, left + width, y, "#e5e5e5")
        drawing.text(left - 6, y + 4, f"{highest * share / 4:,.0f}", "end")
    for number in range(most_steps):
        x = left + width * number / max(most_steps - 1, 1)
        drawing.text(x, top + height + 18, f"{(number + 1) * found['step_mib'] / 1024:g}", "middle")
    for size, color in zip(found["sizes"], COLORS):
        drawing.polyline(((left + width * number / max(most_steps - 1, 1), top + height * (1 - step[name] / highest))
                          for number, step in enumerate(size["steps"])), color)


def plot(found):
    drawing = Drawing(960, 340)
    drawing.text(60, 20, "By GiB of WAL taken in", extra='font-size="15"')
    panel(drawing, 60, found, "peak_mib", "Most memory, MiB")
    panel(drawing, 540, found, "mib_per_s", "WAL taken in, MiB/s")
    for number, (size, color) in enumerate(zip(found["sizes"], COLORS)):
        drawing.box(60 + number * 170, 28, 12, 12, color)
        drawing.text(78 + number * 170, 38, f"database of {size['database_mib']:,} MiB")
    return drawing.finish()


def make():
    results = Path(sys.argv[1])
    read = artifact.read(results / "memory.json")
    found = read["results"]
    check(found)
    header = artifact.header("Memory, growth, recovery", f"`{WITH}make bench-memory`", {"memory": read},
                             f"* Postgres {found['pg_major']}")
    artifact.report(results / "memory.md", [*header, *lines(found)])
    (results / "memory.svg").write_text(plot(found))


if __name__ == "__main__":
    artifact.refusing(make)
