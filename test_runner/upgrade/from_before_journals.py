"""A single server goes from programs that had neither journals nor standbys to those of this commit, and becomes one of
two. `make test-upgrade BASE=COMMIT` builds the earlier ones and runs this where COMMIT is as old as that; by its name
it is no part of other runs."""

import time

import pytest

from fixtures.computes import stay_where_it_is
from fixtures.fleet import EXPECTED, SOON, Fleet, Writer, standby_name
from fixtures.followed import follow_new
from fixtures.load import load
from fixtures.stored import QUICK
from fixtures.wait import wait_until

FOLLOWERS = "SELECT string_agg(application_name, ' ') FROM pg_stat_replication"


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_single_server_becomes_one_of_two(
    how, earlier, make_postgres, make_pageserver, make_store, make_computes, pageserver_binary
):
    """What it follows, its branch and the branch's compute go on; commits then survive the loss of either server."""
    settings = {**QUICK, **make_store("directory").settings(f"before-{how}")}

    def make_earlier(name, **settings):
        server = make_pageserver(name, **settings).allow(*EXPECTED)
        server.binary = earlier / "pageserver"
        return server

    followed = follow_new(make_postgres, make_earlier, f"before-{how}", settings=settings)
    first, pg = followed.pageserver, followed.postgres
    stay_where_it_is(first)
    computes = make_computes(first, binary=earlier / "pagectl")
    compute = computes.start("dev", "--branch", "dev")
    with load(pg), load(compute), Writer(compute, "before") as before:
        before.wait_for_rows(20)
        first.kill() if how == "killed" else first.stop()
        first.binary = pageserver_binary
        first.configure(durability="journal", **SOON)
        first.start()
        before.acknowledged_after(time.monotonic())
        second = make_pageserver(f"before-{how}-2", **settings, durability="journal", **SOON).allow(*EXPECTED).start()
        stay_where_it_is(second)
        fleet = Fleet(followed, [first, second], followed.timeline.tenant)
        fleet.make_standby(second)
    before.check()
    # The compute goes on with the programs of this commit, and waits for both.
    compute.stop()
    computes.binary, computes.servers = pageserver_binary.with_name("pagectl"), fleet.servers
    compute.start("--wait-for-pageserver", "--quorum", "2")
    before.check()
    fleet.wait_for_standby(second, compute, compute.timeline)
    wait_until(lambda: standby_name(second) in compute.sql(FOLLOWERS), 30, what="a quorum")
    with Writer(compute, "after") as after:
        after.wait_for_rows(20)
        first.kill()
        fleet.wait_for_owner(second)
        first.start()
        fleet.make_standby(first)
        after.acknowledged_after(time.monotonic())
    after.check()
    before.check()
    compute.stop()
    followed.pageserver, followed.timeline = second, fleet.timeline(second, followed.timeline)
    assert followed.stop_and_compare().equal > 1000
