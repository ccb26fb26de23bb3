"""Kills and partitions of everything that a fleet consists of, at random: nothing that was acknowledged is lost where
docs/durability.md says so, and a branch never has two histories."""

import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack, suppress

import pytest

from fixtures import lsn as lsns
from fixtures.computes import stay_where_it_is
from fixtures.cut_link import CutLink
from fixtures.fleet import TAKEOVER
from fixtures.followed import rel_of
from fixtures.noted import Clients
from fixtures.pagestream import get_page
from fixtures.wait import wait_until

# A step under load has to have ended by then, with everything well again.
SETTLED = 90
# Of all files of a run.
DISK_MIB = 3000
# Moments of the branch whose pages are compared later.
MOMENTS = 12
# Pages that are compared: the heap of the clients' rows, and its index.
PAGES = 3

# What is done, and how often; then what only two of two survive. Names are those of the methods of `World`.
FAULTS = {
    "owner_killed": 4, "owner_away": 3, "owner_paused": 3, "owner_cut_off_from_the_bucket": 3,
    "owner_loses_its_disk": 2, "standby_killed": 2, "standby_paused": 2, "standby_cut_off_from_the_bucket": 2,
    "standby_loses_its_disk": 2, "bucket_away": 2, "pages_cut_off": 2, "both_servers_killed": 2, "compute_killed": 4,
    "compute_lost": 2, "compute_and_owner_killed": 2, "compute_lost_and_owner_restarted": 2,
}
TWO_OF_TWO = {"compute_lost_and_owner_loses_its_disk": 2, "compute_lost_and_standby_loses_its_disk": 2}

# Of what happens to servers here, beside what a takeover says.
EXPECTED = (
    r"^\S+\s+WARN",
    r"ERROR.*(bucket|not uploaded|not flushed|upload|remote_storage|lease|taken the tenant over|hot layers|generation)",
)


