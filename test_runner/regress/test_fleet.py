"""Several servers on one bucket, as any of them shows them: who owns what, who follows, how far each is; in the console
with a way to the others."""

import json
import time

import pytest

from fixtures import lsn as lsns
from fixtures.fleet import TAKEOVER
from fixtures.wait import wait_until

# A card is written every five intervals of a lease, which are 400 ms here.
SOON = 20


def answer(server) -> dict:
    return server.http.get("/v1/fleet")


def ids(fleet) -> list[str]:
    """The servers' ids, as each of them says."""
    return [next(one["id"] for one in answer(server)["servers"] if one["is_this"]) for server in fleet.servers]


def roles(server, tenant) -> dict[str, dict]:
    """What each server is to the tenant, by its id."""
    listed = next(one for one in answer(server)["tenants"] if one["id"] == tenant)
    return {one["server"]: one for one in listed["roles"]}


def wait_for_roles(fleet, server, wanted: dict[str, str]):
    """Waits until a server shows these roles, each with what that server says itself."""

    def are_there():
        found = roles(server, fleet.tenant)
        said = {name: one["said"] and one["said"]["role"] for name, one in found.items()}
        return {name: one["role"] for name, one in found.items()} == wanted and said == wanted

    wait_until(are_there, SOON, what=f"the roles {wanted}")


@pytest.fixture
def fleet(make_fleet):
    fleet = make_fleet(settings={"durability": "journal", "checkpoint_timeout": "1h"})
    fleet.make_standby(fleet.servers[1])
    return fleet


def test_all_servers_are_seen_from_any_of_them(fleet, make_computes):
    first, second = fleet.servers
    owner, standby = ids(fleet)
    for server in fleet.servers:
        wait_for_roles(fleet, server, {owner: "owner", standby: "standby"})
    end = fleet.followed.postgres.sql("SELECT pg_current_wal_flush_lsn()")

    def has_it(server, who):
        # A standby follows some time after it has become one.
        listed = roles(server, fleet.tenant)[who]["said"]["timelines"]
        position = listed[0] if listed else {"lag_bytes": None}
        return position["lag_bytes"] == 0 and lsns.parse(position["lsn"]) >= lsns.parse(end) and position

    for server in fleet.servers:
        for who in (owner, standby):
            position = wait_until(lambda server=server, who=who: has_it(server, who), SOON, what=f"how far {who} is")
            assert position["timeline_id"] == fleet.followed.timeline.id and position["error"] is None
        found = answer(server)
        mine, other = found["servers"]
        assert mine["is_this"] and not other["is_this"] and found["tenants_left_out"] == 0
        there = second if server is first else first
        assert other["url"] == f"http://127.0.0.1:{there.http_port}/" and other["said_seconds_ago"] < SOON
        by_id = {one["id"]: one for one in found["servers"]}
        assert (by_id[owner]["owns"], by_id[standby]["owns"], by_id[standby]["standby_of"]) == (1, 0, 1)
        lease = by_id[owner]["lease"]
        assert lease["takeover_after_ms"] == TAKEOVER * 1000 and not lease["is_overdue"], lease
        generation = found["tenants"][0]["generation"]
        assert generation == first.http.get(f"/v1/tenant/{fleet.tenant}")["generation"]
    # The same by command, from the standby.
    computes = make_computes(second)
    listed = computes.pagectl("fleet", "status").stdout
    for text in (owner, f"{standby} (asked)", "owner", "standby", fleet.tenant):
        assert text in listed, listed
    told = json.loads(computes.pagectl("--json", "fleet", "status").stdout)
    assert {one["id"] for one in told["servers"]} == {owner, standby}


def test_a_takeover_is_seen(fleet):
    first, second = fleet.servers
    owner, standby = ids(fleet)
    wait_for_roles(fleet, second, {owner: "owner", standby: "standby"})
    first.kill()
    fleet.wait_for_owner(second)
    found = wait_until(lambda: roles(second, fleet.tenant)[standby]["role"] == "owner" and roles(second, fleet.tenant),
                       SOON, what="the new owner")
    # The one that was killed has not said otherwise; its lease is overdue.
    assert found[owner]["role"] == "former"
    former = lambda: next(one for one in answer(second)["servers"] if one["id"] == owner)  # noqa: E731
    wait_until(lambda: former()["lease"]["is_overdue"], SOON, what="that its lease is overdue")
    assert former()["owns"] == 0
    # When it is back it has nothing to do with the tenant, and says nothing more of itself.
    first.start()
    fleet.make_standby(first)
    wait_for_roles(fleet, first, {owner: "standby", standby: "owner"})
    first.http.put(f"/v1/tenant/{fleet.tenant}/location_config", {"mode": "Detached"})
    wait_until(lambda: owner not in roles(second, fleet.tenant), 2 * SOON, what="no role of the first one")


def test_one_server_alone_says_nothing_of_itself(make_pageserver, make_store):
    """Neither requests nor objects where there are no standbys."""
    store = make_store("directory").settings("alone")
    server = make_pageserver("alone", **store).start()
    server.http.put("/v1/tenant/00000000000000000000000000000001/location_config", {"mode": "AttachedSingle"})
    time.sleep(3)
    found = answer(server)
    (only,) = found["servers"]
    assert only["is_this"] and only["owns"] == 1 and only["lease"] is None
    assert [(one["role"], one["server"]) for one in found["tenants"][0]["roles"]] == [("owner", only["id"])]
    objects = server.settings["remote_storage"].removeprefix("file://")
    assert not list((server.workdir / objects).glob("servers/*"))
    bare = make_pageserver("bare", remote_storage="none").start()
    assert [one["is_this"] for one in answer(bare)["servers"]] == [True]


@pytest.mark.daily
def test_a_console_leads_to_the_others(fleet, make_browser):
    """On the standby's console: the fleet, that its tenant is elsewhere, and a link to the owner's console."""
    first, second = fleet.servers
    owner, standby = ids(fleet)
    wait_for_roles(fleet, second, {owner: "owner", standby: "standby"})
    browser = make_browser()
    browser.open(f"http://127.0.0.1:{second.http_port}/")
    browser.until("This server is a standby of it")
    browser.click("a", "All servers")
    browser.until("All servers on this bucket")
    for text in (owner[:12], standby[:12], "this one", "renewed", "Who has what"):
        browser.until(text)
    assert browser.nameless() == []
    for size in ((400, 800), (1280, 900)):
        browser.resize(*size)
        assert browser.overflow() <= 0, size
    browser.click("a", f"127.0.0.1:{first.http_port}")
    browser.find(f'.lane[data-timeline="{fleet.followed.timeline.id}"]')
