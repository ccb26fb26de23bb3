"""Tenants that are handed over from one server to another on purpose: clients of a compute see a pause and no error,
and whoever fails in the midst of it, one server owns the tenant, and all that was acknowledged is there."""

import json
import re
import time

import pytest

from fixtures import lsn as lsns
from fixtures.fleet import Writer
from fixtures.followed import rel_of
from fixtures.load import TimedBench
from fixtures.pageserver import new_id
from fixtures.pagestream import get_page
from fixtures.wait import wait_until

JOURNAL = {"durability": "journal"}
BALANCED = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)"


def begin(make_fleet, make_computes, *, count=2, settings=None, quorum="0"):
    """A fleet, and a compute whose commits wait for the owner alone, so that every pause of that is seen."""
    fleet = make_fleet(count, settings=settings)
    for standby in fleet.servers[1:]:
        fleet.make_standby(standby)
    computes = make_computes(fleet.servers[0])
    computes.servers = fleet.servers
    compute = computes.start("dev", "--branch", "dev", "--wait-for-pageserver", "--quorum", quorum)
    return fleet, computes, compute


def move(fleet, computes, server):
    done = computes.pagectl("tenant", "move", fleet.tenant, "--to", fleet.id_of(server), "--timeout", "30s")
    assert done.code == 0, done.text
    return done


@pytest.mark.parametrize("settings", [JOURNAL, {}], ids=["journal", "bucket"])
def test_a_tenant_is_handed_over_and_back_under_load(make_fleet, make_computes, settings):
    """No client sees an error; the former owner is a standby of the other one, and the other way around."""
    fleet, computes, compute = begin(make_fleet, make_computes, settings=settings)
    first, second = fleet.servers
    bench = TimedBench(compute, 20)
    with Writer(compute, "acknowledged") as writer:
        writer.acknowledged_after(time.monotonic())
        for to, other in ((second, first), (first, second)):
            begun = time.monotonic()
            done = move(fleet, computes, to)
            took = time.monotonic() - begun
            assert "ready" in done.stderr or "given" in done.stderr or took < 2, done.text
            both = lambda: (fleet.state(to), fleet.state(other))  # noqa: E731, B023
            wait_until(lambda: both() == ("Active", "Standby"), 5, what="the new roles")  # noqa: B023
            writer.acknowledged_after(time.monotonic())
            print(f"handed over within {took:.2f} s")
            time.sleep(3)
        longest, transactions = bench.longest()
    print(f"the longest of {transactions} transactions took {longest * 1000:.0f} ms")
    # Far less than it would be without an owner; the figure is that of `make bench-takeover`.
    assert transactions > 50 and longest < 5
    writer.check()
    assert compute.sql(BALANCED) == "t"
    compute.stop()
    compute.start()
    writer.check()
    compute.stop()
    for server in fleet.servers:
        metrics = server.http.metrics()
        assert metrics["pageserver_handovers_total"] == 1 and metrics["pageserver_takeovers_total"] == 0
    # Each is what it was before, after a restart as well.
    second.restart()
    first.restart()
    wait_until(lambda: (fleet.state(first), fleet.state(second)) == ("Active", "Standby"), 20, what="the same roles")


@pytest.mark.parametrize("when", ["following", "ready", "given"])
@pytest.mark.parametrize("who", ["owner", "target"])
def test_whoever_is_killed_one_server_owns_the_tenant(make_fleet, make_computes, who, when):
    """With everything that was acknowledged. The one that was killed comes back as what it is then."""
    fleet, computes, compute = begin(make_fleet, make_computes, settings=JOURNAL)
    first, second = fleet.servers
    with Writer(compute, "acknowledged") as writer:
        writer.acknowledged_after(time.monotonic())
        killed, left = (first, second) if who == "owner" else (second, first)
        fleet.order(left, fleet.id_of(second))
        # It may be through before that is seen.
        state = fleet.wait_for_order(left, *["following", "ready", "given", "done"][
            ["following", "ready", "given"].index(when):])["state"]
        killed.kill()
        at = time.monotonic()
        print(f"killed while the order was {state}")
        if who == "owner" or state != "done":
            fleet.wait_for_owner(left)
        killed.start()
        fleet.wait_for_owner(first, second)
        writer.acknowledged_after(at)
        # A target that was killed too early may get the tenant after its restart: the order still holds.
        fleet.wait_for_order(first, "done", "failed")
        states = lambda: sorted(fleet.state(server) for server in fleet.servers)  # noqa: E731
        wait_until(lambda: states() in (["Active", "Standby"], ["Active", "none"]), 30, what="one owner")
        writer.acknowledged_after(time.monotonic())
    writer.check()
    compute.stop()


def test_what_cannot_be_handed_over_stays(make_fleet, make_computes):
    """With an error that says why; and nothing happens when the time of an order is over."""
    fleet, computes, compute = begin(make_fleet, make_computes)
    first, second = fleet.servers
    path = f"/v1/tenant/{fleet.tenant}/move"
    second.http.refuse("GET", path, status=404, names=["no order"])
    second.http.refuse("PUT", path, {"to": fleet.id_of(first)}, status=409, names=["already"])
    second.http.refuse("PUT", path, {"to": "a/b"}, status=400)
    second.http.refuse("PUT", path, {"to": "x", "timeout": "never"}, status=400, names=["timeout"])
    second.http.refuse("PUT", f"/v1/tenant/{new_id()}/move", {"to": "x"}, status=404)
    refused = computes.pagectl("tenant", "move", fleet.tenant, "--to", "nobody")
    assert refused.code and "nobody" in refused.stderr and "--server" in refused.stderr, refused.text
    name = fleet.id_of(second)
    second.kill()
    done = computes.pagectl("tenant", "move", fleet.tenant, "--to", name, "--timeout", "2s")
    # The owner, or who asks, whoever sees it first.
    given_up = "not answered in time|is not ready: .*the time for it is over"
    assert done.code and re.search(given_up, done.stderr), done.text
    assert fleet.state(first) == "Active"
    second.start()
    time.sleep(3)
    assert (fleet.state(first), fleet.state(second)) == ("Active", "Standby"), "an order whose time is over"
    with Writer(compute, "acknowledged") as writer:
        writer.acknowledged_after(time.monotonic())
    writer.check()
    compute.stop()


