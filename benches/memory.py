#!/usr/bin/env python3
"""What memory a pageserver takes, whether it slows down as its store grows, and what a crash costs.

Per size of database: a pageserver follows it, with a directory as its bucket and a local disk that is smaller than the
store. It is restarted and sampled while idle, then after random reads that fill its caches. Then the server writes WAL,
a step at a time, while the pageserver is stopped by a signal; the time that it then takes to catch up is its own, and
the process is the same throughout, so that whatever piles up in it is seen. After the last step and whatever
compaction is due, it is sampled idle and loaded once more. At the end it is killed several times with an open layer
that is nearly full, and has to get back to where it was. Each sample has what the process takes according to the system
beside what its metrics account for. Nothing counts unless `verify` then finds every page of the server's files.

WAL that the server keeps, and the disk taken in all (--most-gib), are bounded; a run that needs more fails. Nothing is
left behind but memory.json.
"""

import argparse
import json
import os
import random
import shutil
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import artifact
from compaction import RANGE, total
from compute_figures import MIB, MIB_PER_SCALE, Bench, with_place
from fixtures.followed import Followed, rel_of
from fixtures.load import end_bench
from fixtures.lsn import parse
from fixtures.pagestream import LATEST, get_page
from fixtures.processes import forget_peak, peak_rss_mib, rss_mib, status
from fixtures.s3 import DirectoryStore
from fixtures.stored import disk_usage
from fixtures.wait import wait_until
from wal_intake import TICK, Clock

PREFIX = "store"
# The defaults that memory depends on, stated so that the report can say what was allowed.
LIMITS = {"page_cache_size": 8192, "block_cache_memory": 96 * MIB, "compaction_memory": 96 * MIB,
          "checkpoint_distance": 256 * MIB, "ephemeral_memory": 768 * MIB, "ephemeral_keep_bytes": 16 * MIB}
# What memory is used for, as the label of `pageserver_memory_bytes` has it. A use without a metric is unexplained.
USES = ("page_cache", "in_memory_index", "buffers")
# What the allocator says: what it was asked for, and what of it is in memory.
STATES = ("allocated", "resident")
# WAL that the server may keep for the pageserver, besides the step that it has just written.
KEPT_MIB = 2048
# The open layer is killed once it is this full.
FILLED = 0.7
# Blanks would nearly vanish in the store.
FILLER = "md5(aid::text) || md5((-aid)::text) || left(md5((7 * aid)::text), 20)"
SAMPLE_SECONDS, IDLE_SECONDS = 0.1, 10
FREE_GIB = 4
# Of a file of a relation.
SEGMENT_BLOCKS = 131_072


def is_empty(server, block: int) -> bool:
    """Whether a page of pgbench_accounts is one that the server has added, and put nothing into."""
    segment, at = divmod(block, SEGMENT_BLOCKS)
    path = "pg_relation_filepath('pgbench_accounts')" + (f" || '.{segment}'" if segment else "")
    server.sql("CHECKPOINT")
    found = server.sql(f"SELECT pg_read_binary_file({path}, {at * 8192}, 8192) = decode(repeat('00', 8192), 'hex')")
    return found.strip() == "t"


