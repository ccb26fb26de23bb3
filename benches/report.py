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


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def setting():
    cpu = next(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    mount = output("findmnt", "-no", "FSTYPE,OPTIONS", "-T", ".")
    commit = output("git", "rev-parse", "--short", "HEAD")
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
    lines += ["MiB/s of values (medians), the ratio to the first pageserver's benchmark on a machine of this kind,"]
    lines += [f"the share of the device limit ({limit:.0f} MiB/s, the better of the runs before and after), and CPU"]
    lines += ["time per value (user and system, all threads).", ""]
    lines += ["| bytes | layout | delta | mode | MiB/s | first | ratio | of limit | CPU ns/value |"]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    for case in CASES:
        for mode, first in zip(MODES, FIRST[case]):
            rate = rates[mode, case]
            lines.append(
                f"| {case[0]} | {case[1]} | {case[2]} | {mode} | {rate:.0f} | {first} | {rate / first:.1f}x"
                f" | {rate / limit:.2f} | {cpu[mode, case]:.0f} |"
            )
    lines += ["", "## The disk itself", "", "| what | MiB/s |", "|---|---|"]
    lines += [f"| {name.replace('_', ' ')} | {rate:.0f} |" for name, rate in limits.items()]
    lines += ["", "## Reads of a freshly written layer, warm index, direct I/O", ""]
    lines += ["| what | us/page | data reads/page |", "|---|---|---|"]
    lines += [f"| {name} | {value['us']:.1f} | {value['data_reads']:.2f} |" for name, value in reads.items()]
    ratio = reads["chain of 100 sealed"]["us"] / reads["chain of 100 sorted"]["us"]
    lines += ["", f"A chain of 100 records costs {ratio:.2f} times as much in the sealed layer as when sorted.", ""]
    return "\n".join(lines)


class Drawing:
    """Collects SVG elements."""

    def __init__(self, width, height):
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"']
        self.parts[0] += ' font-family="sans-serif" font-size="12">'
        self.box(0, 0, width, height, "white")

    def box(self, x, y, width, height, color):
        size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self.parts.append(f'<rect {size} fill="{color}"/>')

    def line(self, x1, x2, y, color, extra=""):
        self.parts.append(f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{color}" {extra}/>')

    def text(self, x, y, text, anchor="start", extra=""):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {extra}>{text}</text>')

    def finish(self):
        return "\n".join(self.parts + ["</svg>", ""])


def plot(rates, limits, info):
    """Grouped bars by case; the first pageserver's figure as a dark mark on each bar."""
    width, height, left, bottom, top = 1000, 460, 70, 90, 50
    highest = max(list(rates.values()) + [limits["device_limit"]]) * 1.05
    scale = (height - bottom - top) / highest
    group = (width - left - 20) / len(CASES)
    bar = group / 4
    drawing = Drawing(width, height)

    def y_of(rate):
        return height - bottom - rate * scale

    drawing.text(left, 20, f"Ingest, MiB/s of values ({info['machine']}, {info['date']})", extra='font-size="15"')
    for step in range(0, int(highest) + 1, 200):
        drawing.line(left, width - 20, y_of(step), "#e5e5e5")
        drawing.text(left - 8, y_of(step) + 4, step, "end")
    limit = y_of(limits["device_limit"])
    drawing.line(left, width - 20, limit, "#b03030", 'stroke-dasharray="6 4"')
    drawing.text(width - 22, limit - 5, "device limit", "end", 'fill="#b03030"')
    for at, case in enumerate(CASES):
        x = left + at * group
        for number, (mode, first) in enumerate(zip(MODES, FIRST[case])):
            rate, start = rates[mode, case], x + bar * (number + 0.5)
            drawing.box(start, y_of(rate), bar - 4, rate * scale, COLORS[mode])
            drawing.text(start + bar / 2 - 2, y_of(rate) - 4, f"{rate:.0f}", "middle", 'font-size="10"')
            drawing.box(start - 1, y_of(first) - 1.5, bar - 2, 3, "#222")
        label = [f"{case[0]} B", case[1], "with delta" if case[2] == "Yes" else "no delta"]
        for line, text in enumerate(label):
            drawing.text(x + group / 2, height - bottom + 18 + line * 15, text, "middle")
    for number, mode in enumerate(MODES):
        drawing.box(left + number * 110, 30, 12, 12, COLORS[mode])
        drawing.text(left + 18 + number * 110, 41, mode)
    drawing.box(left + 330, 35, 18, 3, "#222")
    drawing.text(left + 354, 41, "first pageserver")
    return drawing.finish()


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
            dict(zip(["mode", "bytes", "layout", "delta", "mib_per_s", "cpu_ns_per_value"], row))
            for row in sorted((mode, *case, rate, cpu[mode, case]) for (mode, case), rate in rates.items())
        ],
    }
    (out / "ingest.json").write_text(json.dumps(raw, indent=1) + "\n")
    (out / "ingest.md").write_text(table(rates, cpu, limits, reads, info))
    (out / "ingest.svg").write_text(plot(rates, limits, info))
    print((out / "ingest.md").read_text())


if __name__ == "__main__":
    main()
