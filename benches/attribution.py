#!/usr/bin/env python3
"""Where the time of the write path goes: WAL of pgbench, from the connection to the bucket, by tasks and their stages.

A primary keeps its WAL. A pageserver follows it and is stopped, a copy of its store also goes to an S3 server, and
pgbench writes WAL. Then, alternating and several times, a copy of one of the stores is started and has to catch up: on
the local disk alone, and with the bucket behind a link that delays each request as --delays says. The server says on
what its tasks have spent their time (`pageserver_ingest_stage_seconds_total`); what they took altogether is measured
apart from that: here, for tasks that run all the time, and for seals and uploads by timers around the whole. The stages
of a task must account for that. In the end all stores must have the same digest, and every page of the last one is
compared with the primary's files.

The link is a Python program on the same cores, so its own rate is measured first.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import artifact
from report_attribution import STAGES, STREAMING, check
from wal_intake import MIB, PRIMARY, TICK, Bench, cpu_seconds

from fixtures.followed import Followed
from fixtures.lsn import parse, show
from fixtures.pageserver import Pageserver, Timeline
from fixtures.programs import program
from fixtures.s3 import BUCKET, KINDS
from fixtures.slow_link import SlowLink
from fixtures.stored import wait_uploaded
from fixtures.wait import wait_until

PREFIX = "store"
NO_BUCKET = {"remote_storage": "none"}
STAGE = "pageserver_ingest_stage_seconds_total"
# Timers around tasks that do not run all the time.
WHOLE = {"seal": "layer flush", "upload": "publication"}
LINK_BYTES = 256 * MIB


def by_label(samples: dict, name: str, label: str) -> dict[str, float]:
    """The samples of a metric by the value of its only label."""
    head = f'{name}{{{label}="'
    return {key[len(head):-2]: value for key, value in samples.items() if key.startswith(head)}


def link_rate() -> float:
    """MiB/s that the link forwards when nothing is delayed, to a reader that only counts."""
    with socket.create_server(("127.0.0.1", 0)) as sink:
        counted = []

        def count():
            with sink.accept()[0] as taken:
                counted.append(sum(iter(lambda: len(taken.recv(MIB)), 0)))

        reader = threading.Thread(target=count, daemon=True)
        reader.start()
        with SlowLink.to_port(sink.getsockname()[1], 0).open() as link:
            started = time.monotonic()
            with socket.create_connection(("127.0.0.1", link.port)) as sender:
                for _ in range(LINK_BYTES // MIB):
                    sender.sendall(bytes(MIB))
                sender.shutdown(socket.SHUT_WR)
                # The link has passed on everything, and ended both directions.
                sender.recv(1)
            reader.join(120)
            seconds = time.monotonic() - started
    if counted != [LINK_BYTES]:
        raise artifact.Refused(f"the link forwarded {counted} bytes of {LINK_BYTES}")
    return LINK_BYTES / MIB / seconds


class Attribution(Bench):
    def __init__(self, args, validity: artifact.Validity):
        super().__init__(args, True, validity)
        self.bucket = KINDS[args.store](self.root / "bucket")
        self.digest = None

    def prepare(self):
        self.primary.init(**PRIMARY, full_page_writes="on").start().bench_init(self.args.scale)
        self.pageserver = Pageserver(program("pageserver"), self.root / "local", **NO_BUCKET).start()
        self.timeline = self.pageserver.follow(self.primary)
        Followed(self.primary, self.pageserver, self.timeline).catch_up()
        self.pageserver.stop()
        # Another base backup would have other hint bits, and so another digest.
        settings = self.bucket.start().settings(PREFIX)
        self.pageserver = Pageserver(program("pageserver"), self.copy(self.root / "local", "s3"), **settings).start()
        timeline = Timeline(self.pageserver, self.timeline.tenant, self.timeline.id)
        followed = Followed(self.primary, self.pageserver, timeline)
        wait_uploaded(followed, followed.catch_up())
        self.pageserver.stop()
        self.copy(self.objects(), "objects")

    def objects(self) -> Path:
        """Where the S3 server keeps the objects."""
        return self.bucket.place / "data" / BUCKET

    @contextmanager
    def started(self, delay: float | None):
        """A copy of the store as it was before pgbench, started; with the bucket as it was, unless `delay` is None."""
        place = self.copy(self.root / ("local" if delay is None else "s3"), "copy")
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, place)
            settings = NO_BUCKET
            if delay is not None:
                shutil.rmtree(self.objects())
                subprocess.run(["cp", "-a", self.root / "objects", self.objects()], check=True)
                # Half of the delay on the way there, half of it on the way back.
                link = stack.enter_context(SlowLink.to_port(self.bucket.port, delay / 2000).open())
                settings = {**self.bucket.settings(PREFIX), "remote_storage_endpoint": f"http://127.0.0.1:{link.port}"}
            self.pageserver = Pageserver(program("pageserver"), place, **settings)
            stack.callback(self.pageserver.destroy)
            self.pageserver.start()
            yield Timeline(self.pageserver, self.timeline.tenant, self.timeline.id)

    def scrape(self) -> tuple[float, dict[str, float], float]:
        """Now, all metrics, and the processor time of the pageserver until now."""
        return time.monotonic(), self.pageserver.http.metrics(), cpu_seconds(self.pageserver.process.pid)

    def first_wal(self):
        found = self.scrape()
        return found if found[1]["pageserver_wal_ingest_bytes_received_total"] > 0 else None

    def end_stages(self, timeline: Timeline):
        """Has every task leave the stage that it is in, which counts only then: with one more record of WAL.

        Those that had nothing left to do have waited for as long as the last one took.
        """
        reached = timeline.last_record_lsn()
        self.primary.sql("SELECT pg_logical_emit_message(true, '', '')")
        while timeline.last_record_lsn() == reached:
            time.sleep(TICK)

    def run(self, delay: float | None, end: int, last: bool) -> dict:
        with self.started(delay) as timeline:
            began = wait_until(self.first_wal, 60, every=TICK, what="WAL")
            while parse(timeline.last_record_lsn()) < end:
                time.sleep(TICK)
            self.end_stages(timeline)
            arrived = self.scrape()
            self.pageserver.http.put(f"{timeline.path}/checkpoint", timeout=600)
            durable = time.monotonic()
            followed = Followed(self.primary, self.pageserver, timeline)
            if delay is not None:
                wait_uploaded(followed, show(end), 600)
            found = {**attribute(began, arrived, self.scrape()), "durable_s": durable - began[0],
                     "uploaded_s": time.monotonic() - began[0]}
            found["mib_per_s"] = found["mib"] / found["durable_s"]
            if last:
                self.compare(timeline)
            self.pageserver.stop()
            self.compare_digest(timeline, end)
            return found

    def compare_digest(self, timeline: Timeline, end: int):
        digest = timeline.store(program("pagectl")).digest(show(end))
        self.digest = self.digest or digest
        self.validity.equal(digest, self.digest)

    def measure(self) -> dict:
        places = [None, *self.args.delays]
        runs = {place: [] for place in places}
        link = link_rate()
        print(f"  the link forwards {link:.0f} MiB/s", file=sys.stderr)
        self.prepare()
        start, end = self.load()
        for number in range(self.args.rounds):
            for place in places:
                last = number + 1 == self.args.rounds and place == places[-1]
                runs[place].append(self.run(place, end, last))
                told = {key: runs[place][-1][key] for key in ("mib_per_s", "intake_s", "durable_s", "uploaded_s")}
                print(f"  round {number + 1}, delay {place}: {json.dumps(told)}", file=sys.stderr)
        return {"scale": self.args.scale, "wal_mib": (end - start) / MIB, "link_mib_per_s": link,
                "topologies": [{"delay_ms": place, "rounds": found} for place, found in runs.items()]}

    def clean(self):
        self.bucket.destroy()
        super().clean()


def attribute(began, arrived, ended) -> dict:
    """What one run spent its time on. `began` is with the first WAL, `arrived` with the last, `ended` when all is safe.

    Tasks that run all the time are looked at while WAL arrives; seals and uploads from the start of the process, so
    that each of them counts as a whole.
    """
    stages = {name: by_label(samples, STAGE, "stage")
              for name, (_, samples, _) in (("began", began), ("arrived", arrived), ("ended", ended))}
    streaming = {stage for task in STREAMING for stage in STAGES[task]}
    seconds = {stage: stages["arrived"][stage] - stages["began"][stage] if stage in streaming else value
               for stage, value in stages["ended"].items()}
    timers = by_label(ended[1], "pageserver_storage_operations_seconds_global_sum", "operation")
    intake = arrived[0] - began[0]
    walls = {**{task: intake for task in STREAMING}, **{task: timers[name] for task, name in WHOLE.items()}}

    def more(name: str) -> float:
        return arrived[1][name] - began[1][name]

    return {"intake_s": intake, "stages": seconds, "walls": walls, "cpu_s": ended[2] - began[2],
            "mib": more("pageserver_wal_ingest_bytes_received_total") / MIB,
            "records": more("pageserver_wal_ingest_records_received_total"),
            "uploaded_mib": ended[1]['pageserver_remote_storage_bytes_out_total{class="upload"}'] / MIB,
            "compaction": by_label(ended[1], "pageserver_compaction_seconds_total", "job")}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pg-major", type=int, default=15)
    parser.add_argument("--dir", default="/tmp", help="where all data goes; needs about 6 times the WAL")
    parser.add_argument("--gib", type=float, default=1,
                        help="WAL to write, in GiB; with less than 0.1 too little time passes to be accounted for")
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delays", type=float, nargs="+", default=[0, 25], help="ms that each request takes longer")
    parser.add_argument("--store", choices=["versity"], default="versity", help="it keeps objects as files")
    parser.add_argument("--out", type=Path, help="directory for attribution.json")
    parser.set_defaults(by="pgbench")
    return parser.parse_args()


def main():
    args = parse_arguments()
    topology = artifact.topology(args.dir, profile=os.environ.get("TEST_PROFILE", "release"), delay_ms=args.delays,
                                 store=f"local disk, and S3 server ({args.store}) on the same machine")
    validity = artifact.Validity("pages and digests")
    bench = Attribution(args, validity)
    try:
        results = bench.measure()
    finally:
        bench.clean()

    def finish():
        check(results)
        if args.out:
            artifact.write(args.out / "attribution.json", topology, validity, results)

    artifact.refusing(finish)


if __name__ == "__main__":
    main()