class Memory(Bench):
    """A bench whose pageserver is watched."""

    filler = FILLER

    def of_size(self, mib: int) -> dict:
        server = self.make_database(f"db{mib}", max(1, round(mib / MIB_PER_SCALE)))
        bucket = DirectoryStore(self.root / f"bucket{mib}")
        try:
            self.prepare(server)
            size = int(server.sql("SELECT pg_database_size('postgres')"))
            budget = {"disk_budget": self.args.disk_budget_mib * MIB, **LIMITS}
            followed = self.follow(server, keep=True, **budget, **bucket.settings(PREFIX))
            return {"database_mib": round(size / MIB), **self.measure(followed, bucket)}
        finally:
            server.destroy()
            self.detach()
            bucket.destroy()

    def prepare(self, server):
        """The server keeps little WAL, and does not give up on a pageserver that sleeps."""
        server.stop()
        server.configure(max_wal_size="1GB", wal_sender_timeout=0, checkpoint_timeout="5min",
                         max_slot_wal_keep_size=f"'{self.args.step_mib + KEPT_MIB}MB'")
        server.start()
        self.script = self.root / "range.sql"
        self.script.write_text(RANGE)
        server.own_file(self.script)

    def measure(self, followed: Followed, bucket) -> dict:
        imported, samples = self.settled(followed, bucket), self.idle_and_loaded(followed, "before")
        steps = []
        while len(steps) * self.args.step_mib < max(self.args.wal_mib):
            steps.append(self.step(followed))
            steps[-1]["stored_mib"] = stored_mib(bucket)
            self.say(json.dumps(steps[-1]))
            self.check_disk()
        stored = self.settled(followed, bucket)
        samples += self.idle_and_loaded(followed, "after")
        kills = [self.kill(followed) for _ in range(self.args.kills)]
        lsn = followed.stop_postgres()
        followed.timeline.wait_for_lsn(lsn, 600)
        self.pageserver.stop()
        self.verify_files(followed.timeline, followed.postgres.data)
        return {"imported_mib": imported, "stored_mib": stored, "samples": samples, "steps": steps, "kills": kills}

    def check_disk(self):
        taken, free = disk_usage(self.root) >> 30, shutil.disk_usage(self.root).free >> 30
        assert taken < self.args.most_gib, f"{taken} GiB of disk are taken: see --most-gib"
        assert free >= FREE_GIB, f"only {free} GiB are free on the disk"

    def settled(self, followed: Followed, bucket) -> int:
        """Waits until everything is in the bucket and no compaction is due; returns the MiB that the bucket has."""
        followed.catch_up(1800)
        self.pageserver.http.put(f"{followed.timeline.path}/checkpoint", timeout=600)

        def is_due() -> dict[str, float]:
            metrics = self.pageserver.http.metrics()
            return {name: due for name in ("compaction_debt_bytes", "upload_queue_layers", "compaction_failing")
                    if (due := total(metrics, name))}

        # A job that found too little room on the disk is tried again once uploads have made some.
        wait_until(lambda: not is_due(), 1800, every=0.5, what="the end of all uploads and jobs")
        return stored_mib(bucket)

    def sample(self, followed: Followed, what: str) -> dict:
        """What the process takes, and what its metrics know of."""
        metrics, info, pid = self.pageserver.http.metrics(), followed.timeline.info(), self.pageserver.process.pid
        used = {use: mib_of(metrics, f'pageserver_memory_bytes{{use="{use}"}}') for use in USES}
        used["block_cache"] = round(total(metrics, "block_memory_bytes") / MIB, 1)
        program = status(pid, "RssFile") + status(pid, "RssShmem")
        return {"what": what, "layers": info["layer_count"], "rss_mib": round(rss_mib(pid), 1),
                "program_mib": round(program / 1024, 1), "used_mib": used,
                "allocator_mib": {state: mib_of(metrics, f'pageserver_allocator_bytes{{state="{state}"}}')
                                  for state in STATES}}

    def idle_and_loaded(self, followed: Followed, when: str) -> list[dict]:
        """Samples of a process that has just been started, and of the same after many reads."""
        self.pageserver.restart()
        followed.wait_for_receiver("streaming", timeout=120)
        time.sleep(IDLE_SECONDS)
        idle = self.sample(followed, f"idle {when}")
        rel, chance = rel_of(followed.postgres, "pgbench_accounts"), random.Random(1)
        blocks = int(followed.postgres.sql("SELECT pg_relation_size('pgbench_accounts') / 8192"))
        numbers = [chance.randrange(blocks) for _ in range(self.args.reads)]
        with followed.timeline.stream(timeout=120) as stream:
            pages = stream.pipelined(get_page(rel, number, LATEST, 1) for number in numbers)
            empty = [number for number, page in zip(numbers, pages, strict=True) if not any(page)]
        lost = [number for number in empty if not is_empty(followed.postgres, number)]
        assert not lost, f"pages {lost} are empty, but not in the server's files"
        loaded = self.sample(followed, f"loaded {when}")
        self.say(json.dumps([idle, loaded]))
        return [idle, loaded]

    def write(self, server, until):
        """Changes until `until` says that it is enough."""
        bench = server.popen("pgbench", *server.address(), "-n", "-c", self.args.clients, "-T", 3600, "-b",
                             "tpcb-like@1", "-f", f"{self.script}@1", "postgres")
        try:
            while not until():
                assert bench.poll() is None, f"pgbench ended with {bench.returncode}"
                time.sleep(TICK)
        finally:
            end_bench(server, bench)

    @contextmanager
    def asleep(self):
        """The pageserver does nothing for the duration of the block."""
        pid = self.pageserver.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def step(self, followed: Followed) -> dict:
        """Takes in one step of WAL."""
        server, pid = followed.postgres, self.pageserver.process.pid
        start, slowed = position(server), self.slowed()
        with self.asleep():
            self.write(server, lambda: position(server) - start >= self.args.step_mib * MIB)
            end = position(server)
            forget_peak(pid)
        clock, samples, due = Clock(start, end), [], 0.0
        while not clock.sees_end(parse(followed.timeline.last_record_lsn())):
            if time.monotonic() >= due:
                samples.append(self.sample(followed, "intake"))
                due = time.monotonic() + SAMPLE_SECONDS
            time.sleep(TICK)
        highest = max(samples, key=lambda one: one["rss_mib"])
        return {"wal_mib": round((end - start) / MIB), **clock.rate(), "peak_mib": round(peak_rss_mib(pid), 1),
                "slowed_s": round(self.slowed() - slowed, 3), "layers": followed.timeline.info()["layer_count"],
                "sample": highest}

    def slowed(self) -> float:
        """Seconds for which intake had to wait for compaction, or for room on the disk."""
        metrics = self.pageserver.http.metrics()
        return sum(metrics[f"pageserver_{why}_slowed_seconds_total"] for why in ("compaction", "intake"))

    def kill(self, followed: Followed) -> dict:
        """Kills the pageserver with a nearly full open layer, and has it get back to where it was."""
        open_bytes = self.fill(followed)
        end, info = position(followed.postgres), followed.timeline.info()
        self.pageserver.kill()
        began = time.monotonic()
        self.pageserver.start()
        up = time.monotonic() - began
        wait_until(lambda: parse(followed.timeline.last_record_lsn()) >= end, 600, every=TICK, what="the recovery")
        seconds = time.monotonic() - began
        found = {"open_mib": round(open_bytes / MIB, 1), "seconds": round(seconds, 3), "up_s": round(up, 3),
                 "slowed_s": round(self.slowed(), 3),
                 "wal_mib": round((end - parse(info["disk_consistent_lsn"])) / MIB, 1),
                 "peak_mib": round(peak_rss_mib(self.pageserver.process.pid), 1)}
        self.say(json.dumps(found))
        return found

    def fill(self, followed: Followed) -> int:
        """Writes until the open layer is nearly full; returns its bytes."""
        enough = FILLED * LIMITS["checkpoint_distance"]

        def taken() -> float:
            return total(self.pageserver.http.metrics(), "timeline_ephemeral_bytes")

        for _ in range(5):
            self.pageserver.http.put(f"{followed.timeline.path}/checkpoint", timeout=600)
            self.write(followed.postgres, lambda: taken() >= enough)
            followed.catch_up(600)
            # Unless it became full before the last session ended, and was written out.
            if (found := taken()) >= enough:
                return found
        raise AssertionError("no open layer stays nearly full")


