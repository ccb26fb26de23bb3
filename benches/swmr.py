#!/usr/bin/env python3
"""One writer, many readers: what readers cost the writer, and what the place of the bucket costs the readers.

A stock Postgres is followed by a pageserver whose disk may hold only a part of what is stored. In each round pgbench
writes alone, then beside readers, or the other way round, each time from a checkpoint on. Readers are processes that
ask the page service for pages of pgbench_accounts, at most --per-second times a second each:

* head light, head heavy: one page, 1,024 random pages, at the newest LSN;
* pinned light, pinned heavy: the same as of one LSN, which a lease keeps.

Commits of a followed server do not wait for the pageserver. So the writer's rate counts until the pageserver has taken
all of it in: transactions by the seconds from the start of pgbench until its last WAL can be read.

Each pinned page is compared with the hash that it had when the lease began. After the first round all history before
the newest goes, but for the leased LSN, and every page of the table as of it is compared. Of pages at the head the LSN
may not go back, and some are read again as of their own LSN. (The page service sends pages without checksums, so
those of the cluster are not checked here.) At the end every page is compared with the server's files. Nothing is left
behind but swmr.json.
"""

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import artifact
from bucketed import PREFIX, OfNoise, drop_slots, link_rate, settings, topologies, with_topologies
from compaction import cpu_seconds, percentile
from compute_figures import MIB, MIB_PER_SCALE, with_place
from fixtures.followed import Followed, rel_of
from fixtures.lsn import parse
from fixtures.pagectl import Pagectl
from fixtures.pageserver import Pageserver
from fixtures.pagestream import get_page
from fixtures.programs import program
from fixtures.retention import Remote
from fixtures.s3 import KINDS
from fixtures.stored import wait_uploaded
from fixtures.wait import wait_until
from swmr_reader import DIGEST, Job, digests, run

HEAVY = 1024
# Readers: whether they are pinned, and pages of a read.
READERS = {"head light": (False, 1), "head heavy": (False, HEAVY), "pinned light": (True, 1),
           "pinned heavy": (True, HEAVY)}
CLIENTS = 2
WRITER = {"fsync": "on", "max_wal_size": "4GB", "checkpoint_timeout": "30min", "shared_buffers": "128MB"}
# WAL whose history stays when the rest goes.
KEPT = 64 << 10
PROCESSED = re.compile(r"number of transactions actually processed: (\d+)")
SAMPLE_SECONDS = 0.5


def busy_seconds() -> float:
    """Processor time that the machine has spent on anything."""
    user, nice, system, idle, waiting, *other = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:8])
    return (user + nice + system + sum(other)) / os.sysconf("SC_CLK_TCK")


