#!/usr/bin/env python3
"""What a commit waits for that waits for a pageserver, beside one that waits for a stock standby on the same disk.

One server with pgbench's tables is followed by a pageserver with a journal, and by a synchronous standby that
pg_basebackup has made. Of these one runs at a time, in turn, and TPC-B's commits wait until its disk has them
(`synchronous_commit = on`); for comparison also until a pageserver without a journal has received them
(`remote_write`), and for nobody. Who is waited for has caught up before, and a pageserver has done what compaction that
made due. Each transaction's time is noted. At the end all rows that were counted are there, and every page is compared
with the server's files.

Then 16 small servers, followed by one pageserver, each with 4 clients: how many syncs of the journal their commits
needed. Last, the processor time that one pageserver takes to catch up with the same WAL, with a journal and without, a
fresh copy of the store each time, in turn. Everything is on one disk and two cores. Nothing is left behind but
commit.json.
"""

import argparse
import json
import os
import shutil
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median

import artifact
from compaction import total
from compute_figures import MIB, SAME, SUMS, Bench, with_place
from fixtures.followed import Followed
from fixtures.lsn import parse
from fixtures.pageserver import Pageserver, Timeline
from fixtures.postgres import Postgres
from fixtures.processes import children, cpu_seconds
from fixtures.programs import program
from fixtures.wait import wait_until

# Who is waited for, and how.
NOBODY, STANDBY, JOURNAL, MEMORY = "nobody", "standby", "journal", "memory"
WAITS = {NOBODY: ("''", "on"), STANDBY: ("standby", "on"), JOURNAL: ("pageserver", "on"),
         MEMORY: ("pageserver", "remote_write")}
# WAL stays, so that whoever was stopped finds it.
KEPT = {"wal_keep_size": "'16GB'", "max_wal_size": "'4GB'", "checkpoint_timeout": "'30min'", "max_connections": 50}
GROUPS, GROUP_CLIENTS = 16, 4
WARM_UP = 2
STREAMING = "SELECT count(*) FROM pg_stat_replication WHERE application_name = '{}' AND sync_state = 'sync'"


def quantile(sorted_values: list[int], part: float) -> int:
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * part))]


