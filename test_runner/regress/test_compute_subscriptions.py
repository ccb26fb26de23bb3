"""Branches of a subscriber of logical replication: they consume nothing that is meant for their parent."""

import itertools
import json
import time

import pytest

from fixtures.followed import Followed
from fixtures.computes import Compute
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.wait import wait_until

LIKE_IT = "CREATE TABLE t (i int)"
SUBSCRIPTIONS = ("SELECT string_agg(subname || ' ' || subenabled || ' ' || coalesce(subslotname, '-'), ', ' "
                 "ORDER BY subname)")


class World:
    """A publisher, and a subscriber that a pageserver follows."""

    def __init__(self, make_postgres, make_pageserver, name: str, major: int):
        settings = {"max_replication_slots": 10, "max_wal_senders": 10}
        self.publisher = make_postgres(f"{name}-publisher", major=major, wal_level="logical", **settings).start()
        self.subscriber = make_postgres(f"{name}-subscriber", major=major, **settings).start()
        self.publisher.sql(f"{LIKE_IT}; CREATE PUBLICATION p FOR TABLE t; INSERT INTO t SELECT generate_series(1, 100)")
        pageserver = make_pageserver(name).start().allow(POSTGRES_IS_GONE)
        self.followed = Followed(self.subscriber, pageserver, pageserver.follow(self.subscriber))

    def subscribe(self, subscriber, name: str, db="postgres", **more):
        options = "".join(f", {key} = {value}" for key, value in more.items())
        host = self.publisher.sockets
        subscriber.sql(
            f"CREATE SUBSCRIPTION {name} CONNECTION 'host={host} user=postgres dbname=postgres' PUBLICATION p "
            f"WITH (slot_name = {name}{options})", db
        )

    def publish(self, rows: int):
        self.publisher.sql(f"INSERT INTO t SELECT generate_series(1, {rows})")

    def active(self) -> str:
        return self.publisher.sql("SELECT string_agg(slot_name, ',' ORDER BY slot_name) FROM pg_replication_slots "
                                  "WHERE active AND slot_type = 'logical'")


def count(pg, db="postgres") -> int:
    return int(pg.sql("SELECT count(*) FROM t", db))


def subscriptions(pg) -> str:
    return pg.sql(f"{SUBSCRIPTIONS} FROM pg_subscription")


def assert_gets(pg, rows: int, db="postgres"):
    wait_until(lambda: count(pg, db) == rows, 30, what=f"{rows} rows, not {count(pg, db)}")


def logged(compute: Compute) -> str:
    return compute.log.read_text()


NUMBERS = itertools.count()


@pytest.fixture
def world(make_postgres, make_pageserver, pg_major):
    made = World(make_postgres, make_pageserver, f"v{pg_major}-{next(NUMBERS)}", pg_major)
    subscriber = made.subscriber
    subscriber.sql("CREATE DATABASE \"o'ther\"")
    for db, name in (("postgres", "one"), ("o'ther", "two")):
        subscriber.sql(LIKE_IT, db)
        made.subscribe(subscriber, name, db)
        assert_gets(subscriber, 100, db)
    # In a database that currently accepts no connections, and whose catalog is in another file.
    subscriber.sql("ALTER SUBSCRIPTION two DISABLE", "o'ther")
    subscriber.sql("ALTER SUBSCRIPTION two ENABLE", "o'ther")
    subscriber.sql("ALTER DATABASE \"o'ther\" ALLOW_CONNECTIONS false")
    subscriber.sql("VACUUM FULL pg_subscription")
    made.followed.catch_up()
    return made


def test_a_branch_leaves_its_parents_subscriptions_alone(world, make_computes):
    computes = make_computes(world.followed.pageserver)
    done = computes.ok("start", "branch", "--branch", "branch")
    assert "o'ther.two, postgres.one" in done.summary and "ALTER SUBSCRIPTION" in done.summary, done.summary
    compute = Compute(computes, "branch")
    assert subscriptions(compute) == "one false -, two false -"
    world.publish(50)
    assert_gets(world.subscriber, 150)
    time.sleep(1)
    assert count(compute) == 100
    assert "logical replication apply worker" not in logged(compute)
    assert subscriptions(world.subscriber) == "one true one, two true two" and world.active() == "one,two"
    # Dropping the subscription does not touch the slot either.
    compute.sql("DROP SUBSCRIPTION one")
    assert world.active() == "one,two"


