#!/usr/bin/env python3
"""How long a stock Postgres needs to replay recorded WAL: archive recovery of RECORDED/base with the segments of
RECORDED/wal at hand, fsync off, pages all in shared buffers. The time is the one that its log gives for redo."""

import argparse
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import artifact

DONE = re.compile(r"redo done at (\S+) system usage: CPU: user: ([\d.]+) s, system: ([\d.]+) s, elapsed: ([\d.]+) s")
SETTINGS = """
listen_addresses = ''
unix_socket_directories = '{home}'
port = 6552
fsync = off
shared_buffers = '{buffers}'
restore_command = 'false'
recovery_target_action = 'shutdown'
log_min_messages = info
"""


def as_postgres(*command):
    prefix = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    return [*prefix, *map(str, command)]


def replay(args, home):
    data, log = home / "data", home / "log"
    shutil.copytree(args.recorded / "base", data, symlinks=True)
    for segment in (args.recorded / "wal").iterdir():
        shutil.copy(segment, data / "pg_wal")
    (data / "recovery.signal").touch()
    with open(data / "postgresql.conf", "a") as conf:
        conf.write(SETTINGS.format(home=home, buffers=args.shared_buffers))
    if os.getuid() == 0:
        subprocess.run(["chown", "-R", "postgres:postgres", home], check=True)
    os.chmod(data, 0o700)
    with open(log, "w") as output:
        server = subprocess.Popen(as_postgres(args.bin / "postgres", "-D", data), cwd="/", stdout=output, stderr=output)
        try:
            done = wait_for_redo(server, log)
        finally:
            pid = data / "postmaster.pid"
            if server.poll() is None and pid.exists():
                subprocess.run(as_postgres(args.bin / "pg_ctl", "-m", "immediate", "-D", data, "stop"), cwd="/",
                               stdout=subprocess.DEVNULL)
            server.wait()
    lsn, user, system, elapsed = done.groups()
    return {"lsn": lsn, "user": float(user), "system": float(system), "elapsed": float(elapsed)}


def lsn(text):
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def start_of(programs, recorded):
    """Where redo of the recorded directory begins."""
    control = subprocess.run([programs / "pg_controldata", recorded / "base"], capture_output=True, text=True,
                             check=True).stdout
    return lsn(re.search(r"checkpoint's REDO location: +(\S+)", control)[1])


def wait_for_redo(server, log):
    while True:
        try:
            server.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            pass
        text = log.read_text()
        if done := DONE.search(text):
            return done
        if server.poll() is not None:
            raise SystemExit(f"the server ended without redo: {text[-2000:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("--bin", type=Path, default=Path("/usr/lib/postgresql/15/bin"))
    parser.add_argument("--shared-buffers", default="1GB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.recorded = args.recorded.resolve()
    rounds, validity = [], artifact.Validity("bytes")
    topology = artifact.topology("/tmp", engine="Postgres", io_mode="buffered", allocator="Postgres",
                                 profile="packaged", store="none")
    start, end = start_of(args.bin, args.recorded), None
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory(prefix="redo-standby-", dir="/tmp") as home:
            os.chmod(home, 0o755)
            rounds.append(replay(args, Path(home)))
            print(rounds[-1])
            # Each round must have replayed all of it: to where the first has.
            end = end or lsn(rounds[0]["lsn"])
            validity.add(expected=end - start, seen=lsn(rounds[-1]["lsn"]) - start, different=0)
    version = (args.recorded / "base" / "PG_VERSION").read_text().strip()
    result = {"version": version, "shared_buffers": args.shared_buffers, "rounds": rounds}
    artifact.refusing(lambda: artifact.write(args.out / "redo_standby.json", topology, validity, result))


main()
