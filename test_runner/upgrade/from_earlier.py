"""A fleet and its computes go from the programs of an earlier commit to those of this one, while clients write. `make
test-upgrade BASE=COMMIT` builds those and runs this; by its name it is no part of other runs."""

import time

import pytest

from fixtures.computes import stay_where_it_is
from fixtures.fleet import Writer, standby_name
from fixtures.load import load
from fixtures.wait import wait_until

JOURNAL = {"durability": "journal", "checkpoint_timeout": "1h"}
BALANCED = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)"


class Upgrade:
    """Two servers and a compute of the earlier commit."""

    def __init__(self, earlier, make_fleet, make_computes, pageserver_binary, quorum):
        self.now = pageserver_binary
        earlier_one = lambda server: setattr(server, "binary", earlier / "pageserver")  # noqa: E731
        self.fleet = make_fleet(settings=JOURNAL, prepare=earlier_one)
        first, second = self.fleet.servers
        stay_where_it_is(first)
        stay_where_it_is(second)
        self.fleet.make_standby(second)
        self.computes = make_computes(first, binary=earlier / "pagectl")
        self.computes.servers = self.fleet.servers
        arguments = ("--wait-for-pageserver", "--quorum", str(quorum))
        self.compute = self.computes.start("dev", "--branch", "dev", *arguments)
        self.fleet.wait_for_standby(second, self.compute, self.compute.timeline)

    def both(self) -> tuple[str, str]:
        first, second = self.fleet.servers
        return self.fleet.state(first), self.fleet.state(second)

    def wait_until_whole(self, writer):
        """An owner, and a standby that has all: commits wait for both."""
        wait_until(lambda: sorted(self.both()) == ["Active", "Standby"], 30, what="an owner and a standby")
        first, second = self.fleet.servers
        standby = first if self.both()[0] == "Standby" else second
        self.fleet.wait_for_standby(standby, self.compute, self.compute.timeline)
        wait_until(lambda: standby_name(standby) in self.compute.sql("SELECT string_agg(application_name, ' ') "
                                                                    "FROM pg_stat_replication"), 30, what="a quorum")
        writer.acknowledged_after(time.monotonic())

    def check(self, writer):
        """All is there, also for a compute that begins anew with the programs of this commit, and page by page."""
        writer.check()
        self.compute.stop()
        self.computes.binary = self.now.with_name("pagectl")
        self.compute.start()
        writer.check()
        assert self.compute.sql(BALANCED) == "t"
        self.compute.stop()
        first, second = self.fleet.servers
        owner = self.fleet.wait_for_owner(first, second)
        followed = self.fleet.followed
        followed.pageserver, followed.timeline = owner, self.fleet.timeline(owner, followed.timeline)
        assert followed.stop_and_compare().equal > 1000


def test_a_fleet_is_upgraded_server_by_server(earlier, make_fleet, make_computes, pageserver_binary):
    """Each is drained, ends, and goes on as the other program; in between both are at work. No client sees an error."""
    upgrade = Upgrade(earlier, make_fleet, make_computes, pageserver_binary, 2)
    fleet, computes = upgrade.fleet, upgrade.computes
    with load(upgrade.compute), Writer(upgrade.compute, "acknowledged") as writer:
        upgrade.wait_until_whole(writer)
        for server in reversed(fleet.servers):
            name = fleet.id_of(server)
            done = computes.pagectl("fleet", "drain", name)
            assert done.code == 0, done.text
            server.stop()
            server.binary = upgrade.now
            server.start()
            done = computes.pagectl("fleet", "drain", name, "--undo")
            assert done.code == 0, done.text
            upgrade.wait_until_whole(writer)
        # What the programs of this commit have among themselves works, too: the owner is lost, and comes back.
        owner = fleet.wait_for_owner(*fleet.servers)
        (other,) = {*fleet.servers} - {owner}
        owner.kill()
        fleet.wait_for_owner(other)
        owner.start()
        fleet.make_standby(owner)
        upgrade.wait_until_whole(writer)
    upgrade.check(writer)


@pytest.mark.parametrize("who", ["owner", "standby", "both"])
def test_what_killed_servers_left_is_gone_on_with(who, earlier, make_fleet, make_computes, pageserver_binary):
    """With journals, marks and leases as the earlier programs left them."""
    upgrade = Upgrade(earlier, make_fleet, make_computes, pageserver_binary, 1)
    fleet = upgrade.fleet
    first, second = fleet.servers
    killed = {"owner": [first], "standby": [second], "both": [first, second]}[who]
    with load(upgrade.compute), Writer(upgrade.compute, "acknowledged") as writer:
        upgrade.wait_until_whole(writer)
        for server in killed:
            server.kill()
        for server in killed:
            server.binary = upgrade.now
            server.start()
        fleet.wait_for_owner(first, second)
        for server in fleet.servers:
            if fleet.state(server) == "none":
                fleet.make_standby(server)
        upgrade.wait_until_whole(writer)
    upgrade.check(writer)
