#!/usr/bin/env python3
"""How long a takeover takes: from the SIGKILL of a tenant's owner to the first page and the first commit of a compute.

Two pageservers share a bucket, a directory, with the default times of leases. A compute knows both. In each round the
owner is killed; at once one client asks for a row whose page the compute does not have, and another one commits rows
one after the other. Both wait, and neither may see an error; every acknowledged row is there afterwards. Then the
killed server starts again and becomes the standby of the other one. Then the tenant is handed over on purpose in the
middle of pgbench, whose longest transaction counts, there and back; and the same without a handover. All that first
with few layers, then with many. Nothing is left behind but takeover.json.
"""

import argparse
import json
import os
import random
import threading
import time
from pathlib import Path

import artifact
from compaction import total
from compute_figures import Bench, with_place

from fixtures.computes import Computes
from fixtures.fleet import Writer
from fixtures.load import TimedBench
from fixtures.pageserver import Pageserver
from fixtures.programs import program
from fixtures.wait import wait_until

# Pages that nobody reads but the client that waits for one: of pgbench's, a compute has all after a while.
UNREAD_PAGES = 1000
# A row in each page.
UNREAD = f"""CREATE TABLE unread WITH (fillfactor = 10) AS
    SELECT i, repeat('x', 700) AS filler FROM generate_series(1, {UNREAD_PAGES}) AS i"""
# Layers as small as they may be: as many as a large database has, in little room.
SETTINGS = {"durability": "journal", "compaction_target_size": 64 << 10, "keep_lease": True}
# Rows of about 2 kB that do not compress.
NOISE = """INSERT INTO many SELECT (SELECT string_agg(sha512((random()::text || j)::bytea), '')
    FROM generate_series(1, 30) AS j WHERE i > 0) FROM generate_series(1, 30000) AS i"""


