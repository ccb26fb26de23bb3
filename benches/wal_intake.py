#!/usr/bin/env python3
"""How fast a pageserver takes in WAL from a live Postgres, against a stock standby that replays the same WAL.

A primary keeps its WAL. A pageserver attaches, a standby is made by pg_basebackup, both are stopped, pgbench writes
WAL. Then, in turn and several times, a copy of each is started and has to catch up from the same walsender. What
counts is the time from a tenth of the way to the end: starting up is left out for both.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median

HTTP = 19898
PG = 16400
TICK = 0.02


def as_postgres(*command):
    prefix = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    return [*prefix, *map(str, command)]


def run(*command, **kwargs):
    done = subprocess.run(as_postgres(*command), cwd="/", capture_output=True, text=True, **kwargs)
    if done.returncode != 0:
        raise SystemExit(f"{command} failed: {done.stderr}{done.stdout}")
    return done.stdout


def lsn(text):
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def cpu_seconds(pids):
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def children(pid):
    out = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(word) for word in out.split()]


class Clock:
    """Notes when a position passes a tenth of the way and the end."""

    def __init__(self, start, end):
        self.marks = [start + (end - start) // 10, end]
        self.span = end - self.marks[0]
        self.times = []

    def see(self, position):
        while len(self.times) < 2 and position >= self.marks[len(self.times)]:
            self.times.append(time.monotonic())
        return len(self.times) == 2

    def rate(self):
        seconds = self.times[1] - self.times[0]
        return {"seconds": round(seconds, 3), "mib_per_s": round(self.span / seconds / 2**20, 1)}


class Bench:
    def __init__(self, args, full_page_writes):
        self.args, self.fpw = args, full_page_writes
        self.root = Path(tempfile.mkdtemp(prefix="wal-intake-", dir=args.dir))
        os.chmod(self.root, 0o755)
        self.bin = Path(args.pg_bin)
        self.primary = self.owned("primary")
        self.standby = self.owned("standby")
        self.store = self.root / "store"

    def owned(self, name):
        path = self.root / name
        path.mkdir()
        if os.getuid() == 0:
            shutil.chown(path, "postgres")
        path.chmod(0o700)
        return path

    def psql(self, sql, directory=None):
        directory = directory or self.primary
        return run(self.bin / "psql", "-X", "-h", directory, "-U", "postgres", "-Atc", sql).strip()

    def pg_ctl(self, directory, *args):
        run(self.bin / "pg_ctl", "-D", directory, "-w", "-l", directory / "log", *args)

    def configure(self, directory, **settings):
        with open(directory / "postgresql.conf", "a") as conf:
            conf.writelines(f"{name} = {value}\n" for name, value in settings.items())

    def make_primary(self):
        run(self.bin / "initdb", "-D", self.primary, "-U", "postgres", "--locale=C", "-E", "UTF8", "-N")
        self.configure(
            self.primary, listen_addresses="''", unix_socket_directories=f"'{self.primary}'", fsync="off",
            full_page_writes="on" if self.fpw else "off", wal_keep_size="'24GB'", max_wal_size="'4GB'",
            checkpoint_timeout="'30min'", shared_buffers="'512MB'", synchronous_commit="off", max_wal_senders="10",
        )
        self.pg_ctl(self.primary, "start")
        run(self.bin / "pgbench", "-h", self.primary, "-U", "postgres", "-i", "-q", "-s", self.args.scale, "postgres")

    def call(self, method, path, body=None):
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"http://127.0.0.1:{HTTP}{path}", data=data, method=method)
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def start_pageserver(self, store):
        config = [f"-clisten_http_addr=127.0.0.1:{HTTP}", f"-clisten_pg_addr=127.0.0.1:{PG}"]
        log = open(self.root / "pageserver.log", "a")
        process = subprocess.Popen([self.args.pageserver, "--workdir", store, *config], stdout=log, stderr=log)
        for _ in range(500):
            try:
                self.call("GET", "/v1/status")
                return process
            except OSError:
                time.sleep(0.02)
        raise SystemExit("the pageserver does not answer: " + (self.root / "pageserver.log").read_text()[-1000:])

    def stop(self, process):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0

    def attach(self):
        subprocess.run([self.args.pageserver, "init", "--workdir", self.store], check=True, capture_output=True)
        process = self.start_pageserver(self.store)
        connstr = f"host={self.primary} user=postgres dbname=postgres"
        made = self.call("POST", "/v1/attach", {"connstr": connstr})
        self.timeline = f"/v1/tenant/{made['tenant_id']}/timeline/{made['timeline_id']}"
        while True:
            state = self.call("GET", self.timeline + "/attach_status")
            if state["phase"] == "failed":
                raise SystemExit(f"attach failed: {state}")
            if state["phase"] == "streaming":
                break
            time.sleep(0.1)
        target = lsn(self.psql("select pg_switch_wal()"))
        while self.position() < target:
            time.sleep(0.1)
        self.stop(process)

    def position(self):
        return lsn(self.call("GET", self.timeline)["last_record_lsn"])

    def make_standby(self):
        run(self.bin / "pg_basebackup", "-h", self.primary, "-U", "postgres", "-D", self.standby, "-R", "-c", "fast",
            "-X", "none")
        # The primary's socket lies in its data directory, and so does the lock of it.
        (self.standby / ".s.PGSQL.5432.lock").unlink()
        self.configure(self.standby, unix_socket_directories=f"'{self.standby}'", fsync="on", hot_standby="on")

    def load(self):
        start = lsn(self.psql("select pg_current_wal_lsn()"))
        while (end := lsn(self.psql("select pg_current_wal_lsn()"))) - start < self.args.gib * 2**30:
            run(self.bin / "pgbench", "-h", self.primary, "-U", "postgres", "-n", "-c", 4, "-j", 2, "-T", 20,
                "postgres")
            print(f"  {(end - start) / 2**20:.0f} MiB of WAL", file=sys.stderr)
        self.psql("checkpoint")
        return start, lsn(self.psql("select pg_current_wal_flush_lsn()"))

    def copy(self, source, name):
        target = self.root / name
        subprocess.run(["cp", "-a", source, target], check=True)
        subprocess.run(["sync"], check=True)
        return target

    def time_pageserver(self, start, end):
        store = self.copy(self.store, "store-copy")
        clock = Clock(start, end)
        process = self.start_pageserver(store)
        while not clock.see(self.position()):
            time.sleep(TICK)
        cpu = cpu_seconds([process.pid])
        rss = int(next(line.split()[1] for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
                       if line.startswith("VmHWM"))) // 1024
        self.stop(process)
        shutil.rmtree(store)
        return {**clock.rate(), "cpu_seconds": cpu, "peak_rss_mib": rss}

    def time_standby(self, start, end):
        standby = self.copy(self.standby, "standby-copy")
        self.configure(standby, unix_socket_directories=f"'{standby}'")
        clock = Clock(start, end)
        self.pg_ctl(standby, "start")
        command = as_postgres(self.bin / "psql", "-X", "-h", standby, "-U", "postgres", "-At")
        shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
        position = 0
        while not clock.see(position):
            shell.stdin.write("select pg_last_wal_replay_lsn();\n")
            shell.stdin.flush()
            position = lsn(shell.stdout.readline().strip() or "0/0")
            time.sleep(TICK)
        shell.stdin.close()
        shell.wait()
        postmaster = int((standby / "postmaster.pid").read_text().split()[0])
        cpu = cpu_seconds([postmaster, *children(postmaster)])
        self.pg_ctl(standby, "-m", "immediate", "stop")
        shutil.rmtree(standby)
        return {**clock.rate(), "cpu_seconds": cpu}

    def measure(self):
        self.make_primary()
        self.attach()
        self.make_standby()
        start, end = self.load()
        rounds = []
        for number in range(self.args.rounds):
            rounds.append({"pageserver": self.time_pageserver(start, end), "standby": self.time_standby(start, end)})
            print(f"  round {number + 1}: {json.dumps(rounds[-1])}", file=sys.stderr)
        rate = {who: median(one[who]["mib_per_s"] for one in rounds) for who in ("pageserver", "standby")}
        return {"full_page_writes": self.fpw, "wal_mib": round((end - start) / 2**20), "rounds": rounds,
                "pageserver_mib_per_s": rate["pageserver"], "standby_mib_per_s": rate["standby"],
                "ratio": round(rate["pageserver"] / rate["standby"], 2)}

    def clean(self):
        if (self.primary / "postmaster.pid").exists():
            self.pg_ctl(self.primary, "-m", "immediate", "stop")
        shutil.rmtree(self.root, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pageserver", default="target/release/pageserver", type=os.path.abspath)
    parser.add_argument("--pg-bin", default="/usr/lib/postgresql/15/bin")
    parser.add_argument("--dir", default="/tmp", help="where all data goes; needs about 12 times the WAL")
    parser.add_argument("--gib", type=float, default=2, help="WAL to write, in GiB")
    parser.add_argument("--scale", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fpw", choices=["on", "off", "both"], default="both")
    parser.add_argument("--out", type=Path, help="directory for wal_intake.json")
    args = parser.parse_args()
    results = []
    for fpw in {"on": [True], "off": [False], "both": [True, False]}[args.fpw]:
        bench = Bench(args, fpw)
        try:
            results.append(bench.measure())
        finally:
            bench.clean()
        print(json.dumps({name: value for name, value in results[-1].items() if name != "rounds"}))
    if args.out:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        about = {"commit": commit, "cores": os.cpu_count(), "kernel": platform.release(), "scale": args.scale}
        (args.out / "wal_intake.json").write_text(json.dumps({**about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
