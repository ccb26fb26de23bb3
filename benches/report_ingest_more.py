"""Makes ingest_more.md and ingest_more.json of the rounds that `run_ingest_more.sh` has left: values read while more
are written, several timelines at once, image layers, downloads; with what is asked beside each figure.

Figures of other machines are those that the first pageserver of this kind publishes with its own ingest benchmark.
"""

import argparse
import json
from pathlib import Path
from statistics import median

import artifact
import baseline
from report_ingest import by_case

WRITES = [("100", "Yes"), ("100", "No"), ("8192", "Yes"), ("8192", "No")]
TIMELINES = (1, 2, 5)
PAGES = ("random", "rows")

# Times the first pageserver with reads; shares of the disk; times one timeline, or a share of the disk.
TIMES_FIRST, IMAGE, TWO, AT_LIMIT = 4, 0.9, 1.6, 0.9
OF_DISK = {("8192", "No"): 0.75, ("8192", "Yes"): 0.5}
# The first pageserver's own benchmark with its reader, on a machine like that of our figures, but another day: MiB/s.
FIRST = {("100", "Yes"): 35, ("100", "No"): 92, ("8192", "Yes"): 77, ("8192", "No"): 233}
# Its results on other hardware, as its source publishes them: Buffered, Direct, DirectRw in MiB/s.
PUBLISHED = {
    ("100", "Sequential", "Yes"): ((98.9, 97.8, 99.1), (148.5, 139.9, 205.6)),
    ("100", "Random", "Yes"): ((59.2, 58.0, 59.1), (97.0, 98.9, 118.9)),
    ("100", "RandomReuse(1023)", "Yes"): ((106.0, 105.3, 107.3), (158.6, 159.2, 197.6)),
    ("100", "Sequential", "No"): ((245.5, 243.2, 247.0), (406.8, 397.7, 479.0)),
    ("8192", "Sequential", "Yes"): ((289.4, 287.7, 238.6), (330.1, 333.8, 468.4)),
    ("8192", "Sequential", "No"): ((755.5, 753.8, 477.8), (962.7, 905.8, 1024)),
}
MACHINES = ("im4gn.2xlarge", "AX102")
MODES = ("Buffered", "Direct", "DirectRw")
# What compresses better than this says little about real pages.
RATIO_MAX = 3
CORES = "cores: own, others"


class Row:
    """The runs of one case."""

    def __init__(self, runs: list[dict]):
        self.runs = runs
        self.rates = [run["mib_per_s"] for run in runs]
        self.rate, self.worst = median(self.rates), min(self.rates)

    def disk(self) -> float:
        """MiB/s of the disk, measured just before each run: the depth with the best median."""
        return max(median(run["device"][depth] for run in self.runs) for depth in self.runs[0]["device"])

    def of_disk(self) -> float:
        return self.rate / self.disk()

    def middle(self, *names) -> float:
        """The median of another figure."""
        found = self.runs
        for name in names:
            found = [one[name] for one in found]
        return median(found)

    def cores(self) -> str:
        """Processor time per second: of the benchmark with all its threads, and of everything else on the machine."""
        own = [run["processor"]["client_ms_per_mb"] * run["mib_per_s"] * 1.048576 / 1000 for run in self.runs]
        return f"{median(own):.1f}, {self.middle('processor', 'cores_busy_elsewhere'):.1f}"

    def stored(self) -> float:
        """Bytes of a layer, of those of its pages."""
        return self.middle("stored_bytes")


def write_of(size, delta, timelines, reads):
    return {"kind": "write", "bytes": int(size), "delta": delta, "timelines": timelines, "reads": reads}


def wanted():
    for size, delta in WRITES:
        yield write_of(size, delta, 1, True)
        yield from (write_of(size, delta, count, False) for count in TIMELINES)
    yield from ({"kind": kind, "pages": pages} for pages in PAGES for kind in ("image", "compress"))
    yield from ({"kind": "download"}, {"kind": "copy"})


class Found:
    """The rows of an artifact, by case."""

    def __init__(self, results):
        self.volume, self.rounds = results["volume_mib"], results["rounds"]
        self.rows = {key(row["case"]): Row(row["runs"]) for row in results["rows"] if row["runs"]}
        self.first = {tuple(case): rate for *case, rate in results.get("baseline", {}).get("rates", [])}
        self._check()

    def _check(self):
        few = [key(case) for case in wanted() if len(self.rows.get(key(case), Row([{"mib_per_s": 0}])).runs) < 3]
        if few:
            raise artifact.Refused(f"fewer than three runs of {'; '.join(few)}")
        if any(run["mib_per_s"] <= 0 for row in self.rows.values() for run in row.runs):
            raise artifact.Refused("a rate that cannot be")
        for case in WRITES:
            if min(run["read"]["per_s"] for run in self.write(*case, reads=True).runs) <= 0:
                raise artifact.Refused(f"nothing was read while values were written: {' '.join(case)}")
        volume = self.volume << 20
        if self.image("rows").stored() * RATIO_MAX < volume or self.image("random").stored() < volume:
            raise artifact.Refused("the pages do not compress as they should")

    def __getitem__(self, case) -> Row:
        return self.rows[key(case)]

    def write(self, size, delta, timelines=1, reads=False) -> Row:
        return self[write_of(size, delta, timelines, reads)]

    def image(self, pages) -> Row:
        return self[{"kind": "image", "pages": pages}]

    def compress(self, pages) -> Row:
        return self[{"kind": "compress", "pages": pages}]