class Takeovers(Bench):
    """Two servers that take turns."""

    def run(self) -> dict:
        server = self.make_database("origin", self.args.scale)
        bucket = f"file://{self.root}/objects"
        server.sql(UNREAD)
        server.sql("VACUUM (FREEZE) unread")
        followed = self.follow(server, keep=True, remote_storage=bucket, **SETTINGS)
        self.servers_of_both = [self.pageserver, Pageserver(
            program("pageserver"), self.root / "other", remote_storage=bucket, **SETTINGS).start()]
        self.computes = Computes(program("pagectl"), self.pageserver, self.root / "computes")
        self.computes.servers = self.servers_of_both
        for pageserver in self.servers_of_both:
            # Computes expect a server that is started again where it was.
            pageserver.configure(listen_pg_addr=f"127.0.0.1:{pageserver.pg_port}",
                                 listen_http_addr=f"127.0.0.1:{pageserver.http_port}")
        self.tenant, self.number = followed.timeline.tenant, 0
        self.pages = list(range(UNREAD_PAGES))
        random.Random(7).shuffle(self.pages)
        compute = self.computes.start("dev", "--branch", "dev", "--wait-for-pageserver")
        self.owner, self.standby = self.servers_of_both
        found = {"takeover_after_s": 10, "lease_interval_s": 2, "few": self.rounds(compute)}
        found["handovers"] = [self.handovers(compute)]
        if self.args.layers:
            self.make_layers(compute)
            found["many"] = self.rounds(compute)
            found["handovers"].append(self.handovers(compute))
        compute.stop()
        server.stop()
        return found

    def make_layers(self, compute):
        """Sorted ones, beside each other as those of a large table, of the branch that the compute writes."""
        path = f"/v1/tenant/{self.tenant}/timeline/{compute.timeline.id}"
        compute.sql("CREATE TABLE many (noise bytea)")
        began = time.monotonic()
        while self.layers(path) < self.args.layers:
            compute.sql(NOISE)
            self.owner.http.put(f"{path}/checkpoint", timeout=600)
            wait_until(lambda: not total(self.owner.http.metrics(), "compaction_debt_bytes"), 600, every=0.5,
                       what="the end of all jobs")
        self.say(f"{self.layers(path)} layers in {time.monotonic() - began:.0f} s")

    def layers(self, path: str) -> int:
        return self.owner.http.get(path)["layer_count"]

    def rounds(self, compute) -> dict:
        found = {"layers": self.layers(f"/v1/tenant/{self.tenant}/timeline/{compute.timeline.id}"),
                 "page_s": [], "commit_s": []}
        for _ in range(self.args.rounds):
            page, commit = self.round(compute)
            found["page_s"].append(round(page, 3))
            found["commit_s"].append(round(commit, 3))
            self.say(f"{found['layers']} layers: a page after {page:.2f} s, a commit after {commit:.2f} s")
        return found

    def round(self, compute) -> tuple[float, float]:
        self.standby.http.put(f"/v1/tenant/{self.tenant}/location_config", {"mode": "Secondary"})
        wait_until(lambda: self.sees_lease(), 60, what="the owner's lease")
        # Not always at the same moment of an interval.
        time.sleep(2 + random.Random(self.number).random() * 2)
        self.number += 1
        with Writer(compute, f"acknowledged{self.number}") as writer:
            writer.acknowledged_after(time.monotonic())
            self.owner.kill()
            killed = time.monotonic()
            answered = []

            def ask():
                block = self.pages.pop()
                found = compute.sql(f"SELECT i FROM unread WHERE ctid = '({block},1)'")
                answered.append((time.monotonic() - killed, found == str(block + 1)))

            asking = threading.Thread(target=ask)
            asking.start()
            commit = writer.acknowledged_after(killed, 120) - killed
            asking.join(120)
        page, is_right = answered[0]
        self.validity.add(expected=1, seen=1, different=int(not is_right))
        last = writer.rows[-1][0]
        count = int(compute.sql(f"SELECT count(*) FROM {writer.table} WHERE i <= {last}"))
        assert writer.error is None, writer.error
        self.validity.add(expected=last, seen=count, different=abs(last - count))
        self.owner, self.standby = self.standby, self.owner.start()
        return page, commit

    def handovers(self, compute) -> dict:
        """The longest transaction of pgbench during which the tenant is handed over, and of one without that."""
        self.standby.http.put(f"/v1/tenant/{self.tenant}/location_config", {"mode": "Secondary"})
        wait_until(lambda: self.sees_lease(), 60, what="the owner's lease")
        balance = ("SELECT (SELECT sum(abalance) FROM pgbench_accounts) - "
                   "(SELECT coalesce(sum(delta), 0) FROM pgbench_history)")
        before = compute.sql(balance)
        found = {"layers": self.layers(f"/v1/tenant/{self.tenant}/timeline/{compute.timeline.id}"),
                 "pause_s": [], "calm_s": [], "transactions": 0}
        for _ in range(self.args.rounds):
            for name in ("calm_s", "pause_s"):
                bench = TimedBench(compute, self.args.pgbench_seconds)
                time.sleep(self.args.pgbench_seconds / 3)
                if name == "pause_s":
                    done = self.computes.pagectl("tenant", "move", self.tenant, "--to", self.id_of(self.standby))
                    assert done.code == 0, done.text
                    self.owner, self.standby = self.standby, self.owner
                longest, transactions = bench.longest()
                found[name].append(round(longest, 4))
                found["transactions"] += transactions
            self.say(f"longest transaction: {found['pause_s'][-1] * 1000:.0f} ms with a handover, "
                     f"{found['calm_s'][-1] * 1000:.0f} ms without")
        self.validity.add(expected=1, seen=1, different=int(compute.sql(balance) != before))
        return found

    @staticmethod
    def id_of(server) -> str:
        return next(one["id"] for one in server.http.get("/v1/fleet")["servers"] if one["is_this"])

    def sees_lease(self) -> bool:
        owner = self.standby.http.get(f"/v1/tenant/{self.tenant}")["owner"]
        return bool(owner) and owner["lease"]["slug"] == "Believed"

    def clean(self):
        for pageserver in getattr(self, "servers_of_both", [])[1:]:
            if self.computes:
                self.computes.destroy_all()
            pageserver.destroy()
        super().clean()


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=10, help="of pgbench's tables")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pgbench-seconds", type=int, default=12, help="of pgbench around each handover")
    parser.add_argument("--layers", type=int, default=10_000, help="0 leaves the second half out")
    return with_place(parser)


def main():
    args = parse_args()
    bench = Takeovers(args)
    bench.validity = artifact.Validity("rows")
    topology = artifact.topology(args.dir, profile=os.environ.get("TEST_PROFILE", "release"), store="a directory")
    results = {"pg_major": args.pg_major}
    try:
        results.update(bench.run())
    finally:
        bench.clean()
    print(json.dumps(results))
    if args.out:
        artifact.refusing(lambda: artifact.write(Path(args.out) / "takeover.json", topology, bench.validity, results))


if __name__ == "__main__":
    main()
