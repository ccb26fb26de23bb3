"""A fleet of three servers with many tenants: whatever is done to the servers, each tenant has one owner and a standby,
and what it has is what it had."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fixtures.fleet import EXPECTED, SOON, TAKEOVER
from fixtures.pageserver import new_id
from fixtures.programs import REPOSITORY
from fixtures.wait import wait_until

# A small store with two timelines; nobody is at the address that it follows.
GOLDEN = REPOSITORY / "pageserver" / "tests" / "golden" / "2026-11"
AWAY = r"(WARN|ERROR).*(WAL does not come|cannot connect|follow)"


class Many:
    """Three servers on a bucket with so many copies of a tenant."""

    def __init__(self, count, make_pageserver, work_dir):
        bucket = work_dir / "bucket"
        (tenant,) = (GOLDEN / "bucket" / "tenants").iterdir()
        self.tenants = sorted(new_id() for _ in range(count))
        for one in self.tenants:
            shutil.copytree(tenant, bucket / "tenants" / one)
        settings = {**SOON, "remote_storage": f"file://{bucket}", "keep_lease": True}
        make = lambda number: make_pageserver(f"many-{number}", **settings).allow(*EXPECTED, AWAY)  # noqa: E731
        self.servers = [make(number).start() for number in range(3)]
        lines = [line.split() for line in (GOLDEN / "expected").read_text().splitlines()]
        # Some keys of each timeline as of its end.
        ends = {timeline: lsn for timeline, lsn, *_ in lines}
        self.reads = [(timeline, lsn, key) for timeline, lsn, key, _ in lines if ends[timeline] == lsn][::4]

    def attach_all(self, server):
        path = "/v1/tenant/{}/location_config"
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda one: server.http.put(path.format(one), {"mode": "AttachedSingle"}), self.tenants))

    def roles(self) -> dict[str, list[str]]:
        """What each server that runs is to each tenant."""
        found = {one: [] for one in self.tenants}
        for number, server in enumerate(self.servers):
            if server.is_running():
                for tenant in server.http.get("/v1/tenant"):
                    found[tenant["id"]].append(f"{tenant['state']['slug']} {number}")
        return found

    def owners(self) -> dict[str, int]:
        """The number of each tenant's owner. There are not two, whenever it is looked."""
        owners = {}
        for tenant, roles in self.roles().items():
            active = [role for role in roles if role.startswith("Active")]
            assert len(active) <= 1, (tenant, roles)
            if active:
                owners[tenant] = int(active[0].split()[1])
        return owners

    def wait_for_owners(self, *numbers, timeout=60.0):
        """Waits until these have as many tenants each, but for one, and there are no others."""
        share = len(self.tenants) // len(numbers)

        def have_all():
            owners = self.owners()
            counts = [list(owners.values()).count(number) for number in numbers]
            return sum(counts) == len(self.tenants) and max(counts) - min(counts) <= 1 and min(counts) >= share

        wait_until(have_all, timeout, every=0.2, what=f"all tenants at {numbers}")

    def wait_for_standbys(self, timeout=60.0):
        """Waits until each tenant has a standby, at another server than its owner."""
        found = lambda: [roles for roles in self.roles().values()  # noqa: E731
                         if [role.split()[0] for role in sorted(roles)] != ["Active", "Standby"]]
        wait_until(lambda: not found(), timeout, every=0.2, what="a standby of each tenant")

    def unbelieved(self, server) -> list[str]:
        """Tenants of which a server is a standby, and has not seen the owner's lease yet."""
        standbys = [one["id"] for one in server.http.get("/v1/tenant") if one["state"]["slug"] == "Standby"]
        lease = lambda one: (server.http.get(f"/v1/tenant/{one}")["owner"] or {}).get("lease", {})  # noqa: E731
        return [one for one in standbys if lease(one).get("slug") != "Believed"]

    def pages(self, tenant, server) -> list[bytes]:
        path = "/v1/tenant/{}/timeline/{}/getpage?key={}&lsn={}"
        read = lambda timeline, lsn, key: server.http.raw("GET", path.format(tenant, timeline, key, lsn))  # noqa: E731
        answers = [read(*one) for one in self.reads]
        assert all(status == 200 for status, _, _ in answers), answers
        return [body for _, _, body in answers]

    def check(self, expected):
        """Each tenant's owner has the same pages."""
        owners = self.owners()
        assert len(owners) == len(self.tenants)
        with ThreadPoolExecutor(4) as pool:
            read = pool.map(lambda one: (one[0], self.pages(one[0], self.servers[one[1]])), owners.items())
            wrong = [tenant for tenant, pages in read if pages != expected]
        assert not wrong, wrong


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.daily)])
def test_each_of_many_tenants_has_one_owner(count, make_pageserver, make_computes, work_dir):
    """Spread over three servers with a standby each; one is killed, and comes back; one is drained, restarted and
    filled."""
    many = Many(count, make_pageserver, work_dir)
    first, second, third = many.servers
    many.attach_all(first)
    expected = many.pages(many.tenants[0], first)
    assert len(expected) > 5 and len(set(expected)) > 1
    computes = make_computes(first)
    computes.servers = many.servers

    def fleet(*args):
        begun = time.monotonic()
        done = computes.pagectl("fleet", *args, "--at-once", "16", timeout=600)
        assert done.code == 0, done.text
        print(f"fleet {' '.join(args)}: {time.monotonic() - begun:.1f} s")

    ids = [next(one["id"] for one in server.http.get("/v1/fleet")["servers"] if one["is_this"])
           for server in many.servers]
    fleet("rebalance", "--standbys", "1")
    many.wait_for_owners(0, 1, 2)
    many.wait_for_standbys()
    many.check(expected)
    # The leases of all owners have to be seen before one of them is missed.
    wait_until(lambda: not any(many.unbelieved(server) for server in many.servers), 60, what="the owners' leases")
    held = list(many.owners().values()).count(1)
    second.kill()
    killed = time.monotonic()
    wait_until(lambda: len(many.owners()) == count, TAKEOVER + 30, every=0.1, what="an owner of each tenant")
    print(f"{held} of {count} tenants were taken over within {time.monotonic() - killed:.1f} s")
    many.check(expected)
    taken = sum(int(server.http.metrics()["pageserver_takeovers_total"]) for server in (first, third))
    assert taken == held > count // 4
    second.start()
    assert 1 not in many.owners().values()
    fleet("rebalance", "--standbys", "1")
    many.wait_for_owners(0, 1, 2)
    many.wait_for_standbys()
    fleet("drain", ids[2])
    many.wait_for_owners(0, 1)
    third.restart()
    many.check(expected)
    fleet("fill", ids[2])
    many.wait_for_owners(0, 1, 2)
    many.wait_for_standbys()
    many.check(expected)
