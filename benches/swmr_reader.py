"""One reader of `swmr.py`, in a process of its own: at most so many reads a second, each of so many random pages of
one table, as of the head or of one LSN; and what proves that it got the right ones.

A page as of one LSN has the digest that it had when the lease began. Of a page at the head the LSN never goes back, and
afterwards the page as of its own LSN is the same again: for that, some of those that were read are kept in mind.
"""

import random
import time
from dataclasses import dataclass
from hashlib import blake2b

from fixtures import masks
from fixtures.libpq import Connection
from fixtures.pagestream import LATEST, PageStream, Rel, get_page

DIGEST = 8
# Pages at the head that are asked for again, for each of the pages of a read and in all.
AGAIN_OF_READ, AGAIN = 4, 500


@dataclass(frozen=True)
class Job:
    """What a reader does, from `begins` on, by the clock that all processes share."""

    name: str
    port: int
    tenant: str
    timeline: str
    rel: Rel
    blocks: int
    # None: the head.
    lsn: int | None
    # Pages with an older LSN are not read again: history may be gone.
    since: int
    pages: int
    per_second: float
    begins: float
    seconds: float
    seed: str


def digest(page: bytes) -> bytes:
    return blake2b(page, digest_size=DIGEST).digest()


def digests(stream: PageStream, rel: Rel, blocks: int, lsn: int) -> bytes:
    """Of all pages of a table, one after the other."""
    pages = stream.pipelined(get_page(rel, block, lsn, lsn) for block in range(blocks))
    return b"".join(map(digest, pages))


class Reader:
    """Reads, and counts what is wrong."""

    def __init__(self, job: Job, stream: PageStream, wanted: bytes):
        self.job, self.stream, self.wanted = job, stream, wanted
        self.chance = random.Random(job.seed)
        self.ms, self.asked, self.seen, self.different = [], 0, 0, 0
        self.newest: dict[int, int] = {}
        self.again: list[tuple[int, int, bytes]] = []

    def read(self):
        job = self.job
        blocks = self.chance.sample(range(job.blocks), min(job.pages, job.blocks))
        lsn, since = (LATEST, 1) if job.lsn is None else (job.lsn, job.lsn)
        began = time.monotonic()
        pages = list(self.stream.pipelined(get_page(job.rel, block, lsn, since) for block in blocks))
        self.ms.append((time.monotonic() - began) * 1000)
        self.asked += len(blocks)
        self.seen += len(pages)
        for block, page in zip(blocks, pages):
            self.different += not (self.is_at_head(block, page) if job.lsn is None else self.is_pinned(block, page))

    def is_pinned(self, block: int, page: bytes) -> bool:
        return digest(page) == self.wanted[block * DIGEST : (block + 1) * DIGEST]

    def is_at_head(self, block: int, page: bytes) -> bool:
        lsn, before = masks.lsn(page), self.newest.get(block, 0)
        self.newest[block] = lsn
        if lsn > self.job.since and len(self.again) < AGAIN and self.chance.random() * self.job.pages < AGAIN_OF_READ:
            self.again.append((block, lsn, digest(page)))
        # Sizes in the header of a heap page: another kind of page, or none, is wrong as well.
        return lsn >= before and masks.kind_of(masks.MAIN, page) == "heap"

    def read_again(self):
        """Pages that were at the head, as of their own LSNs."""
        requests = (get_page(self.job.rel, block, lsn, lsn) for block, lsn, _ in self.again)
        pages = list(self.stream.pipelined(requests))
        self.asked += len(self.again)
        self.seen += len(pages)
        self.different += sum(digest(page) != was for page, (_, _, was) in zip(pages, self.again))

    def found(self) -> dict:
        return {"ms": self.ms, "asked": self.asked, "seen": self.seen, "different": self.different,
                "again": len(self.again)}


def run(job: Job, wanted: bytes) -> dict:
    """All that a reader does."""
    with PageStream.start(Connection(job.port, timeout=120), job.tenant, job.timeline) as stream:
        reader = Reader(job, stream, wanted)
        # Who is late does not begin in the past.
        due = max(job.begins, time.monotonic())
        ends = job.begins + job.seconds
        cpu = time.process_time()
        while due < ends:
            time.sleep(max(0.0, due - time.monotonic()))
            reader.read()
            # Reads that were missed meanwhile are not made up for.
            due = max(due + 1 / job.per_second, time.monotonic())
        cpu = time.process_time() - cpu
        reader.read_again()
        return {**reader.found(), "cpu_s": round(cpu, 3)}
