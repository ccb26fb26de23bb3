#!/usr/bin/env python3
"""What a compute costs: its first answer, its disk, its scans, its load, compared with the same Postgres on a plain
directory.

Databases of several sizes are created with little WAL and followed, and their server is removed. Then, for each size:
new computes on new branches, timed from the command to the first answer; the disk that one takes; cold scans of it. On
a compute of pgbench's scale, alternating with a plain server: TPC-B, and selects of cached data. Each answer is
compared with what the loaded tables have, and after TPC-B the sums of all balances are compared with the history.
Nothing is left behind but compute.json.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import artifact

sys.path.insert(0, str(artifact.REPOSITORY / "test_runner"))

from fixtures.followed import Followed  # noqa: E402
from fixtures.computes import Compute, Computes  # noqa: E402
from fixtures.pagectl import Pagectl  # noqa: E402
from fixtures.pageserver import Pageserver, Timeline  # noqa: E402
from fixtures.postgres import Postgres  # noqa: E402
from fixtures.programs import program  # noqa: E402
from fixtures.servers import find_server  # noqa: E402

# Size of a unit of pgbench's scale, with its index.
MIB_PER_SCALE = 15
MIB = 1 << 20
# Settings of both servers of a comparison. Commits reach the disk.
SAME = {"shared_buffers": "128MB", "fsync": "on", "autovacuum": "off", "max_wal_size": "4GB",
        "checkpoint_timeout": "5min", "wal_level": "replica"}
# Other settings that affect the speed of a commit; they must be the same on both.
TOLD = [*SAME, "synchronous_commit", "synchronous_standby_names", "full_page_writes", "wal_sync_method",
        "wal_compression", "wal_buffers", "commit_delay", "bgwriter_lru_maxpages", "wal_log_hints", "data_checksums"]
# The number of rows, a checksum of their keys, and the sum of their contents, which are all zero after loading.
SCAN = "SELECT count(*), bit_xor(aid), sum(abalance) FROM pgbench_accounts"
POINT = "SELECT aid, bid, abalance FROM pgbench_accounts WHERE aid = {}"
# TPC-B adds each delta to an account, a teller and a branch, and writes it into the history.
SUMS = """SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
    (SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history),
    (SELECT count(*) FROM pgbench_accounts), (SELECT count(*) FROM pgbench_history)"""
ROWS_PER_SCALE = 100_000
# The same rows as pgbench makes, with other fillers than blanks.
FILL = """BEGIN; TRUNCATE pgbench_accounts, pgbench_tellers, pgbench_branches;
    INSERT INTO pgbench_branches SELECT bid, 0 FROM generate_series(1, {scale}) bid;
    INSERT INTO pgbench_tellers SELECT tid, (tid - 1) / 10 + 1, 0 FROM generate_series(1, {scale} * 10) tid;
    INSERT INTO pgbench_accounts SELECT aid, (aid - 1) / 100000 + 1, 0, {filler}
        FROM generate_series(1, {scale} * 100000) aid; COMMIT"""


class Bench:
    """A work directory, and everything that was started there."""

    # What each account has instead of blanks, as SQL.
    filler: str | None = None

    def __init__(self, args):
        self.args = args
        self.root = Path(tempfile.mkdtemp(prefix="compute-figures-", dir=args.dir))
        self.root.chmod(0o755)
        self.installed = find_server(args.pg_major)
        self.servers: list[Postgres] = []
        self.pageserver: Pageserver | None = None
        self.computes: Computes | None = None
        self.validity = artifact.Validity("rows")

    def say(self, text):
        print(f"  {text}", file=sys.stderr, flush=True)

    def make_database(self, name: str, scale: int) -> Postgres:
        """A server with pgbench's tables, loaded without WAL, ready to be followed."""
        server = Postgres(self.installed, self.root / name)
        self.servers.append(server)
        server.init(wal_level="minimal", max_wal_senders=0, fsync="off", max_wal_size="'16GB'", shared_buffers="'1GB'",
                    maintenance_work_mem="'1GB'", wal_keep_size=0, track_commit_timestamp="off")
        server.start()
        started = time.monotonic()
        pgbench = ["pgbench", *server.address(), "-i", "-q", "-s", scale, "postgres", "-I"]
        server.run(*pgbench, "dt" if self.filler else "dtg", timeout=7200)
        if self.filler:
            fill = FILL.format(scale=scale, filler=self.filler)
            server.run("psql", "-Xq", *server.connection(), "-c", fill, timeout=7200)
        server.run(*pgbench, "p", timeout=7200)
        server.sql("VACUUM (ANALYZE, FREEZE)")
        server.stop()
        server.configure(wal_level="replica", max_wal_senders=10, max_replication_slots=10, fsync="off",
                         shared_buffers="'128MB'")
        server.start()
        size = int(server.sql("SELECT pg_database_size('postgres')"))
        self.say(f"{name}: {size / MIB:.0f} MiB in {time.monotonic() - started:.0f} s")
        return server

    def follow(self, server: Postgres, *, keep: bool, **settings) -> Followed:
        """A separate pageserver that follows the database; unless `keep`, it continues without the server."""
        name = f"store-{server.data.name}"
        self.pageserver = Pageserver(program("pageserver"), self.root / name, **settings).start()
        started = time.monotonic()
        timeline = self.pageserver.follow(server, timeout=7200)
        followed = Followed(server, self.pageserver, timeline)
        followed.catch_up(7200)
        self.pageserver.http.put(f"{timeline.path}/checkpoint", timeout=3600)
        self.say(f"{name}: followed in {time.monotonic() - started:.0f} s")
        if not keep:
            server.destroy()
        self.computes = Computes(program("pagectl"), self.pageserver, self.root / f"computes-{server.data.name}")
        return followed

    def verify_files(self, timeline: Timeline, files: Path, *, branch=None, lsn=None) -> dict:
        """Compares every page of a stopped server's files with what the stopped pageserver has."""
        words = ["verify", "--pgdata", files, "--timeline", branch or timeline.id, "--tenant", timeline.tenant]
        ctl = Pagectl(program("pagectl"), self.pageserver.workdir)
        answer = json.loads(ctl.run("--json", *words, *(["--lsn", lsn] if lsn else []), timeout=3600).stdout)
        self.validity.add(expected=answer["compared"], seen=answer["compared"], different=answer["different"])
        return answer

    def detach(self):
        """Ends what `follow` has started."""
        if self.computes:
            self.computes.destroy_all()
            shutil.rmtree(self.computes.dir, ignore_errors=True)
            self.computes = None
        if self.pageserver:
            self.pageserver.destroy()
            shutil.rmtree(self.pageserver.workdir, ignore_errors=True)
            self.pageserver = None

    def clean(self):
        try:
            self.detach()
            for server in self.servers:
                server.destroy()
        finally:
            shutil.rmtree(self.root, ignore_errors=True)

    def forget_cached(self):
        """Drops the kernel's cache of the store's files, and of all others; only root may."""
        if self.args.drop_caches:
            os.sync()
            Path("/proc/sys/vm/drop_caches").write_text("3")

    def first_answer(self, name: str, row: int) -> tuple[Compute, dict]:
        """Starts a compute on a branch of its own and queries it; measures the seconds from the command to the
        answer."""
        self.forget_cached()
        started = time.monotonic()
        self.computes.ok("start", name, "--branch", name)
        ready = time.monotonic()
        compute = Compute(self.computes, name)
        asked = time.monotonic()
        answer = compute.sql(POINT.format(row))
        # The time to look up where the compute is belongs to the measurement, not to the compute.
        times = {"ready_s": ready - started, "first_answer_s": time.monotonic() - asked + ready - started}
        self.validity.equal(answer, f"{row}|{(row - 1) // ROWS_PER_SCALE + 1}|0")
        return compute, times

    def scan(self, server: Postgres, scale: int) -> float:
        """Reads all rows, as they were loaded; returns the seconds that it took."""
        seconds, answer = timed(server, SCAN)
        rows = scale * ROWS_PER_SCALE
        wanted = f"{rows}|{(rows, 1, rows + 1, 0)[rows % 4]}|0"
        self.validity.add(expected=rows, seen=int(answer.split("|")[0]), different=0 if answer == wanted else rows)
        return seconds

    def starts(self, scale: int) -> dict:
        rounds, disk = [], []
        for number in range(self.args.starts):
            name = f"s{number}"
            compute, times = self.first_answer(name, 1 + (number * 7919 * 101) % (scale * 100_000))
            rounds.append({key: round(value, 3) for key, value in times.items()})
            disk.append(disk_mib(compute.dir))
            self.computes.ok("destroy", name, "--force")
        self.say(f"starts: {json.dumps(rounds)}, disk {disk}")
        return {"rounds": rounds, **{key: median(one[key] for one in rounds) for key in rounds[0]},
                "disk_mib": median(disk)}

    def scans(self, scale: int) -> dict:
        """Reads all rows on computes that have read none; then once more from the kernel's cache."""
        cold, warm, parallel = [], [], []
        for number in range(self.args.scans):
            for workers, found in ((0, cold), (2, parallel)):
                name = f"scan{number}-{workers}"
                self.forget_cached()
                setting = f"max_parallel_workers_per_gather={workers}"
                compute = self.computes.start(name, "--read-only", "--set", setting)
                size = int(compute.sql("SELECT pg_relation_size('pgbench_accounts')"))
                found.append(size / MIB / self.scan(compute, scale))
                if not workers:
                    warm.append(size / MIB / self.scan(compute, scale))
                self.computes.ok("destroy", name, "--force")
        self.say(f"scans: cold {rounded(cold)}, with workers {rounded(parallel)}, warm {rounded(warm)} MiB/s")
        return {"table_mib": round(size / MIB), "cold_mib_per_s": round(median(cold), 1),
                "cold_parallel_mib_per_s": round(median(parallel), 1), "warm_mib_per_s": round(median(warm), 1)}

    def of_size(self, mib: int) -> dict:
        scale = max(1, round(mib / MIB_PER_SCALE))
        server = self.make_database(f"db{mib}", scale)
        size = int(server.sql("SELECT pg_database_size('postgres')"))
        self.follow(server, keep=False)
        try:
            found = {"database_mib": round(size / MIB), "store_mib": disk_mib(self.pageserver.workdir)}
            found.update(self.starts(scale))
            return {**found, "scan": self.scans(scale) if self.args.scans and mib <= self.args.scan_mib else None}
        finally:
            self.detach()

    def load(self) -> dict:
        """Runs pgbench on a compute and on the server that its branch comes from, alternating."""
        server = self.make_database("load", self.args.scale)
        self.follow(server, keep=True)
        try:
            settings = [part for name, value in SAME.items() for part in ("--set", f"{name}={value}")]
            compute = self.computes.start("load", "--branch", "load", *settings)
            self.set_free(server)
            return self.compare(server, compute)
        finally:
            server.destroy()
            self.detach()

    def set_free(self, server: Postgres, settings=SAME):
        """From here on nobody follows the server: it has moved to where the pageserver does not look."""
        server.stop()
        shutil.rmtree(server.sockets)
        server.sockets = Path(tempfile.mkdtemp(prefix="pgs-", dir="/tmp"))
        server.own(server.sockets)
        server.configure(unix_socket_directories=f"'{server.sockets}'",
                         **{name: f"'{value}'" for name, value in settings.items()})
        server.start()
        server.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")

    def compare(self, server: Postgres, compute: Compute) -> dict:
        both = (("plain", server), ("compute", compute))
        found = {who: {"select": [], "tpcb": []} for who, _ in both}
        for _, one in both:
            one.sql("CREATE EXTENSION pg_prewarm")
            one.sql("SELECT sum(pg_prewarm(oid, 'read')) FROM pg_class WHERE relname LIKE 'pgbench_%'")
        assert_same_settings(server, compute)
        for number in range(self.args.rounds):
            for kind, flags in (("select", ["-S"]), ("tpcb", [])):
                for who, one in both if number % 2 else both[::-1]:
                    one.sql("CHECKPOINT")
                    found[who][kind].append(self.pgbench(one, *flags))
        for _, one in both:
            self.check_sums(one)
        self.say(json.dumps(found))
        middle = {who: {kind: median(tps) for kind, tps in kinds.items()} for who, kinds in found.items()}
        ratio = {kind: round(middle["compute"][kind] / middle["plain"][kind], 2) for kind in ("tpcb", "select")}
        return {"scale": self.args.scale, "clients": self.args.clients, "seconds": self.args.seconds, "tps": found,
                "ratio": ratio}

    def check_sums(self, server: Postgres):
        """After TPC-B: no account is lost or added, and no delta is lost or applied twice."""
        accounts, tellers, branches, history, rows, transactions = map(int, server.sql(SUMS).split("|"))
        differ = not (accounts == tellers == branches == history) or not transactions
        self.validity.add(expected=self.args.scale * ROWS_PER_SCALE, seen=rows, different=rows if differ else 0)

    def pgbench(self, server: Postgres, *flags) -> float:
        out = server.run("pgbench", *server.address(), "-n", "-c", self.args.clients, "-j", 2, "-T",
                         self.args.seconds, *flags, "postgres", timeout=self.args.seconds + 300).stdout
        line = next(line for line in out.splitlines() if line.startswith("tps = "))
        return round(float(line.split()[2]), 1)