def position(server) -> int:
    return parse(server.sql("SELECT pg_current_wal_flush_lsn()"))


def stored_mib(bucket) -> int:
    return sum(bucket.objects(PREFIX).values()) // MIB


def mib_of(metrics: dict[str, float], name: str) -> float | None:
    """A metric, if there is such a one."""
    return round(metrics[name] / MIB, 1) if name in metrics else None


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, nargs="+", default=[1024, 5120], help="sizes of databases")
    parser.add_argument("--wal-mib", type=int, nargs="+", default=[1024, 4096], help="WAL after which figures are told")
    parser.add_argument("--step-mib", type=int, default=1024, help="WAL that is written and then taken in at once")
    parser.add_argument("--reads", type=int, default=60_000, help="pages to read before a sample of a loaded server")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--disk-budget-mib", type=int, default=4096, help="local disk of the pageserver")
    parser.add_argument("--most-gib", type=int, default=36, help="disk that the run may take")
    return with_place(parser)


def main():
    args = parse_args()
    bench = Memory(args)
    bench.validity = artifact.Validity("pages")
    topology = artifact.topology(args.dir, profile=os.environ.get("TEST_PROFILE", "release"),
                                 store="directory on the same disk")
    results = {"pg_major": args.pg_major, "limits": LIMITS, "disk_budget_mib": args.disk_budget_mib,
               "step_mib": args.step_mib, "told_wal_mib": args.wal_mib, "reads": args.reads}
    try:
        results["sizes"] = [bench.of_size(mib) for mib in args.mib]
    finally:
        bench.clean()
    print(json.dumps(results))
    if args.out:
        artifact.refusing(lambda: artifact.write(Path(args.out) / "memory.json", topology, bench.validity, results))


if __name__ == "__main__":
    main()