class Swmr(OfNoise):
    """One database, and each topology in turn."""

    def __init__(self, args):
        super().__init__(args)
        # Other processes than this one's threads, and none that a fork would leave a link's locks in.
        self.pool = ProcessPoolExecutor(len(READERS) * args.readers, multiprocessing.get_context("spawn"))
        list(self.pool.map(time.sleep, [1.0] * len(READERS) * args.readers))

    def run(self, places) -> dict:
        server = self.make_database("db", max(1, round(self.args.mib / MIB_PER_SCALE)))
        server.stop()
        server.configure(**{name: f"'{value}'" for name, value in WRITER.items()})
        server.start()
        size = int(server.sql("SELECT pg_database_size('postgres')"))
        return {"database_mib": round(size / MIB), "places": [self.of_place(server, size, place) for place in places]}

    def of_place(self, server, size: int, place) -> dict:
        bucket = KINDS[place.kind](self.root / f"bucket-{place.name}")
        try:
            with settings(bucket.start(), place.delay) as reached:
                followed = self.follow_from(server, place, reached)
                stored = sum(bucket.objects(PREFIX).values())
                self.must_not_compress(size, stored)
                found = {"topology": place.name, "bucket_mib": round(stored / MIB), **self.measure(followed)}
                found["bucket_mib_after"] = round(sum(bucket.objects(PREFIX).values()) / MIB)
                found["verified"] = self.verify(followed)
                self.say(f"{place.name}: {json.dumps(found)}")
                return found
        finally:
            self.detach()
            bucket.destroy()

    def follow_from(self, server, place, reached: dict) -> Followed:
        # History goes only when `forget_history` asks for it: not while pages are read again.
        history = {"history_max_bytes": KEPT, "gc_horizon": KEPT, "gc_period": "1000days",
                   "gc_pause_after_attach": "1ms", "lsn_lease_length": "1h"}
        self.pageserver = Pageserver(program("pageserver"), self.root / f"store-{place.name}", **reached, **history,
                                     disk_budget=self.args.budget_mib * MIB).start()
        followed = Followed(server, self.pageserver, self.pageserver.follow(server, timeout=3600))
        wait_uploaded(followed, followed.catch_up(3600), 3600)
        return followed

    def measure(self, followed: Followed) -> dict:
        rel = rel_of(followed.postgres, "pgbench_accounts")
        blocks = int(followed.postgres.sql("SELECT pg_relation_size('pgbench_accounts') / 8192"))
        lsn = followed.catch_up(600)
        timeline = followed.timeline
        with self.pageserver.connect() as connection:
            [[until]] = connection.rows(f"lease lsn {timeline.tenant} {timeline.id} {lsn}")
        assert until, f"no lease of {lsn}"
        with timeline.stream(timeout=120) as stream:
            self.wanted = digests(stream, rel, blocks, parse(lsn))
        job = Job("", self.pageserver.pg_port, timeline.tenant, timeline.id, rel, blocks, parse(lsn), 0, 1,
                  self.args.per_second, 0, self.args.seconds, "")
        rounds = []
        for number in range(self.args.rounds):
            one = {}
            for readers in (False, True) if number % 2 else (True, False):
                one["beside" if readers else "alone"] = self.window(followed, job if readers else None, number)
            rounds.append(one)
            self.say(json.dumps(one))
            if not number:
                forgotten = self.forget_history(followed, job)
        return {"rounds": rounds, "forgotten": forgotten, "rss_mib": round(self.pageserver.memory_mib())}

    def forget_history(self, followed: Followed, job: Job) -> dict:
        """Everything before the newest LSNs goes, except the leased one. All of its pages must be what they were."""
        timeline, ctl = followed.timeline, Remote(program("pagectl"), followed.timeline)
        self.pageserver.http.put(f"{timeline.path}/checkpoint", timeout=600)

        def is_gone() -> bool:
            # What is not sorted keeps the cutoff from being later, and is sorted next.
            reports = ctl.json("gc", "--now")["timelines"]
            self.say(f"history before {reports[0]['cutoff']} went; more is bound by {reports[0]['bound_by']}")
            # Where the disk has no room for it just now, it is tried again.
            ctl.run("compact", "--now")
            return parse(timeline.info()["min_readable_lsn"]) > job.lsn

        wait_until(is_gone, 300, every=1, what="the end of the history of the leased LSN")
        cutoff = parse(timeline.info()["min_readable_lsn"])
        with timeline.stream(timeout=120) as stream:
            between = (job.lsn + cutoff) // 2
            refusal = stream.refusal(get_page(job.rel, 0, between, between))
            assert "history below" in refusal, refusal
            now = digests(stream, job.rel, job.blocks, job.lsn)
        places = range(0, len(self.wanted), DIGEST)
        differ = sum(now[at : at + DIGEST] != self.wanted[at : at + DIGEST] for at in places)
        self.validity.add(expected=job.blocks, seen=len(now) // DIGEST, different=differ)
        removed = self.pageserver.http.metrics()["pageserver_gc_removed_layers_total"]
        return {"layers": int(removed), "pages": job.blocks, "different": differ}

    def window(self, followed: Followed, job: Job | None, number: int) -> dict:
        """pgbench for a while, alone or beside readers, until all that it wrote can be read."""
        pg, pid = followed.postgres, self.pageserver.process.pid
        pg.sql("CHECKPOINT")
        since = parse(followed.catch_up(600))
        reading = self.start_readers(replace(job, since=since), number) if job else []
        with pg.session() as session:
            busy, server = busy_seconds(), cpu_seconds(pid)
            began, lag = time.monotonic(), []
            bench = pg.popen("pgbench", *pg.address(), "-n", "-c", CLIENTS, "-T", self.args.seconds, "postgres",
                             stdout=subprocess.PIPE, text=True)
            while bench.poll() is None:
                time.sleep(SAMPLE_SECONDS)
                written = parse(session.sql("SELECT pg_current_wal_flush_lsn()"))
                lag.append(max(0, written - parse(followed.timeline.last_record_lsn())))
            wrote = time.monotonic() - began
            followed.catch_up(1800)
            all_of_it = time.monotonic() - began
            cores = {"busy": busy_seconds() - busy, "server": cpu_seconds(pid) - server}
        said = PROCESSED.search(bench.stdout.read())
        assert bench.returncode == 0 and said, f"pgbench ended with {bench.returncode}"
        found = {"transactions": int(said[1]), "tps": round(int(said[1]) / wrote, 1),
                 "taken_in_per_s": round(int(said[1]) / all_of_it, 1), "caught_up_s": round(all_of_it - wrote, 2),
                 "lag_mib": round(max(lag) / MIB, 1),
                 "cores": {name: round(spent / all_of_it, 2) for name, spent in cores.items()}}
        if reading:
            found["readers"] = self.read_by(reading)
        return found

    def start_readers(self, job: Job, number: int) -> list:
        begins, started = time.monotonic() + 0.3, []
        for name, (pinned, pages) in READERS.items():
            for one in range(self.args.readers):
                own = replace(job, name=name, lsn=job.lsn if pinned else None, pages=pages, begins=begins,
                              seed=f"{name} {one} {number}")
                started.append((name, self.pool.submit(run, own, self.wanted if pinned else b"")))
        return started

    def read_by(self, reading: list) -> dict:
        """What readers of each kind have read."""
        found = {}
        for name in READERS:
            got = [future.result(600) for who, future in reading if who == name]
            for one in got:
                self.validity.add(expected=one["asked"], seen=one["seen"], different=one["different"])
            ms = [each for one in got for each in one["ms"]]
            assert ms, f"{name} has read nothing"
            found[name] = {
                "reads": len(ms), "per_s": round(len(ms) / self.args.seconds / len(got), 2),
                "p50_ms": round(percentile(ms, 0.5), 3), "p95_ms": round(percentile(ms, 0.95), 3),
                "max_ms": round(max(ms), 3), "again": sum(one["again"] for one in got),
                "cores": round(sum(one["cpu_s"] for one in got) / self.args.seconds, 2)}
        return found

    def verify(self, followed: Followed) -> dict:
        """Compares everything with the server's files, and lets the server go."""
        server = followed.postgres
        followed.timeline.wait_for_lsn(followed.stop_postgres(), 600)
        self.pageserver.stop()
        words = ["verify", "--pgdata", server.data, "--tenant", followed.timeline.tenant, "--timeline",
                 followed.timeline.id]
        done = Pagectl(program("pagectl"), self.pageserver.workdir).run("--json", *words, timeout=3600)
        answer = json.loads(done.stdout)
        self.validity.add(expected=answer["compared"], seen=answer["compared"], different=answer["different"])
        server.start()
        drop_slots(server)
        return {name: answer[name] for name in ("compared", "equal", "different")}

    def clean(self):
        self.pool.shutdown(cancel_futures=True)
        super().clean()


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="size of the database")
    parser.add_argument("--budget-mib", type=int, default=256, help="disk_budget of the pageserver")
    parser.add_argument("--rounds", type=int, default=3, help="for each topology, each alone and beside readers")
    parser.add_argument("--seconds", type=int, default=20, help="that pgbench writes, twice in each round")
    parser.add_argument("--readers", type=int, default=1, help="of each kind")
    parser.add_argument("--per-second", type=float, default=10, help="reads of each reader, at most")
    with_topologies(parser)
    return with_place(parser)


def main():
    args = parse_args()
    places = topologies(args.topology, args.store)
    delays = sorted({place.delay for place in places})
    where = artifact.topology(args.dir, profile=os.environ.get("TEST_PROFILE", "release"), delay_ms=delays,
                              store=f"a directory; S3 server ({args.store}) on the same machine")
    bench = Swmr(args)
    bench.validity = artifact.Validity("pages")
    results = {"pg_major": args.pg_major, "clients": CLIENTS, "heavy": HEAVY, "budget_mib": args.budget_mib,
               "seconds": args.seconds, "readers_of_each": args.readers, "per_second": args.per_second,
               "link_mib_per_s": link_rate(max(delays))}
    try:
        results.update(bench.run(places))
    finally:
        bench.clean()
    print(json.dumps(results))
    if args.out:
        artifact.refusing(lambda: artifact.write(args.out / "swmr.json", where, bench.validity, results))


if __name__ == "__main__":
    main()
