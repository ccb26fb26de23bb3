#!/usr/bin/env python3
"""Measures how long a stock Postgres needs to replay recorded WAL: archive recovery of RECORDED/base with the segments
of RECORDED/wal at hand, fsync off, all pages in shared buffers. The time is the one that its log reports for redo."""

import argparse
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

import artifact

sys.path.insert(0, str(artifact.REPOSITORY / "test_runner"))

from fixtures.lsn import parse  # noqa: E402
from fixtures.postgres import Postgres  # noqa: E402
from fixtures.servers import DEFAULT_MAJOR, find_server  # noqa: E402
from fixtures.workdir import copy_tree  # noqa: E402

DONE = re.compile(r"redo done at (\S+) system usage: CPU: user: ([\d.]+) s, system: ([\d.]+) s, elapsed: ([\d.]+) s")
SETTINGS = {"listen_addresses": "''", "fsync": "off", "restore_command": "'false'",
            "recovery_target_action": "'shutdown'", "log_min_messages": "info"}
# The longest wait for the server to answer, and then for the end of redo.
PATIENCE = 3600


def replay(args, server: Postgres):
    server.own(server.data.parent)
    copy_tree(args.recorded / "base", server.data)
    for segment in (args.recorded / "wal").iterdir():
        shutil.copy(segment, server.data / "pg_wal")
    (server.data / "recovery.signal").touch()
    server.configure(**SETTINGS, unix_socket_directories=f"'{server.sockets}'",
                     shared_buffers=f"'{args.shared_buffers}'")
    server.own_data()
    server.start(timeout=PATIENCE)
    position, user, system, elapsed = wait_for_redo(server).groups()
    return {"lsn": position, "user": float(user), "system": float(system), "elapsed": float(elapsed)}


def wait_for_redo(server: Postgres):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        # Checked before reading the log, because the last log line is written before the process ends.
        runs = server.is_running()
        if done := DONE.search(server.log.read_text(errors="replace")):
            return done
        if not runs:
            break
        time.sleep(0.1)
    raise SystemExit(f"no redo has ended: {server.log_tail()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("--shared-buffers", default="1GB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.recorded = args.recorded.resolve()
    rounds, validity = [], artifact.Validity("bytes")
    topology = artifact.topology("/tmp", engine="Postgres", io_mode="buffered", allocator="Postgres",
                                 profile="packaged", store="none")
    installed = find_server(DEFAULT_MAJOR)
    if installed is None:
        raise SystemExit(f"no Postgres {DEFAULT_MAJOR} here: run make setup")
    start, end = None, None
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory(prefix="redo-standby-", dir="/tmp") as home:
            server = Postgres(installed, Path(home) / "data")
            try:
                # Where redo of the recorded directory begins.
                start = start or parse(server.control(args.recorded / "base").redo)
                rounds.append(replay(args, server))
            finally:
                server.destroy()
            print(rounds[-1])
            # Each round must have replayed everything, that is, as far as the first.
            end = end or parse(rounds[0]["lsn"])
            validity.add(expected=end - start, seen=parse(rounds[-1]["lsn"]) - start, different=0)
    version = (args.recorded / "base" / "PG_VERSION").read_text().strip()
    result = {"version": version, "shared_buffers": args.shared_buffers, "rounds": rounds}
    artifact.refusing(lambda: artifact.write(args.out / "redo_standby.json", topology, validity, result))


main()