def key(case: dict) -> str:
    return " ".join(f"{name}={case[name]}" for name in sorted(case))


def gather(target: Path) -> dict:
    """One artifact of all rounds: our own ones, and what another program did between them."""
    parts = {path.parent.name: artifact.read(path) for path in sorted(target.glob("*/ingest_more.json"))}
    if not parts:
        raise artifact.Refused(f"{target}: no rounds")
    first, *others = parts.values()
    rows = {key(row["case"]): row for row in first["results"]["rows"]}
    for other in others:
        if other["results"]["volume_mib"] != first["results"]["volume_mib"]:
            raise artifact.Refused("rounds of different sizes")
        for row in other["results"]["rows"]:
            rows.setdefault(key(row["case"]), {"case": row["case"], "runs": []})["runs"] += row["runs"]
    results = {**first["results"], "rows": list(rows.values())}
    theirs = baseline.joined(baseline.rounds(target, "baseline"))
    rates = [[size, delta, theirs["DirectRw", size, "Sequential", delta]] for size, delta in WRITES
             if ("DirectRw", size, "Sequential", delta) in theirs]
    if rates:
        results["baseline"] = {"version": (target / "rounds" / "baseline-version").read_text().strip() or "unknown",
                               "rates": rates}
    return {**first, "results": results,
            "parts": {f"rounds {name}": {part: one[part] for part in ("topology", "validity")}
                      for name, one in parts.items()}}


def label(size, delta):
    return f"{'100 B' if size == '100' else '8 KiB'}, {'with' if delta == 'Yes' else 'no'} delta"


def columns(*names):
    """The head of a table."""
    yield from ("", "| " + " | ".join(names) + " |", "|---" * len(names) + "|")


def asked(found: Found):
    yield from ("## Asked", *columns("what", "asked", "measured", "worst round", "reached"))
    for case in WRITES:
        row, first = found.write(*case, reads=True), found.first.get(case, FIRST[case])
        of = "in this run" if case in found.first else "of another day"
        yield line(f"{label(*case)}, while its last 32 keys are read: MiB/s ({TIMES_FIRST} times the first "
                   f"pageserver's {first:.0f} {of})", TIMES_FIRST * first, row.rate, row.worst, "{:.0f}")
    for case, share in OF_DISK.items():
        row = found.write(*case)
        yield line(f"{label(*case)}, nothing else: of the disk", share, row.of_disk(), row.worst / row.disk(), "{:.2f}")
    for pages in PAGES:
        row = found.image(pages)
        yield line(f"image layer, {pages}: of the disk", IMAGE, row.of_disk(), row.worst / row.disk(), "{:.2f}")
    for case in WRITES:
        one, two = found.write(*case), found.write(*case, timelines=2)
        times, share = two.rate / one.rate, two.of_disk()
        reached = artifact.verdict(times >= TWO or share >= AT_LIMIT)
        yield (f"| {label(*case)}, two timelines: times one, or of the disk | {TWO}, or {AT_LIMIT} | {times:.2f}, "
               f"{share:.2f} | {two.worst / one.rate:.2f}, {two.worst / two.disk():.2f} | {reached} |")


def line(what, least, measured, worst, form):
    figures = " | ".join(form.format(figure) for figure in (least, measured, worst))
    return f"| {what} | {figures} | {artifact.verdict(measured >= least)} |"


def reads(found: Found):
    yield from ("", "## Read while written", "",
                "The last 32 keys are read by one task, over and over, until the layer is complete, and every value is",
                "compared. MiB/s are those of the writer, in the median and in the worst round.")
    yield from columns("values", "MiB/s alone", "MiB/s with reads", "worst", "of alone", "reads/s", "p50 us", "p99 us",
                       "max us", CORES, "the first pageserver's MiB/s", "times")
    for case in WRITES:
        alone, row = found.write(*case), found.write(*case, reads=True)
        first = found.first.get(case, FIRST[case])
        figures = " | ".join(f"{row.middle('read', name):,.0f}" for name in ("per_s", "p50_us", "p99_us", "max_us"))
        yield (f"| {label(*case)} | {alone.rate:.0f} | {row.rate:.0f} | {row.worst:.0f} | "
               f"{row.rate / alone.rate:.2f} | {figures} | {row.cores()} | {first:.0f} | {row.rate / first:.1f}x |")


