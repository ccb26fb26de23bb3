#!/usr/bin/env python3
"""Loading and reading wide rows with many indexes: a compute compared with the same Postgres on a plain directory.

Rows of 64 columns, some 1.9 KB each, and 14 indexes. They are loaded by COPY over 1 connection and over 5, with the
indexes created before or after, in turn on the plain server and on a new compute on a new branch (A B B A ...); both
have the same settings, commits reach the disk, and the pageserver takes in the compute's WAL meanwhile on the same
cores. After each load the number of rows and the sum of their keys must be what was written. At the end pg_amcheck
compares every index with its table on both, and queries are timed on servers that have read nothing yet: the first run,
and the second in the same session. Their answers must be the same on both. Nothing is left behind but wide.json.
"""

import argparse
import json
import os
import shutil
import time
from pathlib import Path

import artifact
from compute_figures import MIB, SAME, Bench, assert_same_settings, with_place
from fixtures.computes import Compute, amcheck
from fixtures.postgres import Postgres
from fixtures.stored import disk_usage

PARTS = 5
# Compilation and workers would add times of their own.
MORE = {"maintenance_work_mem": "256MB", "max_wal_size": "2GB", "jit": "off", "max_parallel_workers_per_gather": "0",
        "max_parallel_maintenance_workers": "0"}
SETTINGS = {**SAME, **MORE}
SETS = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
START = "timestamptz '2026-01-01 00:00:00+00'"
# The columns with an index besides the key, with their types and values: of few and many rows each, in the order of the
# rows and in none.
INDEXED = (
    ("account", "bigint", "id * 7919 % ({rows} / 10 + 1)"), ("item", "int", "id * 104729 % 100003"),
    ("kind", "int", "id % 7"), ("state", "int", "id * 31 % 101"), ("parent", "bigint", "id / 4"),
    ("created", "timestamptz", "{start} + id * interval '1 s'"),
    ("changed", "timestamptz", "{start} + id * 7919 % {rows} * interval '1 s'"),
    ("price", "numeric", "(id * 271 % 1000003) / 100.0"), ("weight", "float8", "id * 613 % 9973 / 8.0"),
    ("code", "text", "left(md5((id * 3)::text), 12)"), ("mail", "text", "left(md5((id * 5)::text), 16) || '@here'"),
    ("city", "text", "'city ' || id * 13 % 4001"), ("day", "date", "date '2026-01-01' + (id / 86400)::int"),
)
COLUMNS, INTEGERS = 64, 2
TEXTS = COLUMNS - 1 - len(INDEXED) - INTEGERS
NAMES = [f"n{number}" for number in range(INTEGERS)] + [f"t{number:02}" for number in range(TEXTS)]
TABLE = "CREATE TABLE wide (id bigint NOT NULL, {}, {})".format(
    ", ".join(f"{name} {kind}" for name, kind, _ in INDEXED),
    ", ".join(f"{name} {'bigint' if name.startswith('n') else 'text'}" for name in NAMES))
INDEXES = ["ALTER TABLE wide ADD PRIMARY KEY (id)",
           *(f"CREATE INDEX wide_{name} ON wide ({name})" for name, _, _ in INDEXED)]
SIZES = """SELECT round(avg(pg_column_size(few.*))), pg_relation_size('wide'), pg_indexes_size('wide')
    FROM (SELECT * FROM wide LIMIT 1000) few"""
# Ten rows that lie apart; a hundredth of the rows, side by side; all rows, by columns without an index.
QUERIES = {
    "eq": "SELECT count(*), sum(n0) FROM wide WHERE account = {rows} / 20",
    "range": "SELECT count(*), sum(n0) FROM wide WHERE created >= {start} + {rows} / 2 * interval '1 s' "
             "AND created < {start} + ({rows} / 2 + {rows} / 100) * interval '1 s'",
    "scan": "SELECT count(*), sum(id) FROM wide WHERE t07 < '4'",
    "sum": "SELECT count(*), sum(n0), sum(n1) FROM wide",
}
CASES = [(connections, indexes) for indexes in ("after", "before") for connections in (1, 5)]


