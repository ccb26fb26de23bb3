#!/usr/bin/env python3
"""What a replica of a compute costs: its first answer, how far it is behind, its promotion.

A database is created with little WAL and followed, its server is removed, and a compute writes a branch of it. Replicas
of the compute are timed from the command to the first answer, first while the compute is idle, then while pgbench runs
on it. Then one stays while pgbench goes on, and is asked again and again how old the newest transaction is that it
shows: that is the time between two commits and the lag. In the end it is promoted. Each answer is compared with what
the compute has, and the sums of all balances with the history. Nothing is left behind but replica.json.
"""

import argparse
import json
import os
import subprocess
import time

import artifact
from compute_figures import MIB, MIB_PER_SCALE, POINT, ROWS_PER_SCALE, SUMS, Bench, disk_mib, with_place

from fixtures import lsn as lsns
from fixtures.computes import Compute
from fixtures.load import load
from fixtures.wait import wait_until

# Each question is a session's own statement: one that lasts would keep the replica from replaying.
AGE = "SELECT extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) * 1000;\n\\! sleep 0.05\n"
PAUSE = 0.05


class Replicas(Bench):
    """A compute and its replicas."""

    def run(self) -> dict:
        scale = max(1, self.args.mib // MIB_PER_SCALE)
        server = self.make_database("origin", scale)
        size = int(server.sql("SELECT pg_database_size('postgres')"))
        self.follow(server, keep=False)
        settings = ["--set", "shared_buffers=128MB", "--set", "autovacuum=off"]
        primary = self.computes.start("dev", "--branch", "dev", *settings)
        found = {"mib": round(size / MIB), "clients": self.args.clients, "idle": self.starts(scale)}
        with load(primary, self.args.clients):
            time.sleep(2)
            found["loaded"] = self.starts(scale)
            replica, _ = self.first_of("lasting", 1)
            found["lag"] = self.lag(primary, replica)
        self.catch_up(primary, replica)
        self.balances(primary, replica)
        found["promote_s"] = self.promote(replica)
        return found

    def first_of(self, name: str, row: int) -> tuple[Compute, dict]:
        """Starts a replica; the seconds from the command to the answer."""
        self.forget_cached()
        started = time.monotonic()
        self.computes.ok("start", name, "--replica-of", "dev")
        ready = time.monotonic()
        replica = Compute(self.computes, name)
        asked = time.monotonic()
        answer = replica.sql(POINT.format(row))
        # The time to look up where it is belongs to the measurement, not to the replica.
        times = {"ready_s": ready - started, "first_answer_s": time.monotonic() - asked + ready - started}
        # pgbench changes the balance.
        self.validity.equal(answer.rpartition("|")[0], f"{row}|{(row - 1) // ROWS_PER_SCALE + 1}")
        return replica, times

    def starts(self, scale: int) -> list[dict]:
        rounds = []
        for number in range(self.args.starts):
            row = 1 + (number * 7919 * 101) % (scale * ROWS_PER_SCALE)
            replica, times = self.first_of(f"r{number}", row)
            rounds.append({**{key: round(value, 3) for key, value in times.items()}, "disk_mib": disk_mib(replica.dir)})
            self.computes.ok("destroy", replica.name, "--force")
        self.say(f"starts: {json.dumps(rounds)}")
        return rounds

    def lag(self, primary: Compute, replica: Compute) -> dict:
        """Milliseconds, sorted, and what pgbench wrote meanwhile."""
        commits = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'"
        before, began = int(primary.sql(commits)), time.monotonic()
        script = AGE * int(self.args.seconds / PAUSE)
        asking = replica.popen("psql", "-XqAt", *replica.connection(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True)
        said, _ = asking.communicate(script, timeout=self.args.seconds * 10 + 60)
        ages = sorted(float(line) for line in said.split())
        seconds = time.monotonic() - began
        rate = (int(primary.sql(commits)) - before) / seconds
        self.validity.add(expected=int(self.args.seconds / PAUSE), seen=len(ages), different=0)
        found = {"ms": [round(age, 2) for age in ages], "commits_per_s": round(rate), "seconds": round(seconds, 1)}
        self.say(f"lag: median {ages[len(ages) // 2]:.1f} ms, p99 {ages[int(len(ages) * 0.99)]:.1f} ms, "
                 f"{rate:.0f} commits/s")
        return found

    def catch_up(self, primary: Compute, replica: Compute):
        end = lsns.parse(primary.sql("SELECT pg_current_wal_flush_lsn()"))
        wait_until(lambda: lsns.parse(replica.sql("SELECT pg_last_wal_replay_lsn()")) >= end, 300, what="the replica")

    def balances(self, primary: Compute, replica: Compute):
        wanted = primary.sql(SUMS)
        accounts, tellers, branches, deltas = wanted.split("|")[:4]
        self.validity.equal(replica.sql(SUMS), wanted)
        self.validity.equal((accounts, tellers, branches), (deltas, deltas, deltas))

    def promote(self, replica: Compute) -> float:
        """Seconds from the command to the first commit; the primary stops in order."""
        wanted = replica.sql(SUMS)
        began = time.monotonic()
        self.computes.ok("promote", replica.name)
        replica.sql("CREATE TABLE promoted AS SELECT 1 AS i")
        took = time.monotonic() - began
        self.validity.equal(replica.sql(SUMS), wanted)
        replica.stop()
        self.say(f"promoted after {took:.2f} s")
        return round(took, 3)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=20480, help="size of the database")
    parser.add_argument("--starts", type=int, default=7, help="replicas to start, without and with load")
    parser.add_argument("--clients", type=int, default=4, help="of pgbench")
    parser.add_argument("--seconds", type=int, default=60, help="for which the lag is measured")
    return with_place(parser)


def main():
    args = parse_args()
    bench = Replicas(args)
    topology = artifact.topology(args.dir, profile=os.environ.get("TEST_PROFILE", "release"))
    results = {"pg_major": args.pg_major, "drop_caches": args.drop_caches}
    try:
        results.update(bench.run())
    finally:
        bench.clean()
    print(json.dumps(results))
    if args.out:
        artifact.refusing(lambda: artifact.write(args.out / "replica.json", topology, bench.validity, results))


if __name__ == "__main__":
    main()
