"""The plot of the write path: grouped bars by case, the device's limit as a line, the other program as dark marks."""

COLORS = {"Buffered": "#7a8ca3", "Direct": "#3f7fbf", "DirectRw": "#d9822b"}


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

    def polyline(self, points, color, width=2):
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{joined}" fill="none" stroke="{color}" stroke-width="{width}"/>')

    def finish(self):
        return "\n".join(self.parts + ["</svg>", ""])


def plot(rows, limit, topology, baseline):
    """`rows` and `baseline` by (mode, bytes, layout, delta)."""
    width, height, left, bottom, top = 1200, 460, 70, 90, 50
    cases = list(dict.fromkeys(case[1:] for case in rows))
    highest = max([row["mib_per_s"] for row in [*rows.values(), *baseline.values()]] + [limit]) * 1.05
    scale = (height - bottom - top) / highest
    group = (width - left - 20) / len(cases)
    bar = group / 4
    drawing = Drawing(width, height)

    def y_of(rate):
        return height - bottom - rate * scale

    title = f"Ingest, MiB/s of values ({topology['cores']} cores, {topology['cpu']}, {topology['date']})"
    drawing.text(left, 20, title, extra='font-size="15"')
    for step in range(0, int(highest) + 1, 200):
        drawing.line(left, width - 20, y_of(step), "#e5e5e5")
        drawing.text(left - 8, y_of(step) + 4, step, "end")
    drawing.line(left, width - 20, y_of(limit), "#b03030", 'stroke-dasharray="6 4"')
    drawing.text(width - 22, y_of(limit) - 5, "device limit", "end", 'fill="#b03030"')
    for at, case in enumerate(cases):
        x = left + at * group
        for number, mode in enumerate(COLORS):
            rate, start = rows[mode, *case]["mib_per_s"], x + bar * (number + 0.5)
            drawing.box(start, y_of(rate), bar - 4, rate * scale, COLORS[mode])
            drawing.text(start + bar / 2 - 2, y_of(rate) - 4, f"{rate:.0f}", "middle", 'font-size="10"')
            if (mode, *case) in baseline:
                drawing.box(start - 1, y_of(baseline[mode, *case]["mib_per_s"]) - 1.5, bar - 2, 3, "#222")
        label = [f"{case[0]} B", case[1], "with delta" if case[2] == "Yes" else "no delta"]
        for line, text in enumerate(label):
            drawing.text(x + group / 2, height - bottom + 18 + line * 15, text, "middle")
    for number, mode in enumerate(COLORS):
        drawing.box(left + number * 110, 30, 12, 12, COLORS[mode])
        drawing.text(left + 18 + number * 110, 41, mode)
    if baseline:
        drawing.box(left + 330, 35, 18, 3, "#222")
        drawing.text(left + 354, 41, "baseline")
    return drawing.finish()
