"""The database of the social network: in a bucket, and in a plain server to compare with. Kept and reused by seed."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "test_runner"))

from fixtures.followed import Followed  # noqa: E402
from fixtures.pageserver import Pageserver  # noqa: E402
from fixtures.postgres import Postgres  # noqa: E402
from fixtures.programs import program  # noqa: E402
from fixtures.s3 import KINDS  # noqa: E402
from fixtures.servers import find_server  # noqa: E402
from fixtures.stored import wait_uploaded  # noqa: E402
from network import Network, Size  # noqa: E402
from queries import QUERIES  # noqa: E402

DATABASE, PREFIX, MIB = "social", "store", 1 << 20
# Another server does not take over what the one that has uploaded it still owns.
SERVER_ID = "50c1a10000000001"
# To be changed with the rows, the tables or the queries: what was kept is then made again.
FORMAT = 1
# Of both servers: everything fits, and a query is planned the same way.
SETTINGS = {"shared_buffers": "2GB", "autovacuum": "off", "effective_cache_size": "4GB", "jit": "off"}
INTERIOR = """SELECT c.oid::regclass, s.blkno FROM pg_class c JOIN pg_am a ON a.oid = c.relam AND a.amname = 'btree',
    LATERAL generate_series(1, pg_relation_size(c.oid) / 8192 - 1) AS g(block),
    LATERAL bt_page_stats(c.oid::regclass::text, g.block::int) AS s
    WHERE c.relnamespace = 'public'::regnamespace AND s.type <> 'd' AND s.btpo_level > 0"""
RELATIONS = """SELECT oid::regclass FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = '{}'
    AND relname <> 'unrelated'"""


def digest(rows: str) -> str:
    return hashlib.sha256(rows.encode()).hexdigest()


class World:
    """The directory where it all is. `open` makes what is not there."""

    def __init__(self, place: Path, *, users: int, seed: int, store: str, pg_major: int, keys: int):
        self.place = place / f"social-{users}-{seed}-{pg_major}-{store}"
        self.network_size, self.seed, self.keys = Size(users), seed, keys
        self.kind, self.installed = KINDS[store], find_server(pg_major)
        self.plain = self.bucket = None
        # About what was made: the timeline, the answers, the pages of indexes above the leaves.
        self.about: dict = {}

    def say(self, text: str):
        print(f"  {text}", file=sys.stderr, flush=True)

    def open(self) -> "World":
        told = self.place / "about.json"
        self.about = json.loads(told.read_text()) if told.exists() else {}
        if self.about.get("format") == FORMAT and self.about["keys"] >= self.keys:
            self.say(f"{self.place} is there")
            self.bucket = self.kind(self.place / "bucket").start()
            self.plain = self.server()
            self.plain.configure(unix_socket_directories=f"'{self.plain.sockets}'")
            self.plain.start()
            return self
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        self.place.chmod(0o755)
        self.bucket = self.kind(self.place / "bucket").start()
        self.load()
        self.about = {"format": FORMAT, "keys": self.keys, "answers": self.answers(), **self.upload(),
                      "interior": [line.split("|") for line in self.plain.sql(INTERIOR, DATABASE).splitlines()],
                      "database_mib": int(self.plain.sql(f"SELECT pg_database_size('{DATABASE}')")) / MIB,
                      "posts_mib": int(self.plain.sql("SELECT pg_table_size('posts')", DATABASE)) / MIB}
        told.write_text(json.dumps(self.about))
        return self

    def server(self) -> Postgres:
        return Postgres(self.installed, self.place / "plain")

    def load(self):
        """The tables of a plain server, loaded without WAL."""
        self.plain = self.server()
        self.plain.init(wal_level="minimal", max_wal_senders=0, max_wal_size="'16GB'", maintenance_work_mem="'1GB'",
                        wal_keep_size=0, track_commit_timestamp="off",
                        **{name: f"'{value}'" for name, value in SETTINGS.items()})
        self.plain.start()
        self.plain.sql(f"CREATE DATABASE {DATABASE}")
        self.plain.sql((HERE / "schema.sql").read_text(), DATABASE)
        self.network = Network(self.network_size, self.seed)
        for table, rows in self.network.tables():
            self.copy(table, rows)
        self.plain.sql((HERE / "indexes.sql").read_text(), DATABASE)
        self.plain.stop()
        self.plain.configure(wal_level="replica", max_wal_senders=10, max_replication_slots=10)
        self.plain.start()

    def copy(self, table: str, rows):
        arguments = ["-X", "-q", "-v", "ON_ERROR_STOP=1", *self.plain.connection(DATABASE)]
        process = self.plain.popen("psql", *arguments, "-c", f"COPY {table} FROM STDIN", stdin=subprocess.PIPE,
                                   stdout=None, stderr=None, text=True)
        process.stdin.writelines(rows)
        process.stdin.close()
        assert process.wait(600) == 0, f"{table} was not loaded"
        self.say(f"{table} loaded")

    def answers(self) -> dict[str, list]:
        """What the plain server answers: for each query keys, the digest of the rows and their number, and the plan."""
        found = {}
        for name, query in QUERIES.items():
            found[name] = []
            with self.plain.session(DATABASE) as session:
                session.sql(prepare(name))
                for keys in islice(self.network.keys(name), self.keys):
                    rows = session.sql(execute(name, keys))
                    plan = session.sql(f"EXPLAIN (COSTS OFF) {execute(name, keys)}")
                    found[name].append({"keys": keys, "rows": len(rows.splitlines()), "digest": digest(rows),
                                        "plan": shape(plan)})
            assert query.keys and any(one["rows"] for one in found[name]), f"{name} has no rows"
        return found

    def upload(self) -> dict:
        """Has a pageserver follow the plain server until the bucket has everything."""
        pageserver = Pageserver(program("pageserver"), self.place / "store", **self.settings())
        try:
            timeline = pageserver.start().follow(self.plain, timeout=7200)
            followed = Followed(self.plain, pageserver, timeline)
            followed.catch_up(7200)
            wait_uploaded(followed, timeline.last_record_lsn(), 3600)
            stored = sum(self.bucket.objects(PREFIX).values()) / MIB
            self.say(f"{stored:.0f} MiB in the bucket")
        finally:
            pageserver.destroy()
            shutil.rmtree(pageserver.workdir, ignore_errors=True)
        self.plain.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        return {"tenant": timeline.tenant, "timeline": timeline.id, "bucket_mib": stored}

    def settings(self) -> dict:
        """Those of the pageserver that owns what is in the bucket."""
        return {**self.bucket.settings(PREFIX), "server_id": SERVER_ID}

    def forget_hot(self):
        """Removes the list of layers that were hot: a start would fetch them."""
        for name in self.bucket.objects(PREFIX):
            if name.endswith("/hot-layers"):
                self.bucket.remove(name, PREFIX)

    def close(self):
        """Stops what runs; what was made stays."""
        if self.plain and self.plain.is_running():
            self.plain.stop()
        if self.plain:
            shutil.rmtree(self.plain.sockets, ignore_errors=True)
        if self.bucket:
            self.bucket.stop()


def prepare(name: str) -> str:
    return f'PREPARE "{name}" ({QUERIES[name].keys}) AS {QUERIES[name].sql}'


def execute(name: str, keys) -> str:
    return f'EXECUTE "{name}" ({", ".join(map(str, keys))})'


def shape(plan: str) -> str:
    """A plan without its keys, which a plan for any keys has not."""
    return re.sub(r"\$\d+|'?\d+'?(::\w+)?", "#", plan)
