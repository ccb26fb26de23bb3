"""Standbys that take over by themselves: what a client of a compute sees of it, and that nothing changes for an owner
that comes back."""

import os
import signal
import time

import pytest

from fixtures.fleet import SOON, TAKEOVER, Writer, store_dir
from fixtures.load import load
from fixtures.pagestream import Rel, get_page
from fixtures.wait import wait_until


def wait_for_pageserver(computes, fleet, name="dev", *, quorum=0):
    """A compute whose commits wait for the owner alone; `test_quorum.py` has those that wait for several."""
    computes.servers = fleet.servers
    return computes.start(name, "--branch", name, "--wait-for-pageserver", "--quorum", str(quorum))


def test_a_killed_owner_is_replaced_under_load(make_fleet, make_computes):
    """Clients see a pause, and no error; what was acknowledged is there; a page that nobody has read comes as well."""
    fleet = make_fleet()
    first, second = fleet.servers
    fleet.make_standby(second)
    compute = wait_for_pageserver(make_computes(first), fleet)
    with load(compute), Writer(compute, "acknowledged") as writer:
        writer.acknowledged_after(time.monotonic())
        killed = time.monotonic()
        first.kill()
        cold = compute.start_sql("SELECT count(filler) FROM pgbench_accounts")
        fleet.wait_for_owner(second)
        owned = time.monotonic() - killed
        committed = writer.acknowledged_after(killed) - killed
        cold.wait(60)
        print(f"an owner after {owned:.2f} s, a commit after {committed:.2f} s, takeover_after is {TAKEOVER} s")
        assert cold.returncode == 0 and TAKEOVER * 0.6 < committed < TAKEOVER + 5
    writer.check()
    # The branch at its new owner has all of it.
    compute.stop()
    compute.start()
    writer.check()
    assert fleet.state(second) == "Active" and second.http.metrics()["pageserver_takeovers_total"] == 1
    compute.stop()
    # The first one comes back, and takes nothing.
    first.start()
    assert fleet.state(first) == "none"


@pytest.mark.parametrize(("length", "quorum"), [(3 * TAKEOVER, 0), pytest.param(60.0, 1, marks=pytest.mark.daily)])
def test_a_paused_owner_that_comes_back_changes_nothing(length, quorum, make_fleet, make_computes):
    """It is stopped in the middle of a load, and goes on long after another one has its place: it acknowledges nothing,
    serves nothing that only it has, and neither hides nor removes anything."""
    fleet = make_fleet(settings={"durability": "journal"})
    first, second = fleet.servers
    fleet.make_standby(second)
    compute = wait_for_pageserver(make_computes(first), fleet, quorum=quorum)
    if quorum:
        fleet.wait_for_standby(second, compute, compute.timeline)
    old = fleet.timeline(first, compute.timeline)
    with load(compute), Writer(compute, "acknowledged") as writer:
        writer.acknowledged_after(time.monotonic())
        os.kill(first.process.pid, signal.SIGSTOP)
        paused = time.monotonic()
        fleet.wait_for_owner(second)
        committed = writer.acknowledged_after(paused) - paused
        print(f"a commit {committed:.2f} s after the owner was paused")
        time.sleep(max(0.0, paused + length - time.monotonic()))
        before = len(writer.rows)
        os.kill(first.process.pid, signal.SIGCONT)
        wait_until(lambda: fleet.state(first) == "Fenced", 20, what="the first server to notice")
        writer.acknowledged_after(time.monotonic())
        assert len(writer.rows) > before and fleet.state(second) == "Active"
        # Of what the new owner may have otherwise, the old one says nothing.
        with old.stream() as stream:
            refused = stream.refusal(get_page(Rel(1663, 5, 1259), 0))
        assert "another server has taken the tenant over" in refused, refused
        assert second.http.metrics()["pageserver_walreceiver_started_connections_total"] < 20, "a fight for the slot"
    writer.check()
    compute.stop()
    # It becomes the standby of the other one, and is as good as any.
    fleet.make_standby(first)
    compute.start()
    with Writer(compute, "again") as again:
        again.acknowledged_after(time.monotonic())
        killed = time.monotonic()
        second.kill()
        # With a quorum commits wait for no takeover.
        again.acknowledged_after(killed)
        fleet.wait_for_owner(first)
    again.check()
    writer.check()
    compute.stop()