def disk_mib(place: Path) -> float:
    """Disk space allocated below a directory, without what is mounted there."""
    # Files come and go meanwhile: du missing one is no reason to fail.
    out = subprocess.run(["du", "-x", "-s", "-B1", place], capture_output=True, text=True).stdout
    return round(int(out.split()[0]) / MIB, 1)


def assert_same_settings(*servers: Postgres, names=()):
    """Fails unless the servers that are compared commit and write alike."""
    show = "".join(f"SHOW {name};" for name in [*TOLD, *names])
    first, *others = (one.sql(show) for one in servers)
    assert all(other == first for other in others), [first, *others]


def timed(server: Postgres, sql: str) -> tuple[float, str]:
    """Seconds that a statement takes, as reported by psql, and its answer."""
    answer, _, took = server.sql(f"\\timing on\n{sql};").rpartition("Time: ")
    return float(took.split()[0]) / 1000, answer.strip()


def rounded(figures) -> str:
    return ", ".join(f"{figure:.0f}" for figure in figures)


def with_place(parser):
    """Adds the arguments that say on what and where any of these benches runs."""
    parser.add_argument("--drop-caches", action="store_true", help="before each start and scan; only root may")
    parser.add_argument("--pg-major", type=int, default=15)
    parser.add_argument("--dir", default="/tmp", help="where all data goes; needs 2.5 times the largest size")
    parser.add_argument("--out", type=Path, help="directory for the results")
    return parser.parse_args()


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, nargs="*", default=[1024, 20480], help="sizes of databases; none: no starts")
    parser.add_argument("--starts", type=int, default=7, help="computes to start for each size")
    parser.add_argument("--scans", type=int, default=3, help="cold scans for each size, each with and without workers")
    parser.add_argument("--scan-mib", type=int, default=1024, help="scans are only made of databases of this size")
    parser.add_argument("--scale", type=int, default=50, help="of pgbench's comparison; 0: none")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=30, help="of each run of pgbench")
    return with_place(parser)


def main():
    args = parse()
    bench = Bench(args)
    topology = artifact.topology(args.dir, profile=os.environ.get("TEST_PROFILE", "release"))
    results = {"pg_major": args.pg_major, "drop_caches": args.drop_caches}
    try:
        results["sizes"] = [bench.of_size(mib) for mib in args.mib]
        results["pgbench"] = bench.load() if args.scale else None
    finally:
        bench.clean()
    print(json.dumps(results))
    if args.out:
        artifact.refusing(lambda: artifact.write(args.out / "compute.json", topology, bench.validity, results))


if __name__ == "__main__":
    main()
