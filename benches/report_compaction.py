#!/usr/bin/env python3
"""Makes compaction.md and compaction.svg from compaction.json, with the contract's figure beside each."""

import math
import sys
from pathlib import Path

import artifact
from ingest_plot import Drawing

# The contract (docs/decisions/0023-compaction.md): by order of writes where they differ.
SEARCHED, RECORDS, MOST_L0, PAUSE_MS, GROWTH, BUSY_READS = 8, 64, 12, 100, 1.2, 1.3
AMPLIFICATION = {"uniform": 7, "append": 2.6}
SPACE = {"uniform": 1.5}
INGEST = 60
CURVES = (("read_searched_p99", "layers searched per page, p99"), ("read_records_p99", "records per page, p99"),
          ("read_p99_us", "read p99, us"), ("space", "stored / needed"))
JOBS = ("sort", "merge", "image", "fold", "trim")
COLORS = {True: "#3f7fbf", False: "#b03030"}


def value(sample, name):
    return sample["depth"][name] if name in sample["depth"] else sample[name]


def quarter(run, name, last: bool) -> float:
    samples = run["samples"]
    count = len(samples) // 4
    part = samples[-count:] if last else samples[:count]
    return sum(value(sample, name) for sample in part) / count


def growth(run, name) -> float:
    """The last quarter of a run against its first."""
    return quarter(run, name, True) / max(quarter(run, name, False), 1e-9)


def worst(run, name):
    return max(value(sample, name) for sample in run["samples"])


def amplification(on, off) -> float:
    """Bytes written to layers for each byte of values: what flushes wrote, which the run without compaction still has
    all of, and what jobs wrote."""
    flushed = (off["stored_mib"] - off["import_mib"]) / off["written_mib"]
    return flushed + on["job_bytes_per_byte"]


def judged(figure: str, reached: bool) -> str:
    return figure if reached else f"{figure} **missed**"


def busy_reads(ratio: float) -> str:
    # Where nothing was due any more, no page was read meanwhile.
    return judged(f"{ratio:.2f}", ratio <= BUSY_READS) if ratio > 0 else "nothing was due"


def contract(on, off):
    order = on["order"]
    amplified, space = amplification(on, off), sum(sample["space"] for sample in on["samples"]) / len(on["samples"])
    searched, records = worst(on, "searched_p99"), worst(on, "records_p99")
    busy = on["settling_read_p99_us"] / max(on["idle_read_p99_us"], 1)
    pause = on["pause_p99_us"] / 1000
    rate = on["ingest_mib_per_s"]
    yield (f"| {order} | {judged(str(searched), searched <= SEARCHED)} | {judged(str(records), records <= RECORDS)} | "
           f"{judged(str(on['most_l0']), on['most_l0'] <= MOST_L0)} | "
           f"{judged(f'{amplified:.1f}', amplified <= AMPLIFICATION.get(order, 6))} | "
           f"{judged(f'{space:.2f}', space <= SPACE.get(order, 1.3))} | "
           f"{judged(f'{pause:.1f}', pause <= PAUSE_MS)} | {judged(f'{rate:.0f}', rate >= INGEST)} | "
           f"{busy_reads(busy)} | {on['settled_s']:.1f} |")


def growths(on, off):
    names = ("read_p50_us", "read_p99_us", "rss_mib")
    cells = [judged(f"{growth(on, name):.2f}", growth(on, name) <= GROWTH) for name in names]
    yield f"| {on['order']} | {' | '.join(cells)} | {' | '.join(f'{growth(off, name):.2f}' for name in names)} |"


def beside(on, off):
    last_on, last_off = on["samples"][-1], off["samples"][-1]

    def pair(name, digits=0):
        return f"{value(last_on, name):,.{digits}f} / {value(last_off, name):,.{digits}f}"

    yield (f"| {on['order']} | {pair('searched_p99')} | {pair('records_p99')} | {pair('read_p50_us')} | "
           f"{pair('read_p99_us')} | {pair('layers')} | {pair('stored_mib')} | {pair('rss_mib')} | "
           f"{on['ingest_mib_per_s']:.0f} / {off['ingest_mib_per_s']:.0f} |")


def jobs(on):
    done = on["jobs"]
    cells = [f"{done[kind]['jobs']}, {done[kind]['bytes_out'] / (1 << 20) / on['written_mib']:.2f}" for kind in JOBS]
    yield f"| {on['order']} | {' | '.join(cells)} |"


def slowest(on):
    """On what the slowest hundredth of reads spent its time, in ms on average: while work is due, and at rest."""
    for when, name in (("while work is due", "settling_slowest_reads"), ("at rest", "idle_slowest_reads")):
        if found := on.get(name):
            parts = (found[part] / 1000 for part in ("took_us", "running_us", "queued_us", "else_us"))
            yield f"| {on['order']} | {when} | {found['reads']} | {' | '.join(f'{part:.2f}' for part in parts)} |"