def test_a_server_is_drained_restarted_and_filled(make_fleet, make_computes):
    """Two tenants go to the other one, and half of them come back; meanwhile the drained one takes nothing."""
    fleet, computes, compute = begin(make_fleet, make_computes, settings=JOURNAL)
    first, second = fleet.servers
    empty = new_id()
    first.http.put(f"/v1/tenant/{empty}/location_config", {"mode": "AttachedSingle"})
    name, other = fleet.id_of(first), fleet.id_of(second)

    def wait_for(server, *states):
        """Waits until it is that to the two tenants, in any order."""
        found = lambda: sorted(server.http.get(f"/v1/tenant/{one}")["state"]["slug"]  # noqa: E731
                               for one in (fleet.tenant, empty))
        wait_until(lambda: found() == sorted(states), 10, what=f"{states}")

    with Writer(compute, "acknowledged") as writer:
        writer.acknowledged_after(time.monotonic())
        done = computes.pagectl("fleet", "drain", name)
        assert done.code == 0 and "2 tenants were moved" in done.stdout, done.text
        wait_for(second, "Active", "Active")
        assert "(drained)" in computes.pagectl("fleet", "status").stdout
        first.restart()
        refused = computes.pagectl("tenant", "move", empty, "--to", name)
        assert refused.code and "drained" in refused.stderr, refused.text
        path = f"/v1/tenant/{new_id()}/location_config"
        time.sleep(1)
        first.http.refuse("PUT", path, {"mode": "AttachedSingle"}, status=412, names=["drained"])
        assert first.http.metrics()["pageserver_drained"] == 1
        plan = computes.pagectl("--json", "fleet", "rebalance", "--dry-run")
        assert plan.code == 0 and json.loads(plan.stdout) == {"plan": []}, plan.text
        writer.acknowledged_after(time.monotonic())
        done = computes.pagectl("fleet", "fill", name)
        assert done.code == 0 and "1 of them" in done.stdout, done.text
        writer.acknowledged_after(time.monotonic())
    writer.check()
    wait_for(first, "Active", "Standby")
    assert first.http.metrics()["pageserver_drained"] == 0
    # All at one of them, then equally many.
    done = computes.pagectl("fleet", "drain", other)
    assert done.code == 0, done.text
    assert computes.pagectl("fleet", "drain", other, "--undo").code == 0
    plan = computes.pagectl("fleet", "rebalance", "--dry-run")
    assert plan.code == 0 and other in plan.stdout, plan.text
    wait_for(first, "Active", "Active")
    done = computes.pagectl("fleet", "rebalance")
    assert done.code == 0 and "1 orders" in done.stdout, done.text
    wait_for(first, "Active", "Standby")
    assert "nothing is to be moved" in computes.pagectl("fleet", "rebalance", "--dry-run").stdout
    compute.stop()


def test_what_is_hot_goes_with_a_tenant(make_fleet, make_computes):
    """The server that is to have it has the layers on its disk that were read at the owner, and no others."""
    fleet = make_fleet()
    first, second = fleet.servers
    followed = fleet.followed
    computes = make_computes(first)
    computes.servers = fleet.servers
    end = lsns.parse(followed.catch_up())
    first.http.put(f"{followed.timeline.path}/checkpoint")
    # Reads are counted every ten seconds.
    time.sleep(11)
    accounts = rel_of(followed.postgres, "pgbench_accounts")
    with followed.timeline.stream() as stream:
        for block in range(200):
            stream.ask(get_page(accounts, block, end, end))
    # What was read is noted in the bucket at the end of the process at the latest.
    first.restart()
    wait_until(lambda: fleet.state(first) == "Active", 20, what="the owner")
    layers = lambda server: {path.name for path in (  # noqa: E731
        server.workdir / "tenants" / fleet.tenant / "timelines" / followed.timeline.id).glob("*__*")
        if "." not in path.name}
    assert not layers(second)
    move(fleet, computes, second)
    warmed = second.http.metrics()["pageserver_layers_warmed_ahead_total"]
    assert warmed >= 1 and len(layers(second)) >= warmed, layers(second)
    assert layers(second) <= layers(first)
    assert not (second.workdir / "tenants" / fleet.tenant / "warm").exists()
    followed.pageserver, followed.timeline = second, fleet.timeline(second, followed.timeline)
    followed.stop_and_compare()


def test_a_new_server_gets_standbys_and_tenants_when_it_is_asked(make_fleet, make_computes):
    """One that has nothing to do with the others asks the bucket nothing, until it is named."""
    fleet = make_fleet(2)
    first, second = fleet.servers
    computes = make_computes(first)
    computes.servers = fleet.servers
    done = computes.pagectl("fleet", "rebalance", "--standbys", "1")
    assert done.code == 0, done.text
    wait_until(lambda: fleet.state(second) == "Standby", 20, what="a standby")
    move(fleet, computes, second)
    wait_until(lambda: (fleet.state(first), fleet.state(second)) == ("Standby", "Active"), 10, what="the new roles")
