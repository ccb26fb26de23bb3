#!/usr/bin/env python3
"""What a compute costs when the pageserver has lost its disk, and everything is only in a bucket.

A pageserver with an S3 server as its bucket follows a database, which is removed once the bucket has everything. Then,
several times: the pageserver's disk is emptied, and the benchmark measures the time until it answers, the time until a
new compute on a new branch answers its first query, and a scan of all rows. A link in between delays each request as
--delays says. Nothing is left behind but compute-cold.json.
"""

import argparse
import json
import os
import time

import artifact
from bucketed import PREFIX, Bucketed, settings
from compute_figures import MIB, MIB_PER_SCALE, disk_mib, with_place
from fixtures.s3 import KINDS


class Cold(Bucketed):
    """Computes on a pageserver that has lost its disk."""

    def of_size(self, mib: int) -> dict:
        scale = max(1, round(mib / MIB_PER_SCALE))
        server = self.make_database(f"db{mib}", scale)
        size = int(server.sql("SELECT pg_database_size('postgres')"))
        bucket = KINDS[self.args.store](self.root / f"bucket{mib}").start()
        try:
            self.upload(server, bucket)
            server.destroy()
            stored = sum(bucket.objects(PREFIX).values())
            found = {"database_mib": round(size / MIB), "bucket_mib": round(stored / MIB), "rounds": []}
            self.say(f"{found['bucket_mib']} MiB in the bucket")
            for delay in self.args.delays:
                found["rounds"] += self.rounds(bucket, scale, delay)
            return found
        finally:
            self.detach()
            bucket.destroy()

    def rounds(self, bucket, scale: int, delay: float) -> list[dict]:
        with settings(bucket, delay) as reached:
            self.pageserver.configure(**reached)
            return [self.round(bucket, number, scale, delay) for number in range(self.args.starts)]

    def round(self, bucket, number: int, scale: int, delay: float) -> dict:
        self.lose_disk(bucket)
        started = time.monotonic()
        self.pageserver.start()
        found = {"delay_ms": delay, "server_s": time.monotonic() - started}
        name = f"d{delay:.0f}-{number}"
        compute, times = self.first_answer(name, 1 + (number * 7919 * 101) % (scale * 100_000))
        found.update(times, disk_mib=disk_mib(self.pageserver.workdir))
        if self.args.scan_mib >= scale * MIB_PER_SCALE:
            size = int(compute.sql("SELECT pg_relation_size('pgbench_accounts')"))
            found["scan_mib_per_s"] = size / MIB / self.scan(compute, scale)
        self.computes.ok("destroy", name, "--force")
        self.pageserver.stop()
        found = {key: round(value, 3) for key, value in found.items()}
        self.say(json.dumps(found))
        return found


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, nargs="+", default=[1024, 20480], help="sizes of databases")
    parser.add_argument("--starts", type=int, default=5, help="times that the disk is lost, for each size and delay")
    parser.add_argument("--delays", type=float, nargs="+", default=[0, 25], help="ms that each request takes longer")
    parser.add_argument("--scan-mib", type=int, default=1100, help="scans are only made of databases up to this size")
    parser.add_argument("--store", choices=[kind for kind in KINDS if kind != "directory"], default="versity")
    return with_place(parser)


def main():
    args = parse()
    bench = Cold(args)
    topology = artifact.topology(args.dir, profile=os.environ.get("TEST_PROFILE", "release"), delay_ms=args.delays,
                                 store=f"S3 server ({args.store}) on the same machine")
    results = {"pg_major": args.pg_major, "store": args.store, "drop_caches": args.drop_caches}
    try:
        results["sizes"] = [bench.of_size(mib) for mib in args.mib]
    finally:
        bench.clean()
    print(json.dumps(results))
    if args.out:
        artifact.refusing(lambda: artifact.write(args.out / "compute-cold.json", topology, bench.validity, results))


if __name__ == "__main__":
    main()
