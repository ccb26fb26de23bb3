#!/usr/bin/env python3
"""Reads at the head while the same database is written: page requests by eight connections beside pgbench.

A server with pgbench's tables is followed by a pageserver that may keep a quarter of them in memory. In each round
pgbench writes alone; then `pagectl bench` reads alone, random pages of the accounts and for one request in ten the
table's size; then both at once. Each page that is read must be one of Postgres, and never be older than it was when
last read. Last, a whole backup (`fullbackup`) is fetched several times. At the end every page is compared with the
server's files. Everything runs on the same cores. Nothing is left behind but mixed.json.
"""

import argparse
import json
import os
import re
import subprocess
import time

import artifact
from compute_figures import MIB, Bench, with_place
from fixtures.followed import rel_of
from fixtures.pagectl import Pagectl
from fixtures.processes import cpu_seconds, rss_mib
from fixtures.programs import program

PAGES_PER_SCALE = 1640
TPS = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)
CHUNK = 1 << 20


class Mixed(Bench):
    """A server that is written, and a pageserver that follows it and is read."""

    def run(self) -> dict:
        self.validity = artifact.Validity("pages")
        self.server = self.make_database("origin", self.args.scale)
        self.server.stop()
        # What pgbench changes is found in the server's own cache.
        self.server.configure(shared_buffers="'2GB'", max_wal_size="'8GB'", checkpoint_timeout="'30min'")
        self.server.start()
        cached = PAGES_PER_SCALE * self.args.scale // 4
        followed = self.follow(self.server, keep=True, page_cache_size=cached)
        self.timeline = followed.timeline
        self.rel = rel_of(self.server, "pgbench_accounts")
        size = int(self.server.sql("SELECT pg_database_size('postgres')"))
        rounds = [self.round() for _ in range(self.args.rounds)]
        lsn = followed.stop_postgres(600)
        self.timeline.wait_for_lsn(lsn, 600)
        backups = [self.backup() for _ in range(self.args.rounds)]
        self.pageserver.stop()
        self.verify_files(self.timeline, self.server.data)
        return {"database_mib": round(size / MIB), "cached_pages": cached, "rounds": rounds, "backups": backups}

    def round(self) -> dict:
        found = {"written": self.write(), "read": self.read()}
        writer = self.start_writer(self.args.seconds + 4)
        # Reads begin a second later, and have a second to warm up.
        time.sleep(1)
        beside = self.read()
        found["both"] = {**beside, **self.end_writer(writer)}
        followed_until = self.server.sql("SELECT pg_current_wal_flush_lsn()")
        self.timeline.wait_for_lsn(followed_until, 600)
        self.say(json.dumps(found))
        return found

    def start_writer(self, seconds: int):
        return self.server.popen("pgbench", *self.server.address(), "-n", "-N", "-c", self.args.clients, "-j", 2, "-T",
                                 seconds, "postgres", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def end_writer(self, writer) -> dict:
        output, _ = writer.communicate(timeout=120)
        told = TPS.search(output)
        assert writer.returncode == 0 and told, output
        return {"tps": float(told[1])}

    def write(self) -> dict:
        return self.end_writer(self.start_writer(self.args.seconds))

    def read(self) -> dict:
        ctl = Pagectl(program("pagectl"), self.pageserver.workdir)
        words = ["bench", "--rel", str(self.rel), "--connections", self.args.connections, "--sizes", 10,
                 "--time", f"{self.args.seconds}s", "--server", self.pageserver.http.base,
                 "--page-service", f"host=127.0.0.1 port={self.pageserver.pg_port} user=bench"]
        pid = self.pageserver.process.pid
        before = cpu_seconds(pid)
        found = json.loads(ctl.ok("--json", *words).stdout)
        # Of the warm-up as well, whose answers are not counted.
        share = found["seconds"] / (found["seconds"] + 1)
        found["server_us"] = round((cpu_seconds(pid) - before) * share * 1e6 / found["answers"], 1)
        found["rss_mib"] = round(rss_mib(pid))
        return found

    def backup(self) -> dict:
        """Fetches a whole backup, and counts its bytes."""
        command = f"fullbackup {self.timeline.tenant} {self.timeline.id}"
        began, cpu = time.monotonic(), cpu_seconds(self.pageserver.process.pid)
        psql = subprocess.Popen([self.installed.program("psql"), "-Xq", "-h", "127.0.0.1", "-p",
                                 str(self.pageserver.pg_port), "-U", "bench", "-c", command], stdout=subprocess.PIPE)
        fetched = 0
        while chunk := psql.stdout.read(CHUNK):
            fetched += len(chunk)
        assert psql.wait(60) == 0, "fullbackup failed"
        seconds = time.monotonic() - began
        return {"mib": round(fetched / MIB, 1), "seconds": round(seconds, 2),
                "mib_per_s": round(fetched / MIB / seconds),
                "server_cpu_s": round(cpu_seconds(self.pageserver.process.pid) - cpu, 2)}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=64, help="of pgbench's tables; 64 are 1 GiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=15, help="that each step of a round takes")
    parser.add_argument("--connections", type=int, default=8, help="that read, with one request in flight each")
    parser.add_argument("--clients", type=int, default=2, help="of pgbench")
    return with_place(parser)


def main():
    args = parse_arguments()
    topology = artifact.topology(args.dir, profile=os.environ.get("TEST_PROFILE", "release"), store="none")
    bench = Mixed(args)
    try:
        results = bench.run()
    finally:
        bench.clean()
    if args.out:
        results |= {name: getattr(args, name) for name in ("connections", "clients", "seconds", "pg_major")}
        artifact.refusing(lambda: artifact.write(args.out / "mixed.json", topology, bench.validity, results))


if __name__ == "__main__":
    main()