def tables(pairs):
    first = pairs[0][0]
    rate = first.get("rate_mib_per_s")
    pace = f"{rate} MiB of them in a second," if rate else "as fast as they go in,"
    yield from (
        f"Each run writes {first['written_mib']:,} MiB of values to a database of {first['pages']:,} pages, {pace} "
        "while one reader", "reads pages one after the other; every page read is checked. Layers and cells "
        "are a sixteenth of their usual size, and", f"{first['kept_mib']} MiB of WAL are kept. Of 16 samples the worst "
        "counts; space is their mean.", "", "## The contract", "",
        "| writes | layers searched per page, p99 (8) | records applied, p99 (64) | most L0 (12) | write amplification "
        "(append 2.6, uniform 7, others 6) | stored / needed (uniform 1.5, others 1.3) | ingest pause p99, ms (100) | "
        "ingest MiB/s (60) | read p99 while jobs run, of that when idle (1.3) | all due work done after s (60) |",
        "|---|---|---|---|---|---|---|---|---|---|")
    for on, off in pairs:
        yield from contract(on, off)
    yield from ("", f"## The last quarter against the first (at most {GROWTH})", "",
                "| writes | read p50 | read p99 | RSS | without compaction: p50 | p99 | RSS |",
                "|---|---|---|---|---|---|---|")
    for on, off in pairs:
        yield from growths(on, off)
    yield from ("", "## At the end, with / without compaction", "",
                "| writes | layers searched p99 | records p99 | read p50 us | read p99 us | layers | stored MiB | "
                "RSS MiB | ingest MiB/s |", "|---|---|---|---|---|---|---|---|---|")
    for on, off in pairs:
        yield from beside(on, off)
    yield from ("", "## Jobs: number, bytes written for each byte of values", "",
                f"| writes | {' | '.join(JOBS)} |", "|---" * (len(JOBS) + 1) + "|")
    for on, _ in pairs:
        yield from jobs(on)
    found = [line for on, _ in pairs for line in slowest(on)]
    if found:
        yield from ("", "## The slowest hundredth of reads, with compaction", "",
                    "Means. What is neither on a processor nor waits for one waits for the disk or for a lock.", "",
                    "| writes | when | reads | took ms | on a processor | waits for one | else |", "|---" * 7 + "|",
                    *found)
    yield ""


def plot(pairs):
    cell, high, left, top = 330, 170, 60, 50
    drawing = Drawing(left + cell * len(CURVES), top + (high + 50) * len(pairs))
    drawing.text(left, 20, "With compaction (blue) and without (red), by MiB written; heights are logarithmic",
                 extra='font-size="15"')
    for row, pair in enumerate(pairs):
        for column, (name, title) in enumerate(CURVES):
            curve(drawing, (left + column * cell, top + row * (high + 50)), (cell - 70, high), pair, (name, title))
    return drawing.finish()


def curve(drawing, corner, size, pair, what):
    (x0, y0), (width, height), (name, title) = corner, size, what
    lines = {run["compaction"]: [max(value(sample, name), 0.5) for sample in run["samples"]] for run in pair}
    every = [one for line in lines.values() for one in line]
    low, high = math.log2(min(every)), math.log2(max(every) * 1.1)

    def y_of(one):
        return y0 + height - (math.log2(one) - low) / max(high - low, 0.1) * (height - 30)

    drawing.text(x0, y0 + 8, f"{pair[0]['order']}: {title}", extra='font-size="11"')
    for mark in sorted({min(every), max(every)}):
        y = y_of(mark)
        drawing.line(x0, x0 + width, y, "#e5e5e5")
        drawing.text(x0 - 4, y + 4, f"{mark:,.1f}".removesuffix(".0"), "end", 'font-size="10"')
    for on, line in lines.items():
        step = width / (len(line) - 1)
        drawing.polyline(((x0 + at * step, y_of(one)) for at, one in enumerate(line)), COLORS[on], 1.5)


def make():
    results = Path(sys.argv[1])
    found = artifact.read(results / "compaction.json")
    runs = found["results"]
    pairs = list(zip(runs[::2], runs[1::2]))
    rate = runs[0].get("rate_mib_per_s")
    title = f"Compaction while {rate} MiB/s come in" if rate else "Compaction"
    lines = [*artifact.header(title, "`make bench-compaction`", {"compaction": found}), *tables(pairs)]
    artifact.report(results / "compaction.md", [*lines[:-1], "", "![curves](compaction.svg)", ""])
    (results / "compaction.svg").write_text(plot(pairs))


if __name__ == "__main__":
    artifact.refusing(make)