def test_of_two_standbys_one_takes_over(make_fleet, make_computes):
    """And the other one becomes its standby, also after a restart."""
    fleet = make_fleet(3)
    first, second, third = fleet.servers
    fleet.make_standby(second)
    fleet.make_standby(third)
    compute = wait_for_pageserver(make_computes(first), fleet)
    with Writer(compute, "acknowledged") as writer:
        writer.acknowledged_after(time.monotonic())
        killed = time.monotonic()
        first.kill()
        owner = fleet.wait_for_owner(second, third)
        writer.acknowledged_after(killed)
        (other,) = {second, third} - {owner}
        assert fleet.state(other) == "Standby"
        # It finds the new owner, which keeps a lease by then; and goes on with that after a restart.
        other.restart()
        assert fleet.state(other) == "Standby"
        compute.computes.servers = fleet.servers[1:]
        service = compute.computes.environment()["PAGECTL_PAGE_SERVICE"]
        compute.computes.ok("set", compute.name, "--page-service", service)
        follows = lambda: (other.http.get(f"/v1/tenant/{fleet.tenant}")["owner"] or {}).get("lease", {}).get("slug")
        wait_until(lambda: follows() == "Believed", 30, what="the lease of the new owner")
        killed = time.monotonic()
        owner.kill()
        fleet.wait_for_owner(other)
        writer.acknowledged_after(killed)
    writer.check()
    compute.stop()
    assert other.http.metrics()["pageserver_takeovers_total"] == 1


def test_an_owner_that_is_cut_off_from_the_bucket_stops_and_goes_on(make_fleet, make_computes):
    """Nobody takes over, as the bucket is away for all. Commits wait, pages that the bucket has are served, and all
    goes on when it is back."""
    fleet = make_fleet(settings={"durability": "journal"})
    first, second = fleet.servers
    away = r"(WARN|ERROR).*(is away|bucket|not uploaded|not flushed|hot layers|remote_storage)"
    for server in fleet.servers:
        server.allow(away)
    fleet.make_standby(second)
    compute = wait_for_pageserver(make_computes(first), fleet)
    with Writer(compute, "acknowledged") as writer:
        writer.acknowledged_after(time.monotonic())
        objects = store_dir(first)
        hidden = objects.with_name(objects.name + "-away")
        objects.rename(hidden)
        try:
            wait_until(lambda: first.http.get("/v1/status")["lease"] == {"slug": "Ended"}, 20, what="the lease to end")
            time.sleep(0.3)
            rows = len(writer.rows)
            assert compute.sql("SELECT count(filler) FROM pgbench_accounts") == "100000"
            time.sleep(2 * TAKEOVER)
            assert len(writer.rows) <= rows + 1, "acknowledged without a lease"
            assert fleet.state(first) == "Unleased" and fleet.state(second) == "Standby"
            assert "not the owner" in compute.computes.refuse("start", "other", "--branch", "other", names="")
        finally:
            hidden.rename(objects)
        back = time.monotonic()
        writer.acknowledged_after(back)
        fleet.wait_for_owner(first)
        assert fleet.state(second) == "Standby"
    writer.check()
    compute.stop()


def test_a_standby_says_who_the_owner_is(make_fleet, make_computes, pagectl_binary):
    """And what it needs; it serves nothing, and lets go of the tenant when told to."""
    fleet = make_fleet(settings={"keep_lease": True})
    first, second = fleet.servers
    path = f"/v1/tenant/{fleet.tenant}"
    first.http.refuse("PUT", f"{path}/location_config", {"mode": "Secondary"}, status=412, names=["AttachedSingle"])
    second.http.refuse("PUT", f"/v1/tenant/{'1' * 32}/location_config", {"mode": "Secondary"}, status=404)
    fleet.make_standby(second)
    said = second.http.refuse("GET", f"{path}/timeline", status=421, names=["not the owner"])
    second.http.refuse("DELETE", path, status=421, names=["not the owner"])
    owner = second.http.get(path)["owner"]
    assert owner["server"] in said and owner["lease"]["slug"] == "Believed" and owner["overdue_in_ms"] <= 2000
    computes = make_computes(second)
    listed = computes.pagectl("tenant", "list").stdout
    assert "Standby" in listed and owner["server"] in listed
    # Asked for by commands that know of both, the owner is found.
    computes.servers = [second, first]
    assert computes.pagectl("timeline", "list").code == 0
    compute = computes.start("dev", "--branch", "dev", "--wait-for-pageserver")
    compute.sql("CREATE TABLE t (i int)")
    compute.stop()
    second.http.put(f"{path}/location_config", {"mode": "Detached"})
    assert fleet.state(second) == "none"
    fleet.make_standby(second)
    # By hand it takes over at once, as any server does.
    second.http.put(f"{path}/location_config", {"mode": "AttachedSingle"})
    assert fleet.state(second) == "Active"
    second.restart()
    assert fleet.state(second) == "Active"


@pytest.mark.parametrize("settings", [{"lease_interval": "50ms"}, {"takeover_after": "1s"}])
def test_leases_that_make_no_sense_are_refused(make_pageserver, settings):
    server = make_pageserver("senseless", **{**SOON, **settings})
    assert next(iter(settings)) in server.refuses_to_start()