class World:
    """Two servers, each with links of its own to the bucket and for its pages, one compute, and clients."""

    def __init__(self, seed: int, quorum: int, make_fleet, make_computes, make_store, stack: ExitStack):
        self.chance, self.quorum, self.make_computes = random.Random(f"{seed} {quorum}"), quorum, make_computes
        # A long run is not to fill the disk.
        settings = {"durability": "journal", "checkpoint_timeout": "20s", "journal_size": 256 << 20}
        self.fleet = make_fleet(2, store="weed", settings=settings)
        self.store = make_store("weed")
        self.servers = self.fleet.servers
        self.bucket_links, self.page_links = {}, {}
        for server in self.servers:
            server.allow(*EXPECTED)
            stay_where_it_is(server)
            self.bucket_links[server] = stack.enter_context(CutLink.to_port(self.store.port).open())
            self.page_links[server] = stack.enter_context(CutLink.to_port(server.pg_port).open())
            server.configure(remote_storage_endpoint=f"http://127.0.0.1:{self.bucket_links[server].port}")
            server.restart()
        self.owner, self.standby = self.servers
        self.fleet.make_standby(self.standby)
        self.numbered, self.computes = 0, None
        self.start_compute()
        self.clients = Clients(self.compute, 3, seed)
        stack.callback(self.clients.end)
        stack.callback(self.end)
        self.moments: list[tuple[str, list[bytes]]] = []
        self.generation, self.took_over = 0, 0
        self.settle()

    # What may be done to it: each begins with everything well.

    def owner_killed(self):
        self.owner.kill()
        self.pause(0, TAKEOVER / 2)

    def owner_away(self):
        self.owner.kill()
        self.pause(TAKEOVER, TAKEOVER * 2)

    def owner_paused(self):
        self.stand_still(self.owner)
        self.pause(0.2, TAKEOVER * 2)

    def owner_cut_off_from_the_bucket(self):
        self.bucket_links[self.owner].is_cut = True
        self.pause(0.2, TAKEOVER * 2.5)

    def owner_loses_its_disk(self):
        self.owner.kill()
        self.lose_disk(self.owner)
        self.pause(0, TAKEOVER * 2)

    def standby_killed(self):
        self.standby.kill()
        self.pause(0, 1)

    def standby_paused(self):
        self.stand_still(self.standby)
        self.pause(0.2, TAKEOVER * 1.5)

    def standby_cut_off_from_the_bucket(self):
        self.bucket_links[self.standby].is_cut = True
        self.pause(0.2, TAKEOVER * 2)

    def standby_loses_its_disk(self):
        self.standby.kill()
        self.lose_disk(self.standby)
        self.pause(0, 1)

    def bucket_away(self):
        os.killpg(self.store.process.pid, signal.SIGSTOP)
        self.pause(0.2, TAKEOVER * 2)

    def pages_cut_off(self):
        for link in self.page_links.values():
            link.is_cut = self.chance.random() < 0.7
        self.pause(0.2, 3)

    def compute_killed(self):
        self.end_compute()

    def compute_lost(self):
        self.end_compute(lost=True)

    def compute_and_owner_killed(self):
        self.end_compute()
        self.owner.kill()
        self.pause(0, TAKEOVER * 1.5)

    def compute_lost_and_owner_restarted(self):
        """The process alone ends, and is there again before a standby thinks that it is gone."""
        self.end_compute(lost=True)
        self.owner.kill()
        self.owner.start()
        assert self.fleet.state(self.standby) == "Standby", "the start took too long for what this is about"

    def both_servers_killed(self):
        self.owner.kill()
        self.standby.kill()
        self.pause(0, TAKEOVER)

    def compute_lost_and_owner_loses_its_disk(self):
        self.owner.kill()
        self.end_compute(lost=True)
        self.lose_disk(self.owner)
        self.pause(0, TAKEOVER)

    def compute_lost_and_standby_loses_its_disk(self):
        self.standby.kill()
        self.end_compute(lost=True)
        self.lose_disk(self.standby)
        self.pause(0, 1)

    # What these consist of.

    def pause(self, least: float, most: float):
        time.sleep(self.chance.uniform(least, most))

    def stand_still(self, server):
        os.kill(server.process.pid, signal.SIGSTOP)

    def lose_disk(self, server):
        """The bucket is elsewhere."""
        for name in ("tenants", "journal"):
            shutil.rmtree(server.workdir / name, ignore_errors=True)

    def end_compute(self, lost=False):
        """All its processes at once: nothing more is sent."""
        for process in [self.compute.pid(), *self.compute.children()]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.compute.await_crash()
        self.is_down, self.is_lost = True, lost

    def start_compute(self):
        """On the branch; where the former one's host is lost, on another one, which knows all servers."""
        former, self.numbered = self.computes, self.numbered + 1
        self.computes = self.make_computes(self.owner, f"host-{self.numbered}")
        self.computes.servers = self.servers
        plain, links = self.computes.environment, self.page_links
        pages = ",".join(f"host=127.0.0.1 port={links[one].port} user=compute" for one in self.servers)
        self.computes.environment = lambda: {**plain(), "PAGECTL_PAGE_SERVICE": pages}
        more = ["--replace"] if former else []
        self.compute = self.computes.start(f"dev{self.numbered}", "--branch", "dev", "--wait-for-pageserver",
                                           "--quorum", self.quorum, "--set", "shared_buffers=16MB", *more)
        self.is_down = self.is_lost = False
        if former:
            former.destroy_all()

    # How it is well again.

    def go_on(self):
        with suppress(ProcessLookupError):
            os.killpg(self.store.process.pid, signal.SIGCONT)
        for server in self.servers:
            self.bucket_links[server].is_cut = self.page_links[server].is_cut = False
            if server.is_running():
                os.kill(server.process.pid, signal.SIGCONT)

    def end(self):
        """While servers can reach the bucket, and without a compute that would wait for them."""
        self.go_on()
        if not self.is_down:
            self.end_compute()
        for server in self.servers:
            if server.is_running():
                server.stop()

    def settle(self):
        """Everything goes on: one owner, a standby that has all, and clients that write. Then nothing is missing."""
        self.go_on()
        for server in self.servers:
            if not server.is_running():
                server.start()
        before, self.owner = self.owner, wait_until(self.only_owner, SETTLED, every=0.1, what="one owner")
        (self.standby,) = {*self.servers} - {self.owner}
        self.took_over += self.owner is not before
        if self.is_lost:
            self.start_compute()
        elif self.is_down:
            self.compute.start()
            self.is_down = False
        if hasattr(self, "clients"):
            self.clients.use(self.compute)
        wait_until(self.stands_by, SETTLED, every=0.2, what="a standby")
        self.fleet.wait_for_standby(self.standby, self.compute, self.compute.timeline, SETTLED)
        if hasattr(self, "clients"):
            before = self.clients.more_from_each()
            grown = lambda: all(now > then for now, then in zip(self.clients.more_from_each(), before))
            wait_until(grown, SETTLED, what="more of each client")
            self.compare()

    def only_owner(self):
        states = {server: self.fleet.state(server) for server in self.servers}
        owners = [server for server, state in states.items() if state == "Active"]
        assert len(owners) < 2 or self.stepping_down(owners), f"two owners: {states}"
        return owners[0] if len(owners) == 1 and "Unleased" not in states.values() else None

    def stepping_down(self, owners) -> bool:
        """A server that has just gone on may not know yet that it was replaced."""
        wait_until(lambda: sum(self.fleet.state(server) == "Active" for server in owners) == 1, TAKEOVER * 3,
                   what="only one owner")
        return True

    def stands_by(self) -> bool:
        if self.fleet.state(self.standby) != "Standby":
            self.fleet.make_standby(self.standby)
        return self.fleet.state(self.standby) == "Standby"

    def compare(self):
        """Rows by what clients know; pages of earlier moments by what they were then, whoever owned the branch."""
        generation = self.owner.http.get(f"/v1/tenant/{self.fleet.tenant}")["generation"]
        assert generation >= self.generation, f"generation {generation} after {self.generation}"
        self.generation = generation
        self.clients.compare(self.compute)
        timeline = self.fleet.timeline(self.owner, self.compute.timeline)
        rel = rel_of(self.compute, "noted")
        with timeline.stream() as stream:
            read = lambda lsn: [stream.ask(get_page(rel, block, lsns.parse(lsn))) for block in range(PAGES)]
            for lsn, pages in self.moments:
                assert read(lsn) == pages, f"the branch has another history at {lsn}"
            lsn = self.compute.sql("SELECT pg_current_wal_flush_lsn()")
            # Commits that come after it are acknowledged: so was all before.
            before = self.clients.more_from_each()
            grown = lambda: all(now > then + 1 for now, then in zip(self.clients.more_from_each(), before))
            wait_until(grown, SETTLED, what="more of each client")
            timeline.wait_for_lsn(lsn)
            if int(self.compute.sql("SELECT pg_relation_size('noted') / 8192")) > PAGES:
                self.moments = [*self.moments, (lsn, read(lsn))][-MOMENTS:]


