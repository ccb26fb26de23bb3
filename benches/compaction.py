#!/usr/bin/env python3
"""What reads, writes and space cost while a real Postgres writes for long: a full-size run, verified at its end.

pgbench's TPC-B, and updates of a hundred neighboring rows, run on a database of --scale, followed by a pageserver with
its default settings (or those of --set) and no bucket, until it has written --wal-gib of WAL, while one reader reads
random pages at the newest LSN. At --moments equal distances the server is stopped: its files are kept (compressed), the
moment is held, and the first --branches of them become branches. At the end: how long due work takes, what the
pageserver costs while idle, and `verify` of the tip, of each moment and of each branch. Writes
compaction-postgres.json, unless a page differs.

The compressed files take about a tenth of the database for each moment. The store grows by three times the WAL: a
record of a row that moves is stored with both of its pages. So the whole run needs 110 GB.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import threading
import time
from pathlib import Path

import artifact
from compute_figures import MIB, MIB_PER_SCALE, Bench, with_place
from fixtures.followed import Followed, rel_of
from fixtures.lsn import parse
from fixtures.pagectl import Pagectl
from fixtures.pagestream import LATEST, get_page
from fixtures.processes import cpu_seconds
from fixtures.programs import program
from fixtures.wait import wait_until

GIB = 1 << 30
# The contract (docs/decisions/0023-compaction.md).
SEARCHED, RECORDS, MOST_L0, GROWTH, SETTLED, IDLE_CPU = 8, 64, 12, 1.2, 60, 0.5
READS_PER_SECOND = 100
# Half of the transactions are pgbench's own, the others change neighboring rows: with the images of full pages, TPC-B
# alone would take an hour.
RANGE = r"""\set first random(1, 100000 * :scale - 100)
\set delta random(-5000, 5000)
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid BETWEEN :first AND :first + 99;
"""
# Bytes that must stay free on the disk.
FREE = 12 * GIB
# WAL that the server may keep for a pageserver that lags: the load waits then.
MOST_LAG = 2 * GIB
HISTOGRAMS = {"searched": "layers_per_read_global", "records": "deltas_per_read_global"}


def percentile(values, share: float):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] if values else None


class Reader(threading.Thread):
    """Reads random pages of the accounts, one after the other, and measures each."""

    def __init__(self, followed: Followed):
        super().__init__(daemon=True)
        self.followed, self.micros, self.failed = followed, [], []
        self.rel = rel_of(followed.postgres, "pgbench_accounts")
        self.blocks = int(followed.postgres.sql("SELECT pg_relation_size('pgbench_accounts') / 8192"))
        self.ends, self.chance = threading.Event(), random.Random(1)

    def run(self):
        try:
            with self.followed.timeline.stream(timeout=120) as stream:
                while not self.ends.wait(1 / READS_PER_SECOND):
                    began = time.monotonic()
                    page = stream.ask(get_page(self.rel, self.chance.randrange(self.blocks), LATEST, 1))
                    self.micros.append(int((time.monotonic() - began) * 1e6))
                    assert any(page), "an empty page"
        except Exception as error:  # Whatever it is, the run must not count.
            self.failed.append(repr(error))

    def take(self) -> list[int]:
        assert not self.failed, self.failed
        taken, self.micros = self.micros, []
        return taken


class Watch:
    """What the pageserver says of itself, from one sample to the next."""

    def __init__(self, followed: Followed, reader: Reader):
        self.followed, self.reader = followed, reader
        self.began = time.monotonic()
        self.samples, self.most_l0 = [], 0
        self.metrics = self.of_timeline()

    def of_timeline(self) -> dict[str, float]:
        return self.followed.pageserver.http.metrics()

    def p99(self, name: str, now: dict[str, float]) -> float:
        """The bound of the bucket in which the 99th of 100 pages is that were read since the last sample."""
        start = f'pageserver_{name}_bucket{{le="'
        bounds = [(float(key[len(start):-2]), value - self.metrics.get(key, 0)) for key, value in now.items()
                  if key.startswith(start)]
        bounds.sort()
        all_pages = bounds[-1][1]
        return next((bound for bound, count in bounds if all_pages and count >= 0.99 * all_pages), 0)

    def note_l0(self):
        self.most_l0 = max(self.most_l0, self.followed.timeline.info()["l0_layer_count"])

    def sample(self, wal: int) -> dict:
        info, now, reads = self.followed.timeline.info(), self.of_timeline(), self.reader.take()
        one = {
            "seconds": round(time.monotonic() - self.began, 1), "wal_mib": wal // MIB, "reads": len(reads),
            "read_p50_us": percentile(reads, 0.5), "read_p99_us": percentile(reads, 0.99),
            **{short: self.p99(name, now) for short, name in HISTOGRAMS.items()},
            "l0": info["l0_layer_count"], "height": info["height"], "layers": info["layer_count"],
            "stored_mib": stored(self.followed) // MIB, "rss_mib": round(self.followed.pageserver.memory_mib()),
            "debt_mib": round(total(now, "compaction_debt_bytes") / MIB),
        }
        self.metrics = now
        self.samples.append(one)
        return one


def total(metrics: dict[str, float], name: str, label="") -> float:
    """The sum of a metric over its labels, of those with `label` in them; a metric that is not there fails."""
    found = {key: value for key, value in metrics.items() if key.partition("{")[0] == f"pageserver_{name}"}
    assert found, f"no metric {name}"
    return sum(value for key, value in found.items() if label in key)


def stored(followed: Followed) -> int:
    return sum(file.stat().st_size for file in followed.pageserver.workdir.rglob("*") if file.is_file())


class Long(Bench):
    """One long run."""

    def run(self) -> dict:
        server = self.make_database("db", self.args.scale)
        server.configure(checkpoint_timeout="5min", max_wal_size="4GB", autovacuum="on")
        self.script = self.root / "range.sql"
        self.script.write_text(RANGE)
        server.own_file(self.script)
        server.stop()
        server.start()
        size = int(server.sql("SELECT pg_database_size('postgres')"))
        followed = self.follow_with(server)
        start = parse(followed.catch_up(7200))
        imported = stored(followed)
        reader = Reader(followed)
        reader.start()
        watch, moments, busy = Watch(followed, reader), [], 0.0
        for number in range(self.args.moments + 1):
            began = time.monotonic()
            self.load(followed, watch, start, self.args.wal_gib * GIB * (number + 1) // (self.args.moments + 1))
            busy += time.monotonic() - began
            if number < self.args.moments:
                moments.append(self.keep_moment(followed, number))
        end = parse(followed.catch_up(600))
        settled, idle = self.settle(followed, watch)
        info, metrics = followed.timeline.info(), self.metrics(followed)
        written = {kind: total(metrics, "compaction_written_bytes_total", f'"{kind}"')
                   for kind in ("sort", "merge", "image", "fold", "trim")}
        values = total(metrics, "timeline_value_bytes_total")
        flushed = total(metrics, "flushed_bytes_total")
        found = {
            "settings": self.args.set, "database_mib": size // MIB, "wal_mib": (end - start) // MIB,
            "values_mib": round(values / MIB), "wal_mib_per_s": round((end - start) / MIB / busy, 1),
            "imported_mib": imported // MIB, "stored_mib": stored(followed) // MIB,
            "most_l0": watch.most_l0, "settled_s": round(settled, 1), "idle_cpu_percent": round(idle, 2),
            "slowed_s": round(total(metrics, "compaction_slowed_seconds_total"), 1),
            "write_amplification": round((flushed + sum(written.values())) / values, 2),
            "written_per_value": {kind: round(count / values, 2) for kind, count in written.items()},
            "jobs": {kind: counts["jobs"] for kind, counts in info["compaction"].items()},
            "samples": watch.samples,
        }
        self.say(json.dumps({key: value for key, value in found.items() if key != "samples"}))
        found["verified"] = self.verify(followed, moments)
        return found

    def follow_with(self, server) -> Followed:
        settings = dict(one.split("=", 1) for one in self.args.set)
        settings = {name: int(value) if value.isdigit() else value for name, value in settings.items()}
        # The default is a directory as the bucket, on the same disk: everything would be there twice.
        return self.follow(server, keep=True, **{"remote_storage": "none", **settings})

    def metrics(self, followed) -> dict[str, float]:
        return followed.pageserver.http.metrics()

    def load(self, followed: Followed, watch: Watch, start: int, wal: int):
        """Changes until so much WAL has been written since `start`."""
        pg, next_sample = followed.postgres, time.monotonic()
        while (done := parse(pg.sql("SELECT pg_current_wal_flush_lsn()")) - start) < wal:
            bench = pg.popen("pgbench", *pg.address(), "-n", "-c", self.args.clients, "-T", 20, "-b", "tpcb-like@1",
                             "-f", f"{self.script}@1", "postgres")
            while bench.poll() is None:
                watch.note_l0()
                free = shutil.disk_usage(self.root).free
                assert free > FREE, f"only {free // MIB} MiB are free on the disk"
                if time.monotonic() >= next_sample:
                    next_sample += self.args.sample_seconds
                    one = watch.sample(parse(pg.sql("SELECT pg_current_wal_flush_lsn()")) - start)
                    self.say(json.dumps(one))
                time.sleep(0.2)
            behind = lambda: done_by(pg) - parse(followed.timeline.last_record_lsn())
            wait_until(lambda: behind() < MOST_LAG, 1800, what="the pageserver to catch up")
        followed.catch_up(1800)

    def keep_moment(self, followed: Followed, number: int) -> dict:
        """Stops the server, keeps its files, holds the moment, and makes a branch of it."""
        lsn = followed.stop_postgres(1800)  # Autovacuum goes on writing after the load.
        followed.timeline.wait_for_lsn(lsn, 600)
        archive = self.root / f"moment{number}.tar.zst"
        copy = ["tar", "-C", str(followed.postgres.data), "--exclude=./pg_wal/*", "-cf", "-", "."]
        with subprocess.Popen(copy, stdout=subprocess.PIPE) as tar:
            subprocess.run(["zstd", "-q", "-1", "-o", str(archive)], stdin=tar.stdout, check=True)
        assert tar.returncode == 0, "tar"
        ctl = self.ctl(followed)
        ctl.ok("hold", "create", f"moment-{number}", "--at", lsn)
        branch = number < self.args.branches
        if branch:
            ctl.ok("branch", "create", f"branch-{number}", "--at", lsn)
        followed.postgres.start()
        followed.wait_for_receiver("streaming", timeout=120)
        self.say(f"moment {number}: {lsn}, {archive.stat().st_size // MIB} MiB")
        return {"number": number, "lsn": lsn, "archive": archive, "branch": branch}

    def ctl(self, followed: Followed) -> Pagectl:
        from fixtures.retention import Remote

        return Remote(program("pagectl"), followed.timeline)

    def settle(self, followed: Followed, watch: Watch) -> tuple[float, float]:
        """The time until no work is due, and the percentage of one core that the pageserver takes afterwards. What is
        due depends on the cutoff: history is removed until that makes nothing due any more."""
        began, ctl = time.monotonic(), self.ctl(followed)

        def is_settled() -> bool:
            reason = followed.timeline.info()["compaction_error"]
            assert reason is None, f"what is due is not done: {reason}"
            return total(self.metrics(followed), "compaction_debt_bytes") == 0

        def jobs() -> int:
            return sum(counts["jobs"] for counts in followed.timeline.info()["compaction"].values())

        wait_until(is_settled, 3600, what="no debt")
        watch.reader.ends.set()
        watch.reader.join()
        watch.reader.take()
        followed.stop_postgres()
        done = -1
        while done != jobs():
            done = jobs()
            ctl.ok("gc", "--now")
            wait_until(is_settled, 3600, what="no debt after the removal of history")
        settled = time.monotonic() - began
        time.sleep(5)
        pid, before = followed.pageserver.process.pid, cpu_seconds(followed.pageserver.process.pid)
        time.sleep(self.args.idle_seconds)
        return settled, 100 * (cpu_seconds(pid) - before) / self.args.idle_seconds

    def verify(self, followed: Followed, moments: list[dict]) -> list[dict]:
        lsn = followed.postgres.checkpoint_lsn()
        self.pageserver.stop()
        found = [self.verify_one(followed, followed.postgres.data, "tip", "main", None)]
        followed.postgres.destroy()
        for moment in moments:
            files = self.root / "files"
            files.mkdir()
            subprocess.run(["tar", "-C", files, "--zstd", "-xf", moment["archive"]], check=True)
            (files / "pg_wal").mkdir(exist_ok=True)
            moment["archive"].unlink()
            found.append(self.verify_one(followed, files, f"moment {moment['number']}", "main", moment["lsn"]))
            if moment["branch"]:
                name = f"branch-{moment['number']}"
                found.append(self.verify_one(followed, files, name, name, moment["lsn"]))
            shutil.rmtree(files)
        self.say(f"verified {len(found)} at the end of {lsn}")
        return found

    def verify_one(self, followed: Followed, files: Path, what: str, branch: str, lsn: str | None) -> dict:
        began = time.monotonic()
        answer = self.verify_files(followed.timeline, files, branch=None if branch == "main" else branch, lsn=lsn)
        self.say(f"{what}: {json.dumps(answer)}, {time.monotonic() - began:.0f} s")
        return {"what": what, **{name: answer[name] for name in ("lsn", "compared", "equal", "different")}}


def done_by(pg) -> int:
    return parse(pg.sql("SELECT pg_current_wal_flush_lsn()"))


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=5200 // MIB_PER_SCALE, help="pgbench's scale: 15 MiB each")
    parser.add_argument("--wal-gib", type=int, default=19, help="19 are 20.4 GB")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--moments", type=int, default=5)
    parser.add_argument("--branches", type=int, default=3)
    parser.add_argument("--sample-seconds", type=float, default=10)
    parser.add_argument("--idle-seconds", type=float, default=60)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the pageserver")
    return with_place(parser)


def main():
    args = parse_args()
    bench = Long(args)
    bench.validity = artifact.Validity("pages")
    topology = artifact.topology(args.dir, profile=os.environ.get("TEST_PROFILE", "release"))
    try:
        found = bench.run()
    finally:
        bench.clean()
    print(json.dumps(found))
    if args.out:
        path = args.out / "compaction-postgres.json"
        artifact.refusing(lambda: artifact.write(path, topology, bench.validity, found))


if __name__ == "__main__":
    main()
