#!/usr/bin/env python3
"""What a gateway costs: the time until a sleeping branch answers, what a session through it loses, and its memory.

A pageserver follows a database, whose server is then removed. Then: psql through the gateway asks branches that sleep,
one after the other and many at once. On one compute, in turn with the same over TCP without the gateway: one client
that asks for a constant, with the latency of each question; and pgbench's selects by several clients. Every run of
pgbench that has an error ends the benchmark, and each branch's rows are counted. At last idle connections are opened,
with the memory of the gateway's process before and after. Nothing is left behind but gateway.json.
"""

import argparse
import asyncio
import json
import os
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import artifact
from compute_figures import MIB, MIB_PER_SCALE, ROWS_PER_SCALE, Bench, with_place

import asyncpg
from fixtures.computes import Compute
from fixtures.gateway import PASSWORD, Gateway
from fixtures.processes import rss_mib
from fixtures.wait import wait_until

COUNT = "SELECT count(*) FROM pgbench_branches"
# Of the compute that all figures but the first are of.
SETTINGS = ["--set", "shared_buffers=512MB", "--set", "autovacuum=off"]
# Processes of Postgres besides those of clients.
RESERVED = 50


class GatewayFigures(Bench):
    """A gateway, and the computes behind it."""

    def run(self) -> dict:
        scale, mib = self.follow_database()
        gateway = Gateway(self.computes, "--connections-max", str(2 * self.args.idle + 100),
                          "--branch-connections-max", str(self.args.idle + 100))
        try:
            found = {"database_mib": mib, "wakes": self.wakes(gateway, scale),
                     "at_once": self.at_once(gateway, scale), **self.sessions(gateway)}
            return {**found, "idle": asyncio.run(self.idle(gateway))}
        finally:
            gateway.end()

    def follow_database(self) -> tuple[int, int]:
        """Makes the database that branches are of; returns its scale and how many MiB it has."""
        scale = max(1, round(self.args.mib / MIB_PER_SCALE))
        server = self.make_database("origin", scale)
        size = int(server.sql("SELECT pg_database_size('postgres')"))
        server.sql(f"ALTER ROLE postgres PASSWORD '{PASSWORD}'")
        self.follow(server, keep=False)
        return scale, round(size / MIB)

    def branch(self, name: str) -> str:
        done = self.computes.pagectl("branch", "create", name)
        assert done.code == 0, done.text
        return name

    def ask(self, gateway: Gateway, branch: str, scale: int) -> float:
        """Seconds until a branch has answered, psql's own start included."""
        began = time.monotonic()
        answer = gateway.sql(branch, COUNT)
        seconds = time.monotonic() - began
        self.validity.add(expected=scale, seen=int(answer), different=0 if int(answer) == scale else scale)
        return round(seconds, 3)

    def wakes(self, gateway: Gateway, scale: int) -> dict:
        """Branches without a compute, then the same with one that sleeps, then awake."""
        new, asleep, awake = [], [], []
        for number in range(self.args.wakes):
            name = self.branch(f"w{number}")
            self.forget_cached()
            new.append(self.ask(gateway, name, scale))
            self.computes.ok("stop", name)
            self.forget_cached()
            asleep.append(self.ask(gateway, name, scale))
            awake.append(self.ask(gateway, name, scale))
            self.computes.ok("destroy", name, "--force")
        found = {"new_s": new, "asleep_s": asleep, "awake_s": awake}
        self.say(json.dumps(found))
        return found

    def at_once(self, gateway: Gateway, scale: int) -> dict:
        """Sleeping branches that are asked all at once: the seconds until each has answered."""
        names = [self.branch(f"m{number}") for number in range(self.args.at_once)]
        for name in names:
            self.ask(gateway, name, scale)
            self.computes.ok("stop", name)
        before = rss_mib(gateway.process.pid)
        with ThreadPoolExecutor(len(names)) as pool:
            seconds = list(pool.map(lambda name: self.ask(gateway, name, scale), names))
        for name in names:
            self.computes.ok("destroy", name, "--force")
        found = {"count": len(names), "first_s": min(seconds), "last_s": max(seconds),
                 "gateway_mib": round(before, 1)}
        self.say(json.dumps(found))
        return found

    def sessions(self, gateway: Gateway) -> dict:
        """One compute, with and without the gateway."""
        name = self.branch("busy")
        connections = self.args.idle + RESERVED
        compute = self.computes.start(name, "--branch", name, "--listen", "127.0.0.1", *SETTINGS, "--set",
                                      f"max_connections={connections}")
        compute.sql("CREATE EXTENSION pg_prewarm")
        compute.sql("SELECT sum(pg_prewarm(oid)) FROM pg_class WHERE relname LIKE 'pgbench_%'")
        ways = {"direct": compute.port, "gateway": gateway.port}
        script = self.root / "one.sql"
        script.write_text("SELECT 1;\n")
        script.chmod(0o644)
        latency, selects = {way: [] for way in ways}, {way: [] for way in ways}
        for number in range(self.args.rounds):
            for way in ("direct", "gateway") if number % 2 == 0 else ("gateway", "direct"):
                latency[way].append(self.latencies(compute, ways[way], script, number))
                tps, _ = self.bench(compute, ways[way], "-S", "-M", "prepared", "-c", self.args.clients, "-j", 2)
                selects[way].append(tps)
        found = {"latency_us": latency, "selects_per_s": selects}
        self.say(json.dumps(found))
        return found

    def latencies(self, compute: Compute, port: int, script: Path, number: int) -> dict:
        """Of single questions by one client."""
        prefix = compute.own(self.root / f"log{number}")
        prefix.mkdir(exist_ok=True)
        compute.own(prefix)
        self.bench(compute, port, "-f", script, "-M", "prepared", "-c", 1, "-l", f"--log-prefix={prefix}/log")
        (log,) = prefix.iterdir()
        times = sorted(int(line.split()[2]) for line in log.read_text().splitlines())
        log.unlink()
        return {"count": len(times), "p50": times[len(times) // 2], "p99": times[len(times) * 99 // 100]}

    def bench(self, compute: Compute, port: int, *flags) -> tuple[float, str]:
        connstr = f"host=127.0.0.1 port={port} user=postgres@busy dbname=postgres password='{PASSWORD}'"
        if port == compute.port:
            connstr = connstr.replace("@busy", "")
        out = compute.run("pgbench", "-n", "-T", self.args.seconds, *flags, connstr,
                          timeout=self.args.seconds + 300).stdout
        assert "number of failed transactions: 0 " in out, out
        done = int(next(line for line in out.splitlines() if "actually processed" in line).split()[-1])
        self.validity.add(expected=done, seen=done, different=0)
        return round(float(next(line for line in out.splitlines() if line.startswith("tps = ")).split()[2]), 1), out

    async def idle(self, gateway: Gateway) -> dict:
        """Connections that ask once and then nothing."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        before = rss_mib(gateway.process.pid)
        connections = []
        for number in range(self.args.idle):
            connection = await asyncpg.connect(host="127.0.0.1", port=gateway.port, user="postgres@busy",
                                               password=PASSWORD, database="postgres", ssl=False, timeout=120)
            connections.append(connection)
            self.validity.equal(await connection.fetchval("SELECT $1::int", number), number)
        after = rss_mib(gateway.process.pid)
        for connection in connections:
            connection.terminate()
        found = {"connections": len(connections), "before_mib": round(before, 1), "after_mib": round(after, 1)}
        self.say(json.dumps(found))
        return found


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=20480, help="size of the database")
    parser.add_argument("--wakes", type=int, default=7, help="branches that are woken one after the other")
    parser.add_argument("--at-once", type=int, default=20, help="branches that are woken all at once")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=10, help="of each run of pgbench")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--idle", type=int, default=2000, help="idle connections")
    return with_place(parser)


def main():
    args = parse_args()
    bench = GatewayFigures(args)
    bench.validity = artifact.Validity("answers")
    topology = artifact.topology(args.dir, profile=os.environ.get("TEST_PROFILE", "release"))
    results = {"pg_major": args.pg_major, "drop_caches": args.drop_caches, "clients": args.clients}
    try:
        results.update(bench.run())
    finally:
        bench.clean()
    print(json.dumps(results))
    if args.out:
        artifact.refusing(lambda: artifact.write(Path(args.out) / "gateway.json", topology, bench.validity, results))


if __name__ == "__main__":
    main()
