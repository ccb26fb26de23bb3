#!/usr/bin/env python3
"""How long a running server is copied into the store, compared with what pg_basebackup alone needs for the same.

Per size, a server with pgbench's tables, whose accounts have fillers of digits of hashes. In turn (A B B A ...):
pg_basebackup writes the server's files into a directory and syncs them; or a new pageserver, without a bucket, follows
the server until what it has is durable. Their own processor time is counted, not that of the server, and the most
memory that the pageserver has. Each copy is removed again; `verify` compares every page of the server's files with the
last one of the store before. Nothing is left behind but first_copy.json.
"""

import argparse
import json
import os
import resource
import shutil
import time
from pathlib import Path

import artifact
from compute_figures import MIB, MIB_PER_SCALE, Bench, with_place
from fixtures.processes import cpu_seconds, peak_rss_mib
from fixtures.stored import disk_usage
from memory import FILLER

FREE_GIB = 6


class FirstCopy(Bench):
    """Copies of one server."""

    filler = FILLER

    def of_size(self, mib: int) -> dict:
        server = self.make_database(f"origin{mib}", max(1, round(mib / MIB_PER_SCALE)))
        size = int(server.sql("SELECT pg_database_size('postgres')"))
        rounds = []
        for number in range(self.args.rounds):
            for who in ("plain", "store") if number % 2 == 0 else ("store", "plain"):
                free = shutil.disk_usage(self.root).free >> 30
                assert free >= FREE_GIB + (size >> 30), f"only {free} GiB are free on the disk"
                last = number + 1 == self.args.rounds
                rounds.append(self.backup(server) if who == "plain" else self.copy(server, last))
                self.say(json.dumps(rounds[-1]))
        server.destroy()
        return {"database_mib": round(size / MIB), "rounds": rounds}

    def backup(self, server) -> dict:
        """What pg_basebackup takes."""
        self.settle()
        target = server.own(self.root / "backup")
        began, before = time.monotonic(), cpu_of_children()
        server.run("pg_basebackup", "-D", target, "-c", "fast", "-X", "none", *server.address(), timeout=3600)
        seconds, cpu = time.monotonic() - began, cpu_of_children() - before
        found = {"who": "plain", "seconds": round(seconds, 3), "cpu_s": round(cpu, 2),
                 "mib": round(disk_usage(target) / MIB)}
        shutil.rmtree(target)
        return found

    def copy(self, server, last: bool) -> dict:
        """What a pageserver takes, from nothing."""
        self.settle()
        began = time.monotonic()
        followed = self.follow(server, keep=True, remote_storage="none")
        seconds = time.monotonic() - began
        pid = self.pageserver.process.pid
        found = {"who": "store", "seconds": round(seconds, 3), "cpu_s": round(cpu_seconds(pid), 2),
                 "peak_mib": round(peak_rss_mib(pid)), "mib": round(disk_usage(self.pageserver.workdir) / MIB)}
        if last:
            lsn = followed.stop_postgres()
            followed.timeline.wait_for_lsn(lsn, 600)
            self.pageserver.stop()
            self.verify_files(followed.timeline, server.data)
            server.start()
        self.detach()
        server.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
        return found

    def settle(self):
        """Nothing waits to be written by those before, and files are in the kernel's cache for all or for none."""
        os.sync()
        self.forget_cached()


def cpu_of_children() -> float:
    """The processor time of all processes that have been started from here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, nargs="+", default=[2048, 8192], help="sizes of databases")
    parser.add_argument("--rounds", type=int, default=3)
    return with_place(parser)


def main():
    args = parse_args()
    bench = FirstCopy(args)
    bench.validity = artifact.Validity("pages")
    topology = artifact.topology(args.dir, profile=os.environ.get("TEST_PROFILE", "release"))
    results = {"pg_major": args.pg_major, "drop_caches": args.drop_caches}
    try:
        results["sizes"] = [bench.of_size(mib) for mib in args.mib]
    finally:
        bench.clean()
    print(json.dumps(results))
    if args.out:
        artifact.refusing(lambda: artifact.write(Path(args.out) / "first_copy.json", topology, bench.validity, results))


if __name__ == "__main__":
    main()
