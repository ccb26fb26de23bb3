"""Turns the results of one `make bench-ingest` run into a table (Markdown), a plot (SVG) and raw figures (JSON)."""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess

VOLUME_MIB = 128
MODES = ["Buffered", "Direct", "DirectRw"]
CASES = [
    ("100", "Sequential", "Yes"),
    ("100", "Random", "Yes"),
    ("100", "RandomReuse(1023)", "Yes"),
    ("100", "Sequential", "No"),
    ("8192", "Sequential", "Yes"),
    ("8192", "Sequential", "No"),
]
# Medians in MiB/s of the first pageserver's benchmark on a machine of this kind, modes in the order above.
FIRST = {
    CASES[0]: (87, 80, 59),
    CASES[1]: (46, 43, 38),
    CASES[2]: (86, 87, 64),
    CASES[3]: (231, 201, 161),
    CASES[4]: (174, 206, 111),
    CASES[5]: (563, 565, 277),
}
COLORS = {"Buffered": "#7a8ca3", "Direct": "#3f7fbf", "DirectRw": "#d9822b"}


def parse_id(text):
    fields = dict(re.findall(r"(\w+)=(\S+)", text))
    return fields["io_mode"], (fields["key_size_bytes"], fields["key_layout"], fields["write_delta"])


def criterion_medians(target):
    """MiB/s by (mode, case), from criterion's own files."""
    found = {}
    for path in pathlib.Path(target).glob("criterion/ingest/*/new/benchmark.json"):
        mode, case = parse_id(json.loads(path.read_text())["value_str"])
        seconds = json.loads(path.with_name("estimates.json").read_text())["median"]["point_estimate"] / 1e9
        found[mode, case] = VOLUME_MIB / seconds
    return found


def cpu_per_value(target):
    path = pathlib.Path(target) / "tmp" / "bench_ingest_cpu.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {parse_id(line["id"]): line["cpu_ns_per_value"] for line in lines}


def setting():
    cpu = next(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    mount = subprocess.run(["findmnt", "-no", "FSTYPE,OPTIONS", "-T", "."], capture_output=True, text=True).stdout.strip()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "machine": f"{os.cpu_count()} cores, {cpu}",
        "kernel": platform.release(),
        "filesystem": mount,
    }


def table(rates, cpu, limits, reads, info):
    limit = limits["device_limit"]
    lines = ["# Write path", ""]
    lines += [f"* {name}: {value}" for name, value in info.items()]
    lines += ["* command: `make bench-ingest`", ""]
    lines += ["MiB/s of values (medians), the ratio to the first pageserver's benchmark on a machine of this kind, the share"]
    lines += [f"of the device limit ({limit:.0f} MiB/s, the better of the runs before and after), CPU time per value.", ""]
    lines += ["| bytes | layout | delta | mode | MiB/s | first | ratio | of limit | CPU ns/value |", "|---|---|---|---|---|---|---|---|---|"]
    for case in CASES:
        for mode, first in zip(MODES, FIRST[case]):
            rate = rates[mode, case]
            lines.append(
                f"| {case[0]} | {case[1]} | {case[2]} | {mode} | {rate:.0f} | {first} | {rate / first:.1f}x"
                f" | {rate / limit:.2f} | {cpu[mode, case]:.0f} |"
            )
    lines += ["", "## The disk itself", "", "| what | MiB/s |", "|---|---|"]
    lines += [f"| {name.replace('_', ' ')} | {rate:.0f} |" for name, rate in limits.items()]
    lines += ["", "## Reads of a freshly written layer, warm index, direct I/O", "", "| what | us/page | data reads/page |", "|---|---|---|"]
    lines += [f"| {name} | {value['us']:.1f} | {value['data_reads']:.2f} |" for name, value in reads.items()]
    ratio = reads["chain of 100 sealed"]["us"] / reads["chain of 100 sorted"]["us"]
    lines += ["", f"A chain of 100 records from the sealed layer costs {ratio:.2f} times what it costs in a key-sorted one.", ""]
    return "\n".join(lines)


