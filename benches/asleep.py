#!/usr/bin/env python3
"""What branches cost whose computes sleep: processes, memory, disk; and how long many take that wake at once.

A pageserver follows a database, whose server is then removed, and a gateway stands before its branches. First some
branches are woken and put to sleep, so that caches and allocators have what they keep anyway. Then many branches get a
compute each, which answers through the gateway and is put to sleep: processes and mounts of computes are counted, and
the memory of pageserver and gateway is compared with that before. At last some of them are asked all at once. The rows
of each answer are counted. Nothing is left behind but asleep.json.
"""

import argparse
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import artifact
from compute_figures import MIB, with_place
from gateway import GatewayFigures

from fixtures.gateway import Gateway
from fixtures.processes import rss_mib

# How many computes are made at the same time; the time does not count.
MAKERS = 3
# What is put off by servers that have just been busy.
REST = 5


class AsleepFigures(GatewayFigures):
    """Computes that sleep."""

    def run(self) -> dict:
        scale, mib = self.follow_database()
        gateway = Gateway(self.computes, "--computes-max", str(self.args.branches + self.args.before))
        try:
            return {"database_mib": mib, **self.asleep(gateway, scale)}
        finally:
            gateway.end()

    def asleep(self, gateway: Gateway, scale: int) -> dict:
        for name in self.lulled(gateway, "before", self.args.before, scale):
            self.computes.ok("destroy", name, "--force")
        before = self.held(gateway)
        names = self.lulled(gateway, "sleeper", self.args.branches, scale)
        after = self.held(gateway)
        awake = names[:self.args.at_once]
        with ThreadPoolExecutor(len(awake)) as pool:
            seconds = list(pool.map(lambda name: self.ask(gateway, name, scale), awake))
        running = self.held(gateway)
        found = {"branches": len(names), "before": before, "asleep": after, "woken": len(awake),
                 "first_s": min(seconds), "last_s": max(seconds), "awake": running}
        self.say(json.dumps(found))
        return found

    def lulled(self, gateway: Gateway, prefix: str, count: int, scale: int) -> list[str]:
        """New branches whose computes have answered, and sleep."""

        def lull(name: str):
            self.ask(gateway, name, scale)
            self.computes.ok("stop", name)

        names = [self.branch(f"{prefix}{number}") for number in range(count)]
        with ThreadPoolExecutor(MAKERS) as pool:
            list(pool.map(lull, names))
        return names

    def held(self, gateway: Gateway) -> dict:
        """Processes and mounts that belong to computes, their local disk, and the memory of who serves them."""
        time.sleep(REST)
        place = str(self.computes.dir)
        # The gateway and its children name the directory in their environment only.
        lines = (line for line in map(command_line, Path("/proc").glob("[0-9]*")) if place in line)
        mounts = sum(place in line for line in Path("/proc/mounts").read_text().splitlines())
        disk = sum(one.stat(follow_symlinks=False).st_blocks * 512 for one in self.computes.dir.rglob("*")
                   if not mounts and one.is_file())
        return {"processes": len(list(lines)), "mounts": mounts, "disk_mib": round(disk / MIB, 1),
                "pageserver_mib": round(rss_mib(self.pageserver.process.pid), 1),
                "gateway_mib": round(rss_mib(gateway.process.pid), 1)}


def command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="size of the database")
    parser.add_argument("--branches", type=int, default=100, help="branches whose computes sleep")
    parser.add_argument("--before", type=int, default=20, help="branches that were awake before")
    parser.add_argument("--at-once", type=int, default=20, help="branches that are woken all at once")
    return with_place(parser)


def main():
    args = parse_args()
    bench = AsleepFigures(args)
    bench.validity = artifact.Validity("answers")
    topology = artifact.topology(args.dir, profile=os.environ.get("TEST_PROFILE", "release"))
    results = {"pg_major": args.pg_major}
    try:
        results.update(bench.run())
    finally:
        bench.clean()
    print(json.dumps(results))
    if args.out:
        artifact.refusing(lambda: artifact.write(Path(args.out) / "asleep.json", topology, bench.validity, results))


if __name__ == "__main__":
    main()
