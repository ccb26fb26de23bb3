#!/usr/bin/env python3
"""Six queries of a social network on a stock Postgres whose data is only in S3, with more or less of it in memory.

The database (1.2 GB; see network.py) is loaded into a plain server, copied into a bucket, and kept for later runs. Each
query is then executed for several keys. Every time: a new read-only compute loads the catalogs and plans the query;
what the level says is read into its shared buffers; the pageserver is stopped, its disk emptied, and started again; the
compute finds it by reading a table that has nothing to do with the query; then the query runs, and each request to the
bucket, which takes --delays longer, is counted. What the query returns and how it is planned are compared with the
plain server, and nothing of a table may be in memory that the level does not say. Writes social.json.

With --matrix each query runs instead, with nothing in memory, under every combination of how far ahead of a scan
layers are read, after how much of it a layer is fetched whole, how many pages Postgres asks for at once, and how much
of a table the compute fetches ahead. Writes social_matrix.json.
"""

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import artifact  # noqa: E402
import cpu  # noqa: E402
from world import DATABASE, MIB, PREFIX, RELATIONS, SETTINGS, World, digest, execute, prepare, shape  # noqa: E402
from fixtures.computes import Computes, stay_where_it_is  # noqa: E402
from fixtures.pageserver import Pageserver  # noqa: E402
from fixtures.programs import program  # noqa: E402
from fixtures.s3 import BUCKET  # noqa: E402
from fixtures.stored import wipe  # noqa: E402
from link import CountedLink, one_after_the_other  # noqa: E402
from queries import LEVELS, QUERIES  # noqa: E402

HEAP_IN_MEMORY = """SELECT count(*) FROM pg_buffercache b JOIN pg_class c ON pg_relation_filenode(c.oid) = b.relfilenode
    AND b.reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND c.relname <> 'unrelated'
    AND b.relforknumber = 0"""
# Settings of the pageserver and of computes: read-ahead in MiB, percent of a layer (101: never), pages at once (1 is
# the default), MiB of a table that a compute fetches ahead.
MATRIX = {"read_ahead_mib": (0, 1, 4, 16), "whole_after": (10, 50, 101), "io_concurrency": (1, 16),
          "ahead_mib": (0, 8, 32)}
UNRELATED = "SELECT count(*) FROM unrelated WHERE ctid = '({},1)'"