def test_what_was_enabled_on_a_branch_stays_enabled(world, make_computes):
    pageserver = world.followed.pageserver
    computes, elsewhere = make_computes(pageserver), make_computes(pageserver, "elsewhere")
    compute = computes.start("branch", "--branch", "branch")
    world.publisher.sql("SELECT pg_create_logical_replication_slot('mine', 'pgoutput')")
    compute.sql("ALTER SUBSCRIPTION one SET (slot_name = 'mine')")
    compute.sql("ALTER SUBSCRIPTION one ENABLE")
    world.subscribe(compute, "own", enabled="false", copy_data="false")
    world.publish(50)
    assert_gets(compute, 150)
    assert_gets(world.subscriber, 150)
    expected = "one true mine, own false own, two false -"
    compute.stop()
    assert json.loads(computes.ok("--json", "start", "branch").stdout)["disabled_subscriptions"] == []
    assert subscriptions(compute) == expected
    # Another compute continues there, after an orderly stop and after its host is lost.
    compute.stop()
    second = computes.start("second", "--branch", "branch")
    assert subscriptions(second) == expected
    second.timeline.wait_for_lsn(second.sql("SELECT pg_current_wal_flush_lsn()"))
    second.kill()
    done = json.loads(elsewhere.ok("--json", "start", "third", "--branch", "branch", "--replace").stdout)
    assert done["disabled_subscriptions"] == []
    third = Compute(elsewhere, "third")
    assert subscriptions(third) == expected
    # The subscriptions of a branch of the branch are disabled again.
    third.timeline.wait_for_lsn(third.sql("SELECT pg_current_wal_flush_lsn()"))
    done = json.loads(computes.ok("--json", "start", "deeper", "--branch", "deeper", "--from", "branch").stdout)
    assert done["disabled_subscriptions"] == ["postgres.one"]
    deeper = Compute(computes, "deeper")
    assert subscriptions(deeper) == "one false -, own false -, two false -"
    deeper.kill()
    deeper.start()
    assert subscriptions(deeper) == "one false -, own false -, two false -"


def test_subscriptions_are_kept_if_they_are_to_be(world, make_computes):
    computes = make_computes(world.followed.pageserver)
    # The original subscriber has gone.
    world.followed.catch_up()
    world.followed.pageserver.allow(POSTGRES_IS_GONE)
    world.subscriber.stop()
    compute = computes.start("heir", "--branch", "heir", "--keep-subscriptions")
    assert subscriptions(compute) == "one true one, two true two"
    wait_until(lambda: "one" in world.active(), 30, what="the heir at the publisher")
    compute.stop()
    # So are they for later computes.
    second = computes.start("second", "--branch", "heir")
    assert subscriptions(second) == "one true one, two true two"
    computes.refuse("start", "heir", "--keep-subscriptions", names="as it was left")


def test_what_a_branch_got_itself_is_its_own(make_postgres, make_pageserver, make_computes):
    """There were none where the branch was made: nothing is done at its start, and subscriptions made later stay."""
    world = World(make_postgres, make_pageserver, "none", 15)
    world.subscriber.sql(LIKE_IT)
    world.followed.catch_up()
    pageserver = world.followed.pageserver
    computes, elsewhere = make_computes(pageserver), make_computes(pageserver, "elsewhere")
    compute = computes.start("branch", "--branch", "branch")
    assert compute.sql("SELECT count(*) FROM pg_replication_origin") == "0"
    assert logged(compute).count("starting PostgreSQL") == 1 and "database system was shut down" in logged(compute)
    world.subscribe(compute, "own")
    assert_gets(compute, 100)
    compute.timeline.wait_for_lsn(compute.sql("SELECT pg_current_wal_flush_lsn()"))
    compute.kill()
    second = elsewhere.start("second", "--branch", "branch", "--replace")
    assert subscriptions(second) == "own true own"
    reader = computes.start("reader", "--branch", "branch", "--read-only")
    assert subscriptions(reader) == "own true own" and "own" in world.active()