def row_of(rows: int) -> str:
    """The columns of one row as SQL, by its id. Texts are digits of hashes, which shrink to half at best."""
    values = [value.format(rows=rows, start=START) for _, _, value in INDEXED]
    values += [f"id * {number + 3}" for number in range(INTEGERS)]
    values += [f"md5((id * 64 + {number})::text) || 'abc'" for number in range(TEXTS)]
    return ", ".join(["id", *values])


class Wide(Bench):
    """One table, loaded again and again."""

    def run(self) -> dict:
        self.plain = self.make_database("base", 1)
        self.follow(self.plain, keep=True, remote_storage="none")
        self.set_free(self.plain, SETTINGS)
        self.files = self.make_files()
        loads = []
        for connections, indexes in CASES:
            for number in range(self.args.rounds):
                for who in ("plain", "compute") if number % 2 == 0 else ("compute", "plain"):
                    last = (connections, indexes) == CASES[-1] and number + 1 == self.args.rounds
                    loads.append(self.load(who, connections, indexes, number, keep=last))
        row, table, indexes = map(int, self.plain.sql(SIZES).split("|"))
        for server in (self.plain, self.compute):
            amcheck(server)
        return {"rows": self.args.rows, "columns": COLUMNS, "indexes": len(INDEXES), "row_bytes": row,
                "table_mib": table // MIB, "index_mib": indexes // MIB, "loads": loads,
                "disk_mib": disk_usage(self.root) // MIB, "reads": self.reads()}

    def make_files(self) -> list[Path]:
        """The rows as files for COPY, made by the server."""
        place = self.plain.own(self.root / "rows")
        files, began, rows = [], time.monotonic(), self.args.rows
        for part in range(PARTS):
            files.append(place / f"part{part}")
            first, last = rows * part // PARTS + 1, rows * (part + 1) // PARTS
            self.plain.run("psql", "-Xq", *self.plain.connection(), "-c", f"COPY (SELECT {row_of(rows)} FROM "
                           f"generate_series({first}::bigint, {last}) id) TO '{files[-1]}'", timeout=3600)
        size = sum(file.stat().st_size for file in files)
        self.say(f"{size // MIB} MiB of rows in {time.monotonic() - began:.0f} s")
        return files

    def load(self, who: str, connections: int, indexes: str, number: int, *, keep: bool) -> dict:
        """Loads all rows into a new table, and checks that they are there."""
        server = self.plain
        if who == "compute":
            name = f"{indexes}-{connections}-{number}"
            server = self.computes.start(name, "--branch", name, *SETS)
            assert_same_settings(self.plain, server, names=MORE)
        server.sql(f"DROP TABLE IF EXISTS wide; {TABLE}; CHECKPOINT")
        if who == "plain":
            os.sync()
        times = {"index_s": 0.0}
        steps = [("index_s", lambda: self.create_indexes(server)), ("copy_s", lambda: self.copy(server, connections))]
        began = time.monotonic()
        for what, step in steps if indexes == "before" else steps[::-1]:
            started = time.monotonic()
            step()
            times[what] = round(time.monotonic() - started, 3)
        found = {"who": who, "connections": connections, "indexes": indexes, **times,
                 "rows_per_s": round(self.args.rows / (time.monotonic() - began))}
        if who == "compute":
            started = time.monotonic()
            server.timeline.wait_for_lsn(server.sql("SELECT pg_current_wal_flush_lsn()"), 600)
            found["behind_s"] = round(time.monotonic() - started, 3)
        self.check(server)
        self.say(json.dumps(found))
        self.end_load(server, keep)
        return found

    def create_indexes(self, server: Postgres):
        server.run("psql", "-Xq", *server.connection(), "-c", "; ".join(INDEXES), timeout=3600)

    def copy(self, server: Postgres, connections: int):
        """Each connection copies as many of the files as the others, in transactions of their own."""
        running = []
        for number in range(connections):
            words = [word for file in self.files[number::connections] for word in ("-c", f"\\copy wide FROM '{file}'")]
            running.append(server.popen("psql", "-Xq", "-v", "ON_ERROR_STOP=1", *server.connection(), *words))
        codes = [process.wait(3600) for process in running]
        assert not any(codes), f"psql ended with {codes}"

    def check(self, server: Postgres):
        rows = self.args.rows
        count, total = map(int, server.sql("SELECT count(*), sum(id) FROM wide").split("|"))
        self.validity.add(expected=rows, seen=count, different=0 if total == rows * (rows + 1) // 2 else rows)
        shape = server.sql("SELECT relnatts, (SELECT count(*) FROM pg_index WHERE indrelid = pg_class.oid) "
                           "FROM pg_class WHERE oid = 'wide'::regclass")
        assert shape == f"{COLUMNS}|{len(INDEXES)}", shape

    def end_load(self, server: Postgres, keep: bool):
        free = shutil.disk_usage(self.root).free >> 30
        assert free >= 3, f"only {free} GiB are free on the disk"
        if keep:
            server.sql("VACUUM (ANALYZE) wide")
            if isinstance(server, Compute):
                self.compute = server
                server.timeline.wait_for_lsn(server.sql("SELECT pg_current_wal_flush_lsn()"), 600)
        elif isinstance(server, Compute):
            self.computes.ok("destroy", server.name, "--force")
            server.timeline.delete()
        else:
            server.sql("DROP TABLE wide; CHECKPOINT")

    def reads(self) -> list[dict]:
        """Each query on servers that have read nothing: twice, in one session."""
        self.pageserver.http.put(f"{self.compute.timeline.path}/checkpoint", timeout=600)
        found = []
        for name, query in QUERIES.items():
            query = query.format(rows=self.args.rows, start=START)
            rounds = {"plain": [], "compute": []}
            for number in range(self.args.reads):
                order = ("plain", "compute") if number % 2 == 0 else ("compute", "plain")
                answers = {who: self.read(who, f"{name}-{number}", query, rounds[who]) for who in order}
                self.validity.equal(answers["compute"], answers["plain"])
            self.say(json.dumps({name: rounds}))
            found.append({"query": name, "rounds": rounds})
        return found

    def read(self, who: str, name: str, query: str, rounds: list) -> list[str]:
        """Runs a query twice; returns its answers."""
        self.forget_cached()
        if who == "plain":
            server = self.plain.stop().start()
        else:
            server = self.computes.start(name, "--branch", name, "--from", self.compute.name, *SETS)
        said = server.sql(f"\\o /dev/null\nEXPLAIN {query};\n\\o\n\\timing on\n{query};\n{query};").splitlines()
        answers = [line for line in said if not line.startswith("Time: ")]
        first, again = (round(float(line.split()[1]), 3) for line in said if line.startswith("Time: "))
        rounds.append({"first_ms": first, "again_ms": again})
        if who == "compute":
            self.computes.ok("destroy", name, "--force")
            server.timeline.delete()
        assert len(answers) == 2 and int(answers[0].split("|")[0]) > 0, answers
        return answers


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000, help="a million take 20 GB and half an hour")
    parser.add_argument("--rounds", type=int, default=3, help="loads of each kind, by each server")
    parser.add_argument("--reads", type=int, default=3, help="runs of each query on servers that have read nothing")
    return with_place(parser)


def main():
    args = parse_args()
    bench = Wide(args)
    topology = artifact.topology(args.dir, profile=os.environ.get("TEST_PROFILE", "release"), store="none")
    try:
        results = {"pg_major": args.pg_major, "drop_caches": args.drop_caches, **bench.run()}
    finally:
        bench.clean()
    print(json.dumps(results))
    if args.out:
        artifact.refusing(lambda: artifact.write(args.out / "wide.json", topology, bench.validity, results))


if __name__ == "__main__":
    main()
