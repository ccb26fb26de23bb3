#!/usr/bin/env python3
"""Records the WAL of a workload: OUT/base is the data directory before, OUT/wal has all segments written since.

The workload `all` writes every record type that SQL reaches, `pgbench` is the usual mix of short transactions on tables
that were loaded before.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = ROOT / "test_runner" / "workloads"
SETTINGS = """
listen_addresses = ''
wal_level = logical
full_page_writes = {full_page_writes}
wal_keep_size = 40GB
max_wal_size = 40GB
checkpoint_timeout = 1h
max_prepared_transactions = 10
track_commit_timestamp = on
autovacuum = off
fsync = off
shared_buffers = 512MB
"""
CONTENDED = """CREATE TABLE pgb(id int PRIMARY KEY, v int, k int);
INSERT INTO pgb SELECT g, 0, g FROM generate_series(1, 50) g; CREATE INDEX pgb_k ON pgb(k)"""


def as_postgres(*command):
    prefix = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    return [*prefix, *map(str, command)]


class Server:
    def __init__(self, args, home):
        self.servers, self.clients = args.bin, args.clients
        self.home, self.data = home, home / "data"
        self.settings = SETTINGS.format(full_page_writes=args.full_page_writes)
        self.env = {**os.environ, "PGHOST": str(home), "PGUSER": "postgres", "PGDATABASE": "postgres", "PGPORT": "6551"}

    def run(self, *command, check=True):
        with open(self.home / "output", "w+") as output:
            done = subprocess.run(as_postgres(*command), cwd=self.home, env=self.env, stdin=subprocess.DEVNULL,
                                  stdout=output, stderr=output)
            output.seek(0)
            if check and done.returncode != 0:
                raise SystemExit(f"{command} failed: {output.read()[-2000:]}")

    def init(self):
        self.run(self.servers / "initdb", "-U", "postgres", "--locale=C", "-E", "UTF8", "--no-sync", "-D", self.data)
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.write(f"{self.settings}\nport = 6551\nunix_socket_directories = '{self.home}'\n")
            if int((self.data / "PG_VERSION").read_text()) >= 15:
                conf.write("allow_in_place_tablespaces = on\n")

    def start(self):
        self.run(self.servers / "pg_ctl", "-w", "-D", self.data, "-l", self.home / "log", "start")

    def stop(self):
        self.run(self.servers / "pg_ctl", "-w", "-m", "fast", "-D", self.data, "stop")

    def pgbench(self, *options):
        self.run(self.clients / "pgbench", *options)

    def psql(self, *options, check=True):
        self.run(self.clients / "psql", "-X", "-v", f"conn=host={self.home} port=6551 user=postgres", *options,
                 check=check)


def record(args, home):
    server = Server(args, home)
    server.init()
    if args.workload == "pgbench":
        server.start()
        server.pgbench("-i", "-q", "-s", args.scale)
        server.psql("-c", "CREATE INDEX ON pgbench_history (aid); CREATE INDEX ON pgbench_history (mtime)")
        server.stop()
    base = args.out / "base"
    shutil.copytree(server.data, base, symlinks=True)
    server.start()
    if args.workload == "pgbench":
        server.pgbench("-n", "-c", "4", "-j", "2", "-t", args.transactions // 4)
    else:
        for file in WORKLOADS.glob("*.sql"):
            shutil.copy(file, home)
        # Stops at the first statement that this server refuses; what was written until then counts.
        server.psql("-f", home / "all_record_types.sql", check=False)
        server.psql("-c", CONTENDED)
        server.pgbench("-n", "-c", "8", "-j", "2", "-T", "6", "-f", home / "contention.sql")
    server.stop()
    wal = args.out / "wal"
    wal.mkdir()
    for segment in sorted((server.data / "pg_wal").iterdir()):
        if len(segment.name) == 24:
            shutil.copy(segment, wal)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--bin", type=Path, default=Path("/usr/lib/postgresql/15/bin"), help="initdb, pg_ctl, postgres")
    parser.add_argument("--clients", type=Path, default=Path("/usr/lib/postgresql/15/bin"), help="psql, pgbench")
    parser.add_argument("--workload", choices=["all", "pgbench"], default="all")
    parser.add_argument("--scale", type=int, default=10)
    parser.add_argument("--transactions", type=int, default=40000)
    parser.add_argument("--full-page-writes", choices=["on", "off"], default="off")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    args.out = args.out.resolve()
    with tempfile.TemporaryDirectory(prefix="record-wal-", dir="/tmp") as home:
        os.chmod(home, 0o755)
        if os.getuid() == 0:
            shutil.chown(home, "postgres", "postgres")
        record(args, Path(home))


main()
