#!/usr/bin/env python3
"""How fast a pageserver takes in WAL from a live Postgres, compared with a stock standby that replays the same WAL.

A primary keeps its WAL. A pageserver follows it, a standby is made by pg_basebackup, both are stopped, and pgbench
writes WAL, or (`--by updates`) tenths of its largest table are updated in turn, which writes as much in a fraction of
the time. Then, alternating and several times, a copy of each is started and has to catch up from the same walsender.
The time is measured from a tenth of the way to the end, which leaves out the startup of both. At the end everything is
on disk: for the pageserver the time includes a checkpoint, and a standby must have both flushed and replayed
everything. How fast the same walsender gives the same WAL to somebody who drops it is told beside that. Before each of
these runs so much memory is used and freed again that the machine has it at hand, where the host of a virtual machine
takes free memory back (`benches/fresh_memory.py`). What of compaction is due by then is done afterwards: when no job is
due any more, and what a pageserver has taken by then, is told as well. After the last round the primary is stopped, and
every page is compared with its files.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import artifact
import fresh_memory

sys.path.insert(0, str(artifact.REPOSITORY / "test_runner"))

from compaction import total  # noqa: E402
from fixtures.followed import Followed  # noqa: E402
from fixtures.lsn import parse  # noqa: E402
from fixtures.pageserver import Pageserver, Timeline  # noqa: E402
from fixtures.postgres import Postgres  # noqa: E402
from fixtures.processes import children, cpu_seconds, peak_rss_mib  # noqa: E402
from fixtures.programs import program  # noqa: E402
from fixtures.servers import find_server  # noqa: E402
from fixtures.wait import wait_until  # noqa: E402
from wal_sender import Replication  # noqa: E402

MIB = 1 << 20
TICK = 0.02
PRIMARY = {
    "fsync": "off", "wal_keep_size": "'24GB'", "max_wal_size": "'4GB'", "checkpoint_timeout": "'30min'",
    "shared_buffers": "'512MB'", "synchronous_commit": "off", "max_wal_senders": "10", "max_replication_slots": "10",
}
REPLAYED = "SELECT least(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())"


class Clock:
    """Runs from when a position passes a tenth of the way until it is stopped."""

    def __init__(self, start: int, end: int):
        self.begins, self.end, self.began = start + (end - start) // 10, end, None

    def sees_end(self, position: int) -> bool:
        if self.began is None and position >= self.begins:
            self.began, self.at = time.monotonic(), position
        return position >= self.end

    def rate(self) -> dict:
        """The rate, to be called once the end is on disk."""
        seconds = time.monotonic() - self.began
        return {"seconds": round(seconds, 3), "mib_per_s": round((self.end - self.at) / seconds / MIB, 1)}


class Bench:
    def __init__(self, args, full_page_writes: bool, validity: artifact.Validity):
        self.args, self.fpw, self.validity = args, full_page_writes, validity
        self.root = Path(tempfile.mkdtemp(prefix="wal-intake-", dir=args.dir))
        self.root.chmod(0o755)
        self.installed = find_server(args.pg_major)
        self.primary = Postgres(self.installed, self.root / "primary")
        self.standby = Postgres(self.installed, self.root / "standby")
        self.pageserver: Pageserver | None = None

    def prepare(self):
        full_page_writes = "on" if self.fpw else "off"
        self.primary.init(**PRIMARY, full_page_writes=full_page_writes).start().bench_init(self.args.scale)
        self.pageserver = self.make_pageserver(self.root / "store").start()
        self.timeline = self.pageserver.follow(self.primary)
        Followed(self.primary, self.pageserver, self.timeline).catch_up()
        self.pageserver.stop()
        self.standby.init_standby(self.primary)
        self.standby.configure(fsync="on", hot_standby="on")

    def make_pageserver(self, store: Path) -> Pageserver:
        settings = {"remote_storage": "none"} if self.args.bucket == "none" else {}
        return Pageserver(program("pageserver"), store, **settings)

    def load(self) -> tuple[int, int]:
        """Writes WAL; returns where it begins and ends."""
        start = parse(self.primary.sql("SELECT pg_current_wal_lsn()"))
        while (end := parse(self.primary.sql("SELECT pg_current_wal_lsn()"))) - start < self.args.gib * 2**30:
            if self.args.by == "updates":
                part = (end - start) // MIB % 10
                self.primary.sql(f"UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid % 10 = {part}")
            else:
                self.primary.start_bench(20, clients=4).wait()
            print(f"  {(end - start) / MIB:.0f} MiB of WAL", file=sys.stderr)
        self.primary.sql("CHECKPOINT")
        return start, parse(self.primary.sql("SELECT pg_current_wal_flush_lsn()"))

    def copy(self, source: Path, name: str) -> Path:
        target = self.root / name
        subprocess.run(["cp", "-a", source, target], check=True)
        os.sync()
        return target

    def time_sender(self, start: int, end: int) -> float:
        sender = Replication(self.primary.sockets)
        try:
            return round(sender.drain(start, end), 1)
        finally:
            sender.close()

    def have_memory(self):
        fresh_memory.touch(int(self.args.touched * 2**30))

    def time_pageserver(self, start: int, end: int, last: bool) -> dict:
        store = self.copy(self.root / "store", "store-copy")
        self.have_memory()
        self.pageserver = self.make_pageserver(store)
        timeline = Timeline(self.pageserver, self.timeline.tenant, self.timeline.id)
        clock = Clock(start, end)
        self.pageserver.start()
        while not clock.sees_end(parse(timeline.last_record_lsn())):
            time.sleep(TICK)
        self.pageserver.http.put(f"{timeline.path}/checkpoint", timeout=600)
        found = {**clock.rate(), "cpu_seconds": cpu_seconds(self.pageserver.process.pid)}
        durable = timeline.info()["disk_consistent_lsn"]
        assert parse(durable) >= end, f"a checkpoint has ended, and only {durable} is durable"
        found["peak_rss_mib"] = int(peak_rss_mib(self.pageserver.process.pid))
        found.update(self.settle())
        if last:
            self.compare(timeline)
        self.pageserver.stop()
        shutil.rmtree(store)
        return found

    def settle(self) -> dict:
        """Waits until all is done that the WAL has made due."""
        began = time.monotonic()
        debt = lambda: total(self.pageserver.http.metrics(), "compaction_debt_bytes")
        wait_until(lambda: not debt(), 600, every=0.2, what="the end of all jobs")
        return {"settled_s": round(time.monotonic() - began, 1),
                "settled_cpu_seconds": cpu_seconds(self.pageserver.process.pid)}

    def compare(self, timeline: Timeline):
        """Compares every page of the primary's files with what the pageserver has made of the WAL."""
        followed = Followed(self.primary, self.pageserver, timeline)
        lsn = followed.stop_postgres()
        timeline.wait_for_lsn(lsn)
        report = followed.assert_files_equal(lsn)
        pages = report.equal + report.lost_maps + report.older_hints + len(report.different)
        self.validity.add(expected=pages, seen=pages, different=len(report.different))

    def time_standby(self, start: int, end: int) -> dict:
        copied = Postgres(self.installed, self.copy(self.standby.data, "standby-copy"))
        copied.configure(unix_socket_directories=f"'{copied.sockets}'")
        clock = Clock(start, end)
        self.have_memory()
        copied.start()
        try:
            with copied.session() as session:
                while not clock.sees_end(parse(session.sql(REPLAYED) or "0/0")):
                    time.sleep(TICK)
                found = clock.rate()
            postmaster = copied.postmaster()
            return {**found, "cpu_seconds": cpu_seconds(postmaster, *children(postmaster))}
        finally:
            copied.stop("immediate")
            copied.destroy()
            shutil.rmtree(copied.data, ignore_errors=True)

    def measure(self) -> dict:
        self.prepare()
        start, end = self.load()
        rounds = []
        for number in range(self.args.rounds):
            # The comparison stops the primary, so the standby's last round comes first.
            last = number + 1 == self.args.rounds
            sender, standby = self.time_sender(start, end), self.time_standby(start, end)
            pageserver = self.time_pageserver(start, end, last)
            rounds.append({"sender_mib_per_s": sender, "pageserver": pageserver, "standby": standby})
            print(f"  round {number + 1}: {json.dumps(rounds[-1])}", file=sys.stderr)
        rate = {who: median(one[who]["mib_per_s"] for one in rounds) for who in ("pageserver", "standby")}
        return {"full_page_writes": self.fpw, "wal_mib": round((end - start) / MIB), "rounds": rounds,
                "sender_mib_per_s": max(one["sender_mib_per_s"] for one in rounds),
                "pageserver_mib_per_s": rate["pageserver"], "standby_mib_per_s": rate["standby"],
                "ratio": round(rate["pageserver"] / rate["standby"], 2)}

    def clean(self):
        try:
            if self.pageserver:
                self.pageserver.destroy()
            self.standby.destroy()
            self.primary.destroy()
        finally:
            shutil.rmtree(self.root, ignore_errors=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pg-major", type=int, default=15)
    parser.add_argument("--dir", default="/tmp", help="where all data goes; needs about 12 times the WAL")
    parser.add_argument("--gib", type=float, default=2, help="WAL to write, in GiB")
    parser.add_argument("--scale", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--touched", type=float, default=3, help="GiB of memory used and freed before each run")
    parser.add_argument("--by", choices=["pgbench", "updates"], default="pgbench", help="what writes the WAL")
    parser.add_argument("--bucket", choices=["directory", "none"], default="directory",
                        help="a directory on the same disk, to which all is uploaded meanwhile")
    parser.add_argument("--fpw", choices=["on", "off", "both"], default="both")
    parser.add_argument("--out", type=Path, help="directory for wal_intake.json")
    return parser.parse_args()


def main():
    args = parse_arguments()
    topology = artifact.topology(args.dir, profile=os.environ.get("TEST_PROFILE", "release"))
    validity, cases = artifact.Validity("pages"), []
    for fpw in {"on": [True], "off": [False], "both": [True, False]}[args.fpw]:
        bench = Bench(args, fpw, validity)
        try:
            cases.append(bench.measure())
        finally:
            bench.clean()
        print(json.dumps({name: value for name, value in cases[-1].items() if name != "rounds"}))
    if args.out:
        results = {"scale": args.scale, "gib": args.gib, "by": args.by, "bucket": args.bucket,
                   "touched_gib": args.touched, "cases": cases}
        artifact.refusing(lambda: artifact.write(args.out / "wal_intake.json", topology, validity, results))


if __name__ == "__main__":
    main()
