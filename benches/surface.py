#!/usr/bin/env python3
"""What a database costs to open, to read fresh, to write and to see written, by where its bucket is and by its size.

A server's database is uploaded to a directory and to an S3 server, and the server is removed, except for the file of
its largest table. Then, several times for each size and topology, on a pageserver whose disk was emptied:

* open: from the command until the timeline can be read. Prepare: until the process answers.
* light: a new connection and one random page at the head; heavy: the same with 1,000 random pages, 64 in flight.
  Prepare: what the server takes to have the pages, by its own timer (`smgr_query_seconds`).
* write: on a compute of a new branch, COMMIT of one row. Prepare: BEGIN and INSERT, which reads its pages.
* visible: from the COMMIT's return until a page as of that LSN comes with the row. Prepare: what the server waits for
  the WAL, by its own timer (`wait_lsn_seconds`).

Consume is what remains of each. Requests to the bucket and bytes of them are counted by the server's metrics: what it
reads, and at a start what it asks for to attach tenants. Each page is compared with the server's file, each row with
what was written. Nothing is left behind but surface.json.
"""

import argparse
import json
import os
import random
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import artifact
from bucketed import PREFIX, OfNoise, drop_slots, link_rate, settings, topologies, with_topologies
from compute_figures import MIB, MIB_PER_SCALE, with_place
from fixtures import masks
from fixtures.compare import PAGE
from fixtures.followed import Followed, rel_of
from fixtures.http import HttpError
from fixtures.pageserver import Timeline
from fixtures.pagestream import get_page
from fixtures.lsn import parse
from fixtures.s3 import KINDS
from fixtures.wait import wait_until

HEAVY = 1000
STEPS = ("open", "light", "heavy", "write", "visible")
# A reader's requests, and what they fetch ahead for it.
READS = ("read", "prefetch")
# What a start asks for: who owns the tenants, and their index parts.
OPENING = ("control",)


