#!/usr/bin/env python3
"""Records the WAL of a workload: OUT/base is the data directory before it, OUT/wal has all segments written since.

The workload `all` writes every record type that SQL can reach; `pgbench` is the usual mix of short transactions on
previously loaded tables.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "test_runner"))

from fixtures.postgres import Postgres  # noqa: E402
from fixtures.redo import contention, run_script  # noqa: E402
from fixtures.servers import DEFAULT_MAJOR, Server, find_server  # noqa: E402
from fixtures.workdir import copy_tree  # noqa: E402

# Keeps all WAL until it is copied.
SETTINGS = {"wal_level": "logical", "wal_keep_size": "40GB", "max_wal_size": "40GB", "checkpoint_timeout": "1h",
            "shared_buffers": "512MB"}


def installed(directory: Path | None) -> Server:
    """The server of a directory, whose clients may be Debian's; or the one that tests use."""
    usual = find_server(DEFAULT_MAJOR)
    if directory is None:
        if usual is None:
            raise SystemExit(f"no Postgres {DEFAULT_MAJOR} here: run make setup")
        return usual
    told = subprocess.run([directory / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    major = int(told.split()[2].partition(".")[0])
    return Server(major, directory, usual.clients if usual else directory)


def record(args, server: Postgres):
    more = {"allow_in_place_tablespaces": "on"} if server.major >= 15 else {}
    server.init(**SETTINGS, full_page_writes=args.full_page_writes, **more)
    if args.workload == "pgbench":
        with server.running():
            server.bench_init(args.scale)
            server.sql("CREATE INDEX ON pgbench_history (aid); CREATE INDEX ON pgbench_history (mtime)")
    copy_tree(server.data, args.out / "base")
    with server.running():
        if args.workload == "pgbench":
            server.bench(args.transactions, clients=4)
        else:
            # Statements that this server refuses are skipped.
            connection = f"conn=host={server.sockets} user=postgres"
            run_script(server, "psql", "all_record_types.sql", "-X", "-v", connection, check=False, timeout=1800)
            contention(server)
    wal = args.out / "wal"
    wal.mkdir()
    for segment in server.wal_segments():
        shutil.copy(segment, wal)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--bin", type=Path, help="directory of initdb, pg_ctl, postgres")
    parser.add_argument("--workload", choices=["all", "pgbench"], default="all")
    parser.add_argument("--scale", type=int, default=10)
    parser.add_argument("--transactions", type=int, default=40000)
    parser.add_argument("--full-page-writes", choices=["on", "off"], default="off")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    args.out = args.out.resolve()
    with tempfile.TemporaryDirectory(prefix="record-wal-", dir="/tmp") as home:
        server = Postgres(installed(args.bin), Path(home) / "data")
        try:
            record(args, server)
        finally:
            server.destroy()


main()
