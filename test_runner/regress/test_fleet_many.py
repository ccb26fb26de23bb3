"""A fleet of three servers with many tenants: whatever is done to the servers, each tenant has one owner and a standby,
and what it has is what it had."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fixtures import lsn as lsns
from fixtures.compare import compare_files
from fixtures.fleet import EXPECTED, SOON, TAKEOVER
from fixtures.followed import rel_of
from fixtures.lsn import after_shutdown
from fixtures.pageserver import Timeline
from fixtures.pagestream import get_page
from fixtures.stored import QUICK
from fixtures.wait import wait_until

TABLES = ("pg_class", "pg_proc", "pg_attribute")


class Many:
    """Three servers on a bucket, of which the first one has so many tenants, each a copy of one Postgres."""

    def __init__(self, count, make_postgres, make_pageserver, make_store):
        settings = {"max_replication_slots": count + 10, "max_wal_senders": 2 * count + 20, "max_connections": 300}
        self.pg = make_postgres(f"many-{count}", **settings).start()
        settings = {**QUICK, **SOON, **make_store("directory").settings(f"many-{count}"), "keep_lease": True}
        make = lambda number: make_pageserver(f"many-{count}-{number}", **settings).allow(*EXPECTED)  # noqa: E731
        self.servers = [make(number).start() for number in range(3)]
        with ThreadPoolExecutor(2) as pool:
            timelines = pool.map(lambda _: self.servers[0].follow(self.pg), range(count))
            self.tenants = {timeline.tenant: timeline.id for timeline in timelines}
        self.rels = [rel_of(self.pg, table) for table in TABLES]

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

    def wait_for_owners(self, *numbers, most_apart=1, timeout=60.0):
        """Waits until these have all tenants, about as many each, and there are no others."""

        def have_all():
            owners = self.owners()
            counts = [list(owners.values()).count(number) for number in numbers]
            return sum(counts) == len(self.tenants) and max(counts) - min(counts) <= most_apart

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
        """Some pages as of now."""
        end = lsns.parse(self.pg.sql("SELECT pg_current_wal_flush_lsn()"))
        with Timeline(server, tenant, self.tenants[tenant]).stream() as stream:
            return [stream.ask(get_page(rel, block, end, end)) for rel in self.rels for block in range(4)]

    def check(self):
        """Each tenant's owner has the same pages, with what was written just now."""
        self.pg.sql("CREATE TABLE IF NOT EXISTS t (i int); ALTER TABLE t ADD COLUMN IF NOT EXISTS "
                    f"c{time.monotonic_ns()} int")
        owners = self.owners()
        assert len(owners) == len(self.tenants)
        with ThreadPoolExecutor(4) as pool:
            read = dict(pool.map(lambda one: (one[0], self.pages(one[0], self.servers[one[1]])), owners.items()))
        (expected, *_) = read.values()
        assert len(set(expected)) > 3
        wrong = [tenant for tenant, pages in read.items() if pages != expected]
        assert not wrong, wrong

    def compare_all(self):
        """Every page of one tenant at each server with the files of the Postgres, which ends."""
        self.pg.sql("CHECKPOINT")
        for server in self.servers:
            server.allow(r"WARN.*(shutting down|closed|refused|cannot connect|administrator|No such file)")
        ends = self.pg.sql("SELECT pg_current_wal_flush_lsn()")
        owners = self.owners()
        for tenant, number in owners.items():
            Timeline(self.servers[number], tenant, self.tenants[tenant]).wait_for_lsn(ends)
        self.pg.stop()
        lsn = after_shutdown(self.pg.checkpoint_lsn())
        for number in range(3):
            tenant = next(tenant for tenant, at in owners.items() if at == number)
            with Timeline(self.servers[number], tenant, self.tenants[tenant]).stream(timeout=120) as stream:
                report = compare_files(stream, self.pg.data, lsn)
            assert not report.different and report.equal > 1000, str(report)


@pytest.mark.parametrize("count", [9, pytest.param(200, marks=pytest.mark.daily)])
def test_each_of_many_tenants_has_one_owner(count, make_postgres, make_pageserver, make_store, make_computes):
    """Spread over three servers with a standby each; one is killed, and comes back; one is drained, restarted and
    filled."""
    many = Many(count, make_postgres, make_pageserver, make_store)
    first, second, third = many.servers
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
    many.check()
    # The leases of all owners have to be seen before one of them is missed.
    wait_until(lambda: not any(many.unbelieved(server) for server in many.servers), 60, what="the owners' leases")
    held = list(many.owners().values()).count(1)
    second.kill()
    killed = time.monotonic()
    wait_until(lambda: len(many.owners()) == count, TAKEOVER + 30, every=0.1, what="an owner of each tenant")
    print(f"{held} of {count} tenants were taken over within {time.monotonic() - killed:.1f} s")
    many.check()
    taken = sum(int(server.http.metrics()["pageserver_takeovers_total"]) for server in (first, third))
    assert taken == held > count // 4
    second.start()
    assert 1 not in many.owners().values()
    fleet("rebalance", "--standbys", "1")
    many.wait_for_owners(0, 1, 2)
    many.wait_for_standbys()
    # Standbys come first, however many they have.
    fleet("drain", ids[2])
    many.wait_for_owners(0, 1, most_apart=count)
    third.restart()
    many.check()
    fleet("fill", ids[2])
    many.wait_for_owners(0, 1, 2, most_apart=count // 3 + 1)
    assert abs(list(many.owners().values()).count(2) - count // 3) <= 1
    many.wait_for_standbys()
    many.check()
    many.compare_all()