def timelines(found: Found):
    yield from ("", "## Timelines at once", "", f"Each takes in {found.volume} MiB; MiB/s are those of all together, "
                "cores the processor time", "per second: our own, and that of everything else on the machine.",
                *columns("values", "timelines", "MiB/s", "worst", "of the disk", "times one", CORES))
    for case in WRITES:
        for count in TIMELINES:
            row = found.write(*case, timelines=count)
            yield (f"| {label(*case)} | {count} | {row.rate:.0f} | {row.worst:.0f} | {row.of_disk():.2f} | "
                   f"{row.rate / found.write(*case).rate:.2f} | {row.cores()} |")


def layers(found: Found):
    yield from ("", "## Image layers, and layers fetched", "",
                f"{found.volume} MiB of pages of 8 KiB: random bytes, or rows that are partly alike. MiB/s are those",
                "of the pages, stored is what of them the layer takes. Compressing alone is zstd on one core, with the",
                "settings of the writer.",
                *columns("pages", "MiB/s", "worst", "of the disk", "stored", "compressing alone, MiB/s", CORES))
    for pages in PAGES:
        row, alone = found.image(pages), found.compress(pages)
        yield (f"| {pages} | {row.rate:.0f} | {row.worst:.0f} | {row.of_disk():.2f} | "
               f"{row.stored() / (found.volume << 20):.2f} | {alone.rate:.0f} | {row.cores()} |")
    yield from ("", "A layer of random pages from a bucket that is a directory, whose file the kernel has in memory: "
                "verified, written,", "synced and opened. The copy is of the same file, synced as well.",
                *columns("what", "MiB/s", "worst", "of the disk", CORES))
    for kind in ("download", "copy"):
        row = found[{"kind": kind}]
        yield f"| {kind} | {row.rate:.0f} | {row.worst:.0f} | {row.of_disk():.2f} | {row.cores()} |"


def disk(found: Found):
    yield from ("", "## The disk itself", "", f"{found.volume} MiB by direct writes of 1 MiB, just before each run of "
                "each case.", *columns("in flight", "MiB/s", "worst", "best"))
    runs = [run["device"] for row in found.rows.values() for run in row.runs]
    for depth in runs[0]:
        rates = [run[depth] for run in runs]
        number = depth.removeprefix("direct_depth_")
        yield f"| {number} | {median(rates):.0f} | {min(rates):.0f} | {max(rates):.0f} |"


def elsewhere(ours):
    """`ours` are the rows of `ingest.json`."""
    yield from ("", "## The first pageserver on other hardware", "",
                "**Not comparable**: it publishes these with its ingest benchmark, of an AWS im4gn.2xlarge and of a "
                "Hetzner AX102.", "Ours are of the run in [ingest.md](ingest.md), on the machine named there. MiB/s "
                "for Buffered, Direct, DirectRw.",
                *columns("values", "layout", "ours", *(f"{name} (other hardware)" for name in MACHINES)))
    for (size, layout, delta), machines in PUBLISHED.items():
        own = [ours[mode, size, layout, delta]["mib_per_s"] for mode in MODES]
        cells = " | ".join(", ".join(f"{rate:.0f}" for rate in rates) for rates in (own, *machines))
        yield f"| {label(size, delta)} | {layout} | {cells} |"
    yield ""


def make():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="target/more", type=Path, help="what run_ingest_more.sh has left")
    parser.add_argument("--ingest", default="benches/results/ingest.json", type=Path)
    parser.add_argument("--out", default="benches/results", type=Path)
    args = parser.parse_args()
    try:
        gathered = gather(args.target)
    except baseline.Ambiguous as ambiguous:
        raise artifact.Refused(str(ambiguous)) from ambiguous
    write(gathered, artifact.read(args.ingest), args.out)


def write(gathered, ingest, out: Path):
    found = Found(artifact.check(gathered)["results"])
    ours = by_case(ingest["results"]["ingest"])
    size = f"{found.volume} MiB a case"
    said = gathered["results"].get("baseline")
    more = [f"* the first pageserver: {said['version']}, in turn with ours in this run (A B B A)"] if said else []
    head = artifact.header("Write path, completed", "`make bench-ingest-more`", {**gathered["parts"], "ingest": ingest},
                           f"* {size}, {found.rounds} rounds, each in the reverse order of the one before", *more)
    body = [*asked(found), *reads(found), *timelines(found), *layers(found), *disk(found), *elsewhere(ours)]
    (out / "ingest_more.json").write_text(json.dumps(gathered, indent=1) + "\n")
    artifact.report(out / "ingest_more.md", [*head, *body])


if __name__ == "__main__":
    artifact.refusing(make)