class Run:
    """A pageserver that is emptied again and again, and the computes that outlive that."""

    def __init__(self, args, world: World, link: CountedLink):
        self.args, self.world, self.link = args, world, link
        # Of computes, besides settings of Postgres.
        self.options: list[str] = []
        self.root = Path(tempfile.mkdtemp(prefix="social-run-", dir=args.dir))
        self.root.chmod(0o755)
        settings = {**world.settings(), "remote_storage_endpoint": f"http://127.0.0.1:{link.port}"}
        self.pageserver = Pageserver(program("pageserver"), self.root / "store",
                                     **{**settings, **dict(one.split("=", 1) for one in args.set)})
        self.pageserver.start()
        stay_where_it_is(self.pageserver)
        self.computes = Computes(program("pagectl"), self.pageserver, self.root / "computes")
        self.validity = artifact.Validity("answers")

    def end(self):
        try:
            self.computes.destroy_all()
        finally:
            self.pageserver.destroy()
            shutil.rmtree(self.root, ignore_errors=True)

    def execute(self, name: str, asked: dict, level: str, delay: float) -> dict:
        """One execution, with `delay` ms added to each request of the bucket while it is measured."""
        self.link.delay = 0
        settings = [part for item in {**SETTINGS, **self.args.postgres}.items() for part in ("--set", "=".join(item))]
        compute = self.computes.start("reader", "--read-only", *settings, *self.options)
        try:
            with compute.session(DATABASE) as session:
                session.sql(prepare(name))
                plan = session.sql(f"EXPLAIN (COSTS OFF) {execute(name, asked['keys'])}")
                self.fill(session, level)
                if level == "data":
                    # Workers of a parallel plan read catalogs of their own.
                    session.sql(execute(name, asked["keys"]))
                assert level == "data" or session.sql(HEAP_IN_MEMORY) == "0", f"{level}: tables are in memory"
                self.lose_disk()
                self.link.delay = delay / 2000
                started = time.monotonic()
                self.pageserver.start()
                assert session.sql(UNRELATED.format(7)) == "1"
                found = self.measure(session, name, asked)
                found["start_to_row_ms"] = (time.monotonic() - started) * 1000
        finally:
            self.computes.ok("destroy", "reader", "--force")
        assert plan and shape(plan) == asked["plan"], f"{name} is planned in another way:\n{plan}\n{asked['plan']}"
        return {"query": name, "level": level, "delay_ms": delay, **found}

    def fill(self, session, level: str):
        """Reads into shared buffers what the level says."""
        if level == "interior":
            for relation, block in self.world.about["interior"]:
                session.sql(f"SELECT btpo_level FROM bt_page_stats('{relation}', {block})")
        kinds = {"index": "i", "data": "ir"}.get(level, "")
        for kind in kinds:
            session.sql(f"SELECT sum(pg_prewarm(oid)) FROM ({RELATIONS.format(kind)}) AS found(oid)")
        if level == "data":
            # What an index-only scan asks whether it needs the table.
            session.sql(f"SELECT sum(pg_prewarm(oid, 'buffer', 'vm')) FROM ({RELATIONS.format('r')}) AS found(oid)")

    def lose_disk(self):
        self.pageserver.stop()
        wipe(self.pageserver)
        self.world.forget_hot()

    def measure(self, session, name: str, asked: dict) -> dict:
        self.link.taken()
        pages, before = self.pages_asked(), cpu.by_process()
        rows, took = timed(session, execute(name, asked["keys"]))
        cpu_ms = cpu.since(before)
        requests = [request for request in self.link.taken() if request.method == "GET"]
        self.validity.equal(digest(rows), asked["digest"])
        return {"ms": took, "gets": len(requests), "pages": self.pages_asked() - pages,
                "mib": sum(request.received for request in requests) / MIB,
                "round_trips": one_after_the_other(requests), "rows": asked["rows"], "cpu_ms": cpu_ms}

    def pages_asked(self) -> int:
        metrics = self.pageserver.http.metrics()
        return int(metrics['pageserver_smgr_query_seconds_count{smgr_query_type="get_page_at_lsn"}'])

    def all(self) -> list[dict]:
        found = []
        for delay in self.args.delays:
            for level in self.args.levels:
                for name in self.args.queries:
                    count = self.args.executions if level in ("none", "interior") else self.args.warm_executions
                    answers = self.world.about["answers"][name][:count]
                    found += [self.execute(name, asked, level, delay) for asked in answers]
                    self.say(found[-count:])
        return found

    def matrix(self) -> list[dict]:
        """Medians for every combination of settings and every query, with nothing in memory."""
        found, postgres, delay = [], dict(self.args.postgres), self.args.delays[-1]
        for ahead, whole, at_once, of_compute in itertools.product(*MATRIX.values()):
            self.options = ["--read-ahead", str(of_compute)]
            self.pageserver.configure(read_ahead_max=ahead * MIB, prefetch_whole_after=whole)
            self.args.postgres = {**postgres, "effective_io_concurrency": str(at_once)}
            for name in self.args.queries:
                answers = self.world.about["answers"][name][:self.args.matrix]
                some = [self.execute(name, asked, "none", delay) for asked in answers]
                medians = {what: median(each[what] for each in some) for what in ("ms", "gets", "mib")}
                settings = dict(zip(MATRIX, (ahead, whole, at_once, of_compute)))
                found.append({"query": name, "delay_ms": delay, **settings, **medians})
                self.world.say(f"matrix: {json.dumps(found[-1])}")
        return found

    def say(self, some: list[dict]):
        one = some[0]
        parts = [f"{what} {median(each[what] for each in some):.1f}" for what in ("ms", "gets", "round_trips", "pages",
                                                                                  "mib")]
        self.world.say(f"{one['query']}, {one['level']}, {one['delay_ms']} ms: {', '.join(parts)}")