def disk_mib(place) -> int:
    done = subprocess.run(["du", "-smx", place], capture_output=True, text=True)
    return int(done.stdout.split()[0])


class Kills:
    """Steps of which each does one thing to a fleet under load, and then waits until all is well again."""

    def __init__(self, place, make_fleet, make_computes, make_store, config):
        self.place, self.made_by = place, (make_fleet, make_computes, make_store)
        self.count, self.seed = config.getoption("--fleet-kills"), config.getoption("--fleet-seed")

    def run(self, quorum: int, faults: dict[str, int]):
        story = []
        with ExitStack() as stack:
            world = World(self.seed, quorum, *self.made_by, stack)
            for step in range(1, self.count + 1):
                (fault,) = world.chance.choices([*faults], [*faults.values()])
                story.append(fault)
                began = time.monotonic()
                try:
                    world.pause(0, 1)
                    getattr(world, fault)()
                    world.settle()
                except Exception as error:
                    last = ", ".join(story[-5:])
                    raise AssertionError(f"seed {self.seed}, ANY {quorum}, step {step}: {last}: {error}") from error
                used = disk_mib(self.place)
                assert used < DISK_MIB, f"{used} MiB after step {step} of seed {self.seed}"
                print(f"ANY {quorum}, seed {self.seed}, {step}/{self.count} {fault}: {time.monotonic() - began:.1f} s, "
                      f"{world.clients.count()} rows, {world.took_over} takeovers, generation {world.generation}, "
                      f"{used} MiB", flush=True)
            assert world.clients.count() > 10 * self.count
            print(f"ANY {quorum}: {self.count} kills and partitions, {world.clients.count()} acknowledged rows, "
                  f"{world.took_over} takeovers, nothing lost", flush=True)


@pytest.fixture
def kills(module_dir, make_fleet, make_computes, make_store, request) -> Kills:
    return Kills(module_dir, make_fleet, make_computes, make_store, request.config)


@pytest.mark.slow
def test_one_of_two_has_what_was_acknowledged_after_kills(kills):
    kills.run(1, FAULTS)


@pytest.mark.slow
def test_two_of_two_have_what_was_acknowledged_after_kills(kills):
    kills.run(2, {**FAULTS, **TWO_OF_TWO})
