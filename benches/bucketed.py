"""What benchmarks share whose pageserver keeps everything in a bucket: where that is, how it is reached, data that
does not compress well, and the loss of the local disk.

A topology is a name: `local` for a directory on the same disk, `s3-D` for an S3 server on the same machine behind a
link that makes each request D ms slower. That link is Python on the same cores: its own rate is measured, so that what
it limits can be marked.
"""

import argparse
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass

from compute_figures import MIB, Bench
from fixtures.computes import Computes
from fixtures.followed import Followed
from fixtures.pageserver import Pageserver
from fixtures.postgres import Postgres
from fixtures.programs import program
from fixtures.s3 import KINDS
from fixtures.slow_link import SlowLink
from fixtures.stored import wait_uploaded, wipe
from fixtures.wait import wait_until

PREFIX = "store"
# Data that compresses better says nothing about reading data.
MOST_COMPRESSED = 3
# 63 of 84 bytes of each row are random; pgbench's own filler would be blank.
NOISE = r"left(translate(encode(sha512(aid::text::bytea), 'base64'), E'\n=', ''), 84)"


@dataclass(frozen=True)
class Topology:
    """Where the bucket is; `delay` in ms."""

    name: str
    kind: str
    delay: float


def topologies(names: str, store: str) -> list[Topology]:
    """Those that an argument names, separated by commas."""
    found = []
    for name in names.split(","):
        place, _, delay = name.partition("-")
        if name == "local":
            found.append(Topology(name, "directory", 0))
        elif place == "s3" and delay.isdigit():
            found.append(Topology(name, store, float(delay)))
        else:
            raise SystemExit(f"{name} is neither local nor s3-MILLISECONDS")
    return found


def with_topologies(parser: argparse.ArgumentParser):
    """Adds the arguments that `topologies` needs."""
    parser.add_argument("--topology", default="local,s3-0,s3-25", help="where the bucket is: local, s3-MILLISECONDS")
    parser.add_argument("--store", choices=[kind for kind in KINDS if kind != "directory"], default="versity")


@contextmanager
def settings(bucket, delay: float):
    """The settings of a pageserver whose requests to this bucket take so many ms longer."""
    found = bucket.settings(PREFIX)
    if not delay:
        yield found
        return
    with SlowLink.to_port(bucket.port, delay / 2000).open() as link:
        yield {**found, "remote_storage_endpoint": f"http://127.0.0.1:{link.port}"}


def link_rate(delay: float, mib=64) -> float:
    """MiB/s that one connection gets through a link, of bytes that cost nothing to make."""
    def send(listener):
        connection, _ = listener.accept()
        with connection:
            for _ in range(mib):
                connection.sendall(bytes(MIB))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = threading.Thread(target=send, args=[listener], daemon=True)
        sender.start()
        with SlowLink.to_port(listener.getsockname()[1], delay / 2000).open() as link:
            began, left = time.monotonic(), mib * MIB
            with socket.create_connection(("127.0.0.1", link.port)) as receiver:
                while left and (got := len(receiver.recv(MIB))):
                    left -= got
            assert not left, "the link has ended early"
            return round(mib / (time.monotonic() - began), 1)


class Bucketed(Bench):
    """A bench whose pageserver uses a bucket."""

    def upload(self, server: Postgres, bucket) -> Followed:
        """Follows the server until all of it is in the bucket; then the pageserver is stopped, and `detach` ends it."""
        name = f"{server.data.name}-{bucket.kind}"
        self.pageserver = Pageserver(program("pageserver"), self.root / f"store-{name}", **bucket.settings(PREFIX))
        timeline = self.pageserver.start().follow(server, timeout=7200)
        followed = Followed(server, self.pageserver, timeline)
        followed.catch_up(7200)
        wait_uploaded(followed, timeline.last_record_lsn(), 3600)
        self.pageserver.stop()
        self.computes = Computes(program("pagectl"), self.pageserver, self.root / f"computes-{name}")
        return followed

    def lose_disk(self, bucket):
        """Empties the disk of the stopped pageserver."""
        wipe(self.pageserver)
        # Layers that were hot in the previous run would be fetched at once.
        for name in bucket.objects(PREFIX):
            if name.endswith("/hot-layers"):
                bucket.remove(name, PREFIX)


class OfNoise(Bucketed):
    """The same, with pgbench's tables of rows that do not compress well."""

    filler = NOISE

    def must_not_compress(self, database: int, stored: int):
        assert database <= MOST_COMPRESSED * stored, f"{database // MIB} MiB are stored in {stored // MIB}"


def drop_slots(server: Postgres):
    """Nobody follows the server any more."""
    # The server may notice only now that its follower has gone.
    active = "SELECT count(*) FROM pg_replication_slots WHERE active"
    wait_until(lambda: server.sql(active) == "0", 60, what="the end of replication")
    server.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