class Table:
    """A table's file, as the server has left it."""

    def __init__(self, server, table: str, place: Path):
        """Call it while the server runs; `keep` once it has stopped."""
        self.file = server.data / server.sql(f"SELECT pg_relation_filepath('{table}')")
        self.place = place

    def keep(self):
        self.place.mkdir()
        kept = sorted(self.file.parent.glob(f"{self.file.name}*"), key=lambda path: (len(path.name), path.name))
        segments = [path for path in kept if "_" not in path.name]
        self.segments = [path.rename(self.place / path.name) for path in segments]
        self.blocks = sum(path.stat().st_size for path in self.segments) // PAGE

    def differs(self, block: int, page: bytes) -> bool:
        segment, at = divmod(block, (1 << 30) // PAGE)
        with open(self.segments[segment], "rb") as file:
            file.seek(at * PAGE)
            return masks.differs(masks.MAIN, page, file.read(PAGE)) is not None


class Meter:
    """What the server's metrics say of a step, from here to `found`."""

    def __init__(self, server, *, new=False):
        # A process that is about to start has counted nothing.
        self.server, self.before, self.now = server, {} if new else server.http.metrics(), {}

    def grown(self, name: str, label="") -> float:
        return sum(value - self.before.get(key, 0) for key, value in self.now.items()
                   if key.startswith(f"pageserver_{name}") and label in key)

    def serving(self) -> float:
        """Seconds that the page service took for pages. Each page is counted with those of its whole batch."""
        size = self.grown("page_service_batch_size_sum") / self.grown("page_service_batch_size_count")
        return self.grown("smgr_query_seconds_sum", '"get_page_at_lsn"') / size

    def waiting(self) -> float:
        return self.grown("wait_lsn_seconds_sum")

    def found(self, seconds: float, prepared, classes=READS) -> dict:
        """`prepared` is a number of seconds, or asks this for it."""
        self.now = self.server.http.metrics()
        # Two clocks: nothing took longer there than all of it took here.
        prepared = min(prepared(self), seconds) if callable(prepared) else prepared
        gets, size = (sum(self.grown(f"remote_storage_{name}_total", f'"{kind}"') for kind in classes)
                      for name in ("requests", "bytes_in"))
        return {**times(seconds, prepared), "gets": int(gets), "kib": round(size / 1024, 1)}


def times(seconds: float, prepared: float) -> dict:
    return {"ms": round(seconds * 1000, 3), "prepare_ms": round(prepared * 1000, 3)}


class Surface(OfNoise):
    """Sizes, each with all topologies."""

    def of_scale(self, scale: int, places) -> dict:
        rows = max(1, round(self.args.mib * scale / MIB_PER_SCALE))
        server = self.make_database(f"db{scale}", rows)
        size = int(server.sql("SELECT pg_database_size('postgres')"))
        found = {"scale": scale, "database_mib": round(size / MIB), "bucket_mib": {}, "rounds": []}
        table, stores = Table(server, "pgbench_accounts", self.root / f"kept{scale}"), {}
        with ExitStack() as stack:
            for kind in dict.fromkeys(place.kind for place in places):
                bucket = KINDS[kind](self.root / f"bucket{scale}-{kind}")
                stack.callback(bucket.destroy)
                followed = self.upload(server, bucket.start())
                stores[kind] = bucket, followed, self.computes
                stack.callback(self.remove, followed.pageserver, self.computes)
                stored = sum(bucket.objects(PREFIX).values())
                self.must_not_compress(size, stored)
                found["bucket_mib"][kind] = round(stored / MIB)
                drop_slots(server)
            self.rel = rel_of(server, "pgbench_accounts")
            server.stop()
            table.keep()
            server.destroy()
            self.say(f"in buckets: {found['bucket_mib']} MiB")
            for number in range(self.args.rounds):
                for place in places if number % 2 else places[::-1]:
                    found["rounds"].append(self.round_at(place, stores[place.kind], table, number))
        return found

    def remove(self, pageserver, computes):
        self.pageserver, self.computes = pageserver, computes
        self.detach()

    def round_at(self, place, store, table: Table, number: int) -> dict:
        bucket, followed, self.computes = store
        self.pageserver = followed.pageserver
        with settings(bucket, place.delay) as reached:
            self.pageserver.configure(**reached)
            self.lose_disk(bucket)
            return self.round(place, followed, table, number)

    def round(self, place, followed: Followed, table: Table, number: int) -> dict:
        chance = random.Random(f"{place.name} {number}")
        blocks = chance.sample(range(table.blocks), min(HEAVY, table.blocks - 1) + 1)
        found = {"topology": place.name, "open": [self.open(followed.timeline)],
                 "light": [self.read(followed.timeline, table, blocks[:1])],
                 "heavy": [self.read(followed.timeline, table, blocks[1:])]}
        name = f"{place.name}-{number}"
        compute = self.computes.start(name, "--branch", name, "--set", "fsync=on")
        compute.sql("CREATE TABLE written (id int, v text)")
        found["write"], found["visible"] = self.writes(compute, chance)
        self.computes.ok("destroy", name, "--force")
        # So that the next round opens as many timelines.
        compute.timeline.delete()
        self.pageserver.stop()
        self.say(f"{name}: " + ", ".join(f"{step} {middle(found[step])} ms" for step in STEPS))
        return found

    def open(self, timeline: Timeline) -> dict:
        server = self.pageserver
        meter = Meter(server, new=True)

        def is_readable() -> bool:
            try:
                return timeline.info()["state"] == "Active"
            except HttpError as error:
                if error.status not in (404, 503):
                    raise
                return False

        began = time.monotonic()
        server.process = server.spawn()
        wait_until(server.answers, 60, every=0.001, what="the pageserver's start")
        prepared = time.monotonic()
        wait_until(is_readable, 60, every=0.001, what="the timeline")
        return meter.found(time.monotonic() - began, prepared - began, OPENING)

    def read(self, timeline: Timeline, table: Table, blocks: list[int]) -> dict:
        meter, began = Meter(self.pageserver), time.monotonic()
        with timeline.stream() as stream:
            pages = list(stream.pipelined(get_page(self.rel, block) for block in blocks))
        found = meter.found(time.monotonic() - began, Meter.serving)
        differ = sum(table.differs(block, page) for block, page in zip(blocks, pages))
        self.validity.add(expected=len(blocks), seen=len(pages), different=differ)
        return found

    def writes(self, compute, chance: random.Random) -> tuple[list[dict], list[dict]]:
        """Requests to the bucket are counted for both steps together, since nothing may happen between them."""
        rel, writes, visible = rel_of(compute, "written"), [], []
        with compute.session() as session, compute.timeline.stream() as stream:
            for number in range(self.args.writes):
                text = f"{chance.getrandbits(256):064x}"
                meter, began = Meter(self.pageserver), time.monotonic()
                place = session.sql(f"BEGIN; INSERT INTO written VALUES ({number}, '{text}') RETURNING ctid")
                prepared = time.monotonic()
                session.sql("COMMIT")
                committed = time.monotonic()
                lsn = parse(session.sql("SELECT pg_current_wal_flush_lsn()"))
                page = stream.ask(get_page(rel, int(place.strip("()").partition(",")[0]), lsn, lsn))
                visible.append(meter.found(time.monotonic() - committed, Meter.waiting))
                writes.append(times(committed - began, prepared - began))
                self.validity.add(expected=1, seen=1, different=int(text.encode() not in page))
        return writes, visible


def middle(samples: list[dict]) -> float:
    return median(sample["ms"] for sample in samples)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="size of the database of scale 1")
    parser.add_argument("--scale", default="1,4", help="sizes to measure, in multiples of that, separated by commas")
    parser.add_argument("--rounds", type=int, default=5, help="times that the disk is lost, for each size and topology")
    parser.add_argument("--writes", type=int, default=20, help="rows that each round writes")
    with_topologies(parser)
    return with_place(parser)


def main():
    args = parse_args()
    places = topologies(args.topology, args.store)
    bench = Surface(args)
    bench.validity = artifact.Validity("pages")
    delays = sorted({place.delay for place in places})
    where = artifact.topology(args.dir, profile=os.environ.get("TEST_PROFILE", "release"), delay_ms=delays,
                              store=f"a directory; S3 server ({args.store}) on the same machine")
    results = {"pg_major": args.pg_major, "heavy": HEAVY, "topologies": [vars(place) for place in places],
               "link_mib_per_s": link_rate(max(delays)), "sizes": []}
    try:
        for scale in args.scale.split(","):
            results["sizes"].append(bench.of_scale(int(scale), places))
    finally:
        bench.clean()
    print(json.dumps(results))
    if args.out:
        artifact.refusing(lambda: artifact.write(args.out / "surface.json", where, bench.validity, results))


if __name__ == "__main__":
    main()