class Commits(Bench):
    """A server, and those that follow it."""

    def __init__(self, args):
        super().__init__(args)
        self.validity, self.count = artifact.Validity("pages"), 0

    def prepare(self):
        server = self.make_database("primary", self.args.scale)
        server.stop()
        server.configure(**{**SAME, **KEPT})
        server.start()
        self.followed = self.follow(server, keep=True)
        self.standby = Postgres(self.installed, self.root / "standby").init_standby(server)
        self.servers.append(self.standby)
        self.standby.configure(**SAME, cluster_name="'standby'")
        self.pageserver.stop()

    @property
    def primary(self) -> Postgres:
        return self.followed.postgres

    def pgbench(self, clients: int, seconds: int) -> list[int]:
        """Runs TPC-B. The time of each transaction in us, in order of size."""
        logs = self.primary.own(self.root / "logs")
        self.primary.run("pgbench", *self.primary.address(), "-n", "-c", clients, "-j", min(clients, 2), "-T", seconds,
                         "--log", f"--log-prefix={logs}/log", "postgres", timeout=seconds + 60)
        times = []
        for log in logs.iterdir():
            times += [int(line.split()[2]) for line in log.read_text().splitlines()]
        shutil.rmtree(logs)
        return sorted(times)

    def begin(self, who: str) -> int | None:
        """Has commits wait for this one, which has caught up. Returns its process."""
        names, level = WAITS[who]
        process = None
        if who == STANDBY:
            self.standby.start()
            process = self.standby.postmaster()
        elif who != NOBODY:
            self.pageserver.configure(durability="journal" if who == JOURNAL else "bucket")
            process = self.pageserver.start().process.pid
        self.primary.configure(synchronous_standby_names=f"'{names}'" if who != NOBODY else names,
                               synchronous_commit=level)
        self.primary.sql("SELECT pg_reload_conf()")
        if who != NOBODY:
            wait_until(lambda: self.primary.sql(STREAMING.format(names)) == "1", 120, what=f"{who} to follow")
            end = self.primary.sql("SELECT pg_current_wal_flush_lsn()")
            caught_up = f"SELECT replay_lsn >= '{end}' FROM pg_stat_replication WHERE application_name = '{names}'"
            wait_until(lambda: self.primary.sql(caught_up) == "t", 600, what=f"{who} to catch up")
            # A journal counts from when the server keeps what only that has.
            if who == JOURNAL:
                held = f"SELECT flush_lsn >= '{end}' FROM pg_stat_replication WHERE application_name = '{names}'"
                wait_until(lambda: self.primary.sql(held) == "t", 120, what="the journal to count")
        if process and who != STANDBY:
            self.settle()
        self.primary.sql("CHECKPOINT")
        return process

    def settle(self):
        """Waits until what the WAL of the rounds before has made due is done: a round with a journal would pay for
        those of all others, as it comes after them."""
        def debt() -> float:
            return total(self.pageserver.http.metrics(), "compaction_debt_bytes")

        wait_until(lambda: not debt(), 600, every=0.2, what="the end of all jobs")

    def finish(self, who: str):
        self.primary.configure(synchronous_standby_names="''", synchronous_commit="on")
        self.primary.sql("SELECT pg_reload_conf()")
        if who == STANDBY:
            self.standby.stop("fast")
        elif who != NOBODY:
            self.pageserver.stop()

    def round(self, who: str, clients: int) -> dict:
        process = self.begin(who)
        try:
            self.pgbench(clients, WARM_UP)
            tree = [process, *children(process)] if process else []
            before, wal = cpu_seconds(*tree), parse(self.primary.sql("SELECT pg_current_wal_lsn()"))
            counted = self.syncs() if who == JOURNAL else None
            times = self.pgbench(clients, self.args.seconds)
            found = {"clients": clients, "waits_for": who, "per_s": round(len(times) / self.args.seconds, 1),
                     "p50_us": quantile(times, 0.5), "p99_us": quantile(times, 0.99)}
            written = parse(self.primary.sql("SELECT pg_current_wal_lsn()")) - wal
            found["wal_mib"] = round(written / MIB, 1)
            if process:
                found["cpu_ms_per_mib"] = round((cpu_seconds(*tree) - before) * 1000 / (written / MIB), 1)
            if counted is not None:
                found["commits_per_sync"] = round(len(times) / (self.syncs() - counted), 2)
            self.count += len(times)
        finally:
            self.finish(who)
        self.say(json.dumps(found))
        return found

    def syncs(self) -> int:
        return int(self.pageserver.http.metrics()["pageserver_journal_syncs_total"])

    def waits(self) -> list[dict]:
        """All who may be waited for, in turn."""
        rounds = []
        for _ in range(self.args.rounds):
            for clients in self.args.clients:
                rounds += [self.round(who, clients) for who in WAITS]
        return rounds

    def check(self):
        """What was counted is there, and the pageserver has every page of the server's files."""
        accounts, tellers, branches, history, _, rows = map(int, self.primary.sql(SUMS).split("|"))
        assert accounts == tellers == branches == history, "the sums differ"
        assert rows >= self.count, f"{self.count} transactions were counted, and {rows} are there"
        self.pageserver.start()
        lsn = self.followed.stop_postgres(600)
        self.followed.timeline.wait_for_lsn(lsn, 600)
        self.pageserver.stop()
        self.verify_files(self.followed.timeline, self.primary.data)

    def group(self) -> dict:
        """Many servers at once, and one journal."""
        pageserver = Pageserver(program("pageserver"), self.root / "group", durability="journal")
        with ExitStack() as stack:
            pageserver.start()
            stack.callback(pageserver.destroy)
            servers = []
            for number in range(GROUPS):
                server = Postgres(self.installed, self.root / f"group{number}")
                stack.callback(server.destroy)
                server.init(**{**SAME, "shared_buffers": "'16MB'", "wal_keep_size": 0, "max_wal_size": "'256MB'",
                               "max_replication_slots": 10})
                server.start().bench_init(1)
                pageserver.follow(server, timeout=600)
                server.configure(synchronous_standby_names="'pageserver'")
                server.sql("SELECT pg_reload_conf()")
                servers.append(server)
            for server in servers:
                wait_until(lambda it=server: it.sql(STREAMING.format("pageserver")) == "1", 60, what="a server to wait")
                server.bench(40, clients=4)
            return self.group_load(pageserver, servers)

    def group_load(self, pageserver, servers) -> dict:
        def now() -> tuple[int, int]:
            done = sum(int(server.sql("SELECT count(*) FROM pgbench_history")) for server in servers)
            return done, int(pageserver.http.metrics()["pageserver_journal_syncs_total"])

        before = now()
        started = time.monotonic()
        running = [server.start_bench(self.args.seconds, clients=GROUP_CLIENTS) for server in servers]
        codes = [bench.wait(self.args.seconds + 60) for bench in running]
        seconds = time.monotonic() - started
        assert not any(codes), f"pgbench ended with {codes}"
        commits, syncs = (after - first for after, first in zip(now(), before, strict=True))
        return {"servers": GROUPS, "clients": GROUP_CLIENTS, "commits": commits, "syncs": syncs,
                "per_s": round(commits / seconds, 1), "syncs_per_4_commits": round(4 * syncs / commits, 2)}

    def intake(self) -> list[dict]:
        """Catches up with the same WAL again and again."""
        store, start = self.root / "intake", parse(self.primary.sql("SELECT pg_current_wal_flush_lsn()"))
        shutil.copytree(self.pageserver.workdir, store)
        while (end := parse(self.primary.sql("SELECT pg_current_wal_flush_lsn()"))) - start < self.args.gib * 2**30:
            self.primary.start_bench(10, clients=4).wait()
        rounds = []
        for _ in range(self.args.rounds):
            rounds += [self.catch_up(store, journal, start, end) for journal in (False, True)]
        shutil.rmtree(store)
        return rounds

    def catch_up(self, store: Path, journal: bool, start: int, end: int) -> dict:
        copy = self.root / "intake-copy"
        shutil.copytree(store, copy)
        os.sync()
        server = Pageserver(program("pageserver"), copy, durability="journal" if journal else "bucket")
        timeline = Timeline(server, self.followed.timeline.tenant, self.followed.timeline.id)
        try:
            server.start()
            began, cpu = time.monotonic(), cpu_seconds(server.process.pid)
            wait_until(lambda: parse(timeline.last_record_lsn()) >= end, 1800, every=0.02, what="the end of the WAL")
            server.http.put(f"{timeline.path}/checkpoint", timeout=600)
            mib = (end - start) / MIB
            found = {"journal": journal, "wal_mib": round(mib), "mib_per_s": round(mib / (time.monotonic() - began), 1),
                     "cpu_ms_per_mib": round((cpu_seconds(server.process.pid) - cpu) * 1000 / mib, 2)}
        finally:
            server.destroy()
            with suppress(FileNotFoundError):
                shutil.rmtree(copy)
        self.say(json.dumps(found))
        return found


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--seconds", type=int, default=15, help="of each run of pgbench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gib", type=float, default=1, help="WAL to catch up with")
    return with_place(parser)


def main():
    args = parse_arguments()
    topology = artifact.topology(args.dir, profile=os.environ.get("TEST_PROFILE", "release"))
    bench = Commits(args)
    try:
        bench.prepare()
        waits = bench.waits()
        intake = bench.intake()
        bench.check()
        group = bench.group()
    finally:
        bench.clean()
    print(json.dumps(group))
    middle = {f"{who}, {clients}": median(one["p50_us"] for one in waits
                                          if one["waits_for"] == who and one["clients"] == clients)
              for who in WAITS for clients in args.clients}
    print(json.dumps(middle))
    if args.out:
        results = {"scale": args.scale, "seconds": args.seconds, "waits": waits, "group": group, "intake": intake}
        artifact.refusing(lambda: artifact.write(args.out / "commit.json", topology, bench.validity, results))


if __name__ == "__main__":
    main()
