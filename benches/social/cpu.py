"""Processor time by program."""

import os
from collections import Counter
from pathlib import Path

TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


def by_process() -> dict[int, tuple[str, float]]:
    """The name of each process, and the ms of processor time that it has taken."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, fields = stat.read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        user, system = map(int, fields.split()[11:13])
        # Threads of the kernel change their names.
        name = "kernel" if fields.split()[1] == "2" else name
        found[int(stat.parent.name)] = (name, (user + system) * TICK_MS)
    return found


def since(before: dict[int, tuple[str, float]]) -> dict[str, float]:
    """The ms that the programs have taken since then. What has ended since does not count."""
    took = Counter()
    for pid, (name, now) in by_process().items():
        took[name] += now - before.get(pid, (name, 0))[1]
    return {name: ms for name, ms in took.most_common() if ms}