def plot(rates, limits, info):
    """Grouped bars by case; the first pageserver's figure as a dark mark on each bar."""
    width, height, left, bottom, top = 1000, 460, 70, 90, 50
    highest = max(list(rates.values()) + [limits["device_limit"]]) * 1.05
    scale = (height - bottom - top) / highest
    y = lambda rate: height - bottom - rate * scale
    group = (width - left - 20) / len(CASES)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">']
    parts.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    parts.append(f'<text x="{left}" y="20" font-size="15">Ingest, MiB/s of values ({info["machine"]}, {info["date"]})</text>')
    for step in range(0, int(highest) + 1, 200):
        parts.append(f'<line x1="{left}" y1="{y(step):.1f}" x2="{width - 20}" y2="{y(step):.1f}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{left - 8}" y="{y(step) + 4:.1f}" text-anchor="end">{step}</text>')
    limit = y(limits["device_limit"])
    parts.append(f'<line x1="{left}" y1="{limit:.1f}" x2="{width - 20}" y2="{limit:.1f}" stroke="#b03030" stroke-dasharray="6 4"/>')
    parts.append(f'<text x="{width - 22}" y="{limit - 5:.1f}" text-anchor="end" fill="#b03030">device limit</text>')
    for at, case in enumerate(CASES):
        x = left + at * group
        bar = group / 4
        for number, (mode, first) in enumerate(zip(MODES, FIRST[case])):
            rate, start = rates[mode, case], x + bar * (number + 0.5)
            parts.append(f'<rect x="{start:.1f}" y="{y(rate):.1f}" width="{bar - 4:.1f}" height="{rate * scale:.1f}" fill="{COLORS[mode]}"/>')
            parts.append(f'<text x="{start + bar / 2 - 2:.1f}" y="{y(rate) - 4:.1f}" text-anchor="middle" font-size="10">{rate:.0f}</text>')
            parts.append(f'<rect x="{start - 1:.1f}" y="{y(first) - 1.5:.1f}" width="{bar - 2:.1f}" height="3" fill="#222"/>')
        label = [f"{case[0]} B", case[1], "with delta" if case[2] == "Yes" else "no delta"]
        for line, text in enumerate(label):
            parts.append(f'<text x="{x + group / 2:.1f}" y="{height - bottom + 18 + line * 15}" text-anchor="middle">{text}</text>')
    for number, mode in enumerate(MODES):
        parts.append(f'<rect x="{left + number * 110}" y="30" width="12" height="12" fill="{COLORS[mode]}"/>')
        parts.append(f'<text x="{left + 18 + number * 110}" y="41">{mode}</text>')
    parts.append(f'<rect x="{left + 330}" y="35" width="18" height="3" fill="#222"/><text x="{left + 354}" y="41">first pageserver</text>')
    return "\n".join(parts + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="target")
    parser.add_argument("--out", default="benches/results")
    args = parser.parse_args()
    temp = pathlib.Path(args.target) / "tmp"
    before = json.loads((temp / "device_limit_before.json").read_text())
    after = json.loads((temp / "device_limit.json").read_text())
    limits = {name: max(rate, before[name]) for name, rate in after.items()}
    reads = json.loads((temp / "bench_layer_read.json").read_text())
    rates, cpu, info = criterion_medians(args.target), cpu_per_value(args.target), setting()
    out = pathlib.Path(args.out)
    raw = {
        "setting": info,
        "device_limit": {"before": before, "after": after},
        "layer_read": reads,
        "ingest": [
            {"mode": mode, "bytes": case[0], "layout": case[1], "delta": case[2], "mib_per_s": rate, "cpu_ns_per_value": cpu[mode, case]}
            for (mode, case), rate in sorted(rates.items())
        ],
    }
    (out / "ingest.json").write_text(json.dumps(raw, indent=1) + "\n")
    (out / "ingest.md").write_text(table(rates, cpu, limits, reads, info))
    (out / "ingest.svg").write_text(plot(rates, limits, info))
    print((out / "ingest.md").read_text())


if __name__ == "__main__":
    main()
