"""Turns the results of one `make bench-ingest` run into a table (Markdown), a plot (SVG) and raw figures (JSON)."""

import argparse
import json
from pathlib import Path

import artifact
import baseline
from ingest_plot import plot

MODES = ["Buffered", "Direct", "DirectRw"]
CASES = [
    ("100", "Records", "Yes"),
    ("100", "Records", "No"),
    ("100", "Sequential", "Yes"),
    ("100", "Random", "Yes"),
    ("100", "RandomReuse(1023)", "Yes"),
    ("100", "Sequential", "No"),
    ("8192", "Sequential", "Yes"),
    ("8192", "Sequential", "No"),
]
# Fractions of the device's limit.
ASKED = {("DirectRw", "8192", "Sequential", "No"): 0.75, ("DirectRw", "8192", "Sequential", "Yes"): 0.5}
# Nanoseconds.
ASKED_CPU = {"No": 150, "Yes": 300}


def parts(target: Path) -> dict[str, dict]:
    """The artifacts that the benches of one run have left."""
    names = ("device_limit_before", "bench_ingest", "device_limit_after", "bench_layer_read")
    return {name: artifact.read(target / "tmp" / f"{name}.json") for name in names}


def gather(target: Path) -> dict:
    """Everything that the report needs, as one artifact."""
    found = parts(target)
    ours, theirs = baseline.rounds(target, "ours"), baseline.rounds(target, "baseline")
    cpu = {baseline.parse(one["id"])[0]: one["cpu_ns_per_value"] for one in found["bench_ingest"]["results"]}
    rates = baseline.joined(ours)
    lacks = [" ".join(case) for case in wanted() if case not in rates or case not in cpu]
    if lacks:
        raise artifact.Refused(f"these cases were not run: {'; '.join(lacks)}")
    before, after = (found[f"device_limit_{when}"]["results"] for when in ("before", "after"))
    results = {
        "device_limit": {"before": before, "after": after}, "layer_read": found["bench_layer_read"]["results"],
        "ingest": rows(rates, cpu), "rounds": [rows(one, cpu) for one in ours],
    }
    if theirs:
        rounds = target / "rounds"
        results["baseline"] = {
            "version": (rounds / "baseline-version").read_text().strip() or "unknown",
            "load_before": [float(line) for line in (rounds / "baseline-load").read_text().split()],
            "rounds": [rows(one, {}) for one in theirs], "ingest": rows(baseline.joined(theirs), {}),
        }
    return {**found["bench_ingest"], "bench": "ingest", "results": results,
            "parts": {name: {key: one[key] for key in ("topology", "validity")} for name, one in found.items()}}


def wanted():
    return [(mode, *case) for case in CASES for mode in MODES]


def rows(rates, cpu):
    names = ("mode", "bytes", "layout", "delta")
    return [{**dict(zip(names, case)), "mib_per_s": rates[case], "cpu_ns_per_value": cpu.get(case)}
            for case in wanted() if case in rates]


def by_case(rows):
    return {(row["mode"], row["bytes"], row["layout"], row["delta"]): row for row in rows}


def limit_of(results):
    """The disk's throughput: the better of the runs before and after."""
    return max(results["device_limit"][when]["device_limit"] for when in ("before", "after"))


def ingest(results):
    limit, ours = limit_of(results), by_case(results["ingest"])
    other = by_case(results["baseline"]["ingest"]) if "baseline" in results else {}
    yield from ("MiB/s of values (medians), the share of the device's limit", f"({limit:.0f} MiB/s, the better of the "
                "runs before and after), and CPU time per value (user and system, all threads).",
                "`Records` are values shaped like WAL: changes of 100 bytes in chains of hot and cold pages, one image",
                "in thirty. All other values are whole images. Asked: at most 150 ns of CPU for a value of 100 bytes",
                "without delta, 300 with; of 8 KiB values by DirectRw 0.75 of the limit without delta, 0.5 with.", "")
    if other:
        yield from (f"Baseline: {results['baseline']['version']}, in turn with ours in this run (A B B A), load "
                    f"average before its rounds {', '.join(map(str, results['baseline']['load_before']))}.", "")
    extra = " baseline MiB/s | ratio |" if other else ""
    yield f"| bytes | layout | delta | mode | MiB/s | of limit | CPU ns/value | reached |{extra}"
    yield "|---" * (8 + 2 * bool(other)) + "|"
    for (mode, *case), row in ours.items():
        share, cpu = row["mib_per_s"] / limit, row["cpu_ns_per_value"]
        line = f"| {' | '.join(case)} | {mode} | {row['mib_per_s']:.0f} | {share:.2f} | {cpu:.0f} | "
        line += f"{reached((mode, *case), share, cpu)} |"
        if other:
            theirs = other.get((mode, *case))
            line += (f" {theirs['mib_per_s']:.0f} | {row['mib_per_s'] / theirs['mib_per_s']:.1f}x |" if theirs
                     else " | |")
        yield line


def reached(case, share, cpu):
    """Whether a case reached its target; empty where there is none."""
    if case[2] == "Records":
        return ""
    if case[1] == "100":
        return artifact.verdict(cpu <= ASKED_CPU[case[3]])
    return artifact.verdict(share >= ASKED[case]) if case in ASKED else ""


def disk(results):
    yield from ("", "## The disk itself", "", "| what | MiB/s before | MiB/s after |", "|---|---|---|")
    before, after = results["device_limit"]["before"], results["device_limit"]["after"]
    yield from (f"| {name.replace('_', ' ')} | {rate:.0f} | {after[name]:.0f} |" for name, rate in before.items())


def reads(results):
    yield from ("", "## Reads of a freshly written layer, warm index, direct I/O", "",
                "Points and chains are of a layer of long chains, ranges of one of `Records`. Asked: one data read for "
                "a point,", "a sealed chain at most three times a sorted one.", "",
                "| what | sealed us | data reads | sorted us | data reads | times |", "|---|---|---|---|---|---|")
    found = results["layer_read"]
    for name in [name.removesuffix(" sealed") for name in found if name.endswith(" sealed")]:
        sealed, by_key = found[f"{name} sealed"], found[f"{name} sorted"]
        yield (f"| {name} | {sealed['us']:.1f} | {sealed['data_reads']:.2f} | {by_key['us']:.1f} | "
               f"{by_key['data_reads']:.2f} | {sealed['us'] / by_key['us']:.2f} |")
    yield ""


def make():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="target", type=Path)
    parser.add_argument("--out", default="benches/results", type=Path)
    args = parser.parse_args()
    try:
        gathered = gather(args.target)
    except baseline.Ambiguous as ambiguous:
        raise artifact.Refused(str(ambiguous)) from ambiguous
    write(gathered, args.out)


def write(gathered, out: Path):
    results = artifact.check(gathered)["results"]
    head = artifact.header("Write path", "`make bench-ingest`", gathered["parts"])
    (out / "ingest.json").write_text(json.dumps(gathered, indent=1) + "\n")
    (out / "ingest.svg").write_text(plot(by_case(results["ingest"]), limit_of(results), gathered["topology"],
                                         by_case(results.get("baseline", {}).get("ingest", []))))
    artifact.report(out / "ingest.md", [*head, *ingest(results), *disk(results), *reads(results)])


if __name__ == "__main__":
    artifact.refusing(make)