def timed(session, sql: str) -> tuple[str, float]:
    """The rows of a statement, and how many ms it takes, as psql reports it."""
    session.sql("\\timing on\nSELECT 1")
    rows, _, took = session.sql(sql).rpartition("Time: ")
    return rows.strip(), float(took.split()[0])


def of_plain(world: World, queries: list[str]) -> dict[str, float]:
    """What the plain server takes with everything in memory: medians in ms."""
    found = {}
    world.plain.sql(f"SELECT sum(pg_prewarm(oid)) FROM ({RELATIONS.format('i')}) AS found(oid)", DATABASE)
    world.plain.sql(f"SELECT sum(pg_prewarm(oid)) FROM ({RELATIONS.format('r')}) AS found(oid)", DATABASE)
    for name in queries:
        times = []
        for asked in world.about["answers"][name]:
            with world.plain.session(DATABASE) as session:
                session.sql(prepare(name))
                session.sql(f"EXPLAIN {execute(name, asked['keys'])}")
                rows, took = timed(session, execute(name, asked["keys"]))
                assert digest(rows) == asked["digest"]
                times.append(took)
        found[name] = median(times)
    return found


def link_rate(world: World, link: CountedLink) -> float:
    """MiB/s of the link itself, without delay: it takes a core as well."""
    name, size = max(world.bucket.objects(PREFIX).items(), key=lambda item: item[1])
    client = world.bucket.client(f"http://127.0.0.1:{link.port}")
    started = time.monotonic()
    got = len(client.get_object(Bucket=BUCKET, Key=f"{PREFIX}/{name}")["Body"].read())
    assert got == size
    return size / MIB / (time.monotonic() - started)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=100_000, help="the size: 10 posts, 30 likes, 25 friends for each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--executions", type=int, default=10, help="for each query, delay and level up to interior")
    parser.add_argument("--warm-executions", type=int, default=3, help="the same, for the other levels")
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--queries", nargs="+", choices=list(QUERIES), default=list(QUERIES))
    parser.add_argument("--delays", type=float, nargs="+", default=[4, 25], help="ms that each request takes longer")
    parser.add_argument("--matrix", type=int, default=0, metavar="EXECUTIONS",
                        help="instead under every combination of settings; 72 of them, at the last of --delays")
    parser.add_argument("--set", nargs="*", default=[], help="settings of the pageserver, as NAME=VALUE")
    parser.add_argument("--postgres", nargs="*", default=[], help="settings of computes, as NAME=VALUE")
    parser.add_argument("--pg-major", type=int, default=15)
    parser.add_argument("--store", choices=["weed", "versity"], default="versity")
    parser.add_argument("--dir", type=Path, default=Path("/tmp"), help="where all data goes; needs 6 GB")
    parser.add_argument("--remove", action="store_true", help="do not keep the database for later runs")
    parser.add_argument("--out", type=Path, help="directory for social.json")
    args = parser.parse_args()
    args.postgres = dict(one.split("=", 1) for one in args.postgres)
    return args


def main():
    args = parse()
    topology = artifact.topology(args.dir, profile=os.environ.get("TEST_PROFILE", "release"), delay_ms=args.delays,
                                 store=f"S3 server ({args.store}) on the same machine")
    world = World(args.dir, users=args.users, seed=args.seed, store=args.store, pg_major=args.pg_major,
                  keys=max(args.executions, args.warm_executions, args.matrix))
    with ExitStack() as stack:
        stack.callback(world.close)
        world.open()
        link = stack.enter_context(CountedLink(world.bucket.port).open())
        results = {"users": args.users, "pg_major": args.pg_major, "link_mib_per_s": link_rate(world, link),
                   "settings": args.set, "postgres": args.postgres, "plain_ms": of_plain(world, args.queries),
                   **{name: world.about[name] for name in ("database_mib", "posts_mib", "bucket_mib")}}
        run = Run(args, world, link)
        stack.callback(run.end)
        results |= {"matrix": run.matrix()} if args.matrix else {"executions": run.all()}
    if args.remove:
        shutil.rmtree(world.place, ignore_errors=True)
    if args.out:
        name = "social_matrix.json" if args.matrix else "social.json"
        artifact.refusing(lambda: artifact.write(args.out / name, topology, run.validity, results))
    else:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
