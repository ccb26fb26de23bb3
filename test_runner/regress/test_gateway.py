"""One address for all branches: `pagectl gateway` before real computes, with psql and the drivers that people use."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import psycopg
import pytest

from fixtures.gateway import PASSWORD, follow_with_password
from fixtures.wait import wait_until

ROWS = 1000


@pytest.fixture(scope="module")
def followed(make_postgres, make_pageserver):
    return follow_with_password(make_postgres, make_pageserver, "gate",
                                f"CREATE TABLE kept AS SELECT generate_series(1, {ROWS}) AS i",
                                "CREATE ROLE nobody LOGIN")


@pytest.fixture
def computes(followed, make_computes):
    return make_computes(followed.pageserver)


@pytest.fixture
def make_branch(followed, computes):
    """Makes branches whose names no other test has used."""

    def make(name: str, *args) -> str:
        done = computes.pagectl("branch", "create", name, *args)
        assert done.code == 0, done.text
        return name

    return make


def test_a_branch_is_woken_by_who_connects(computes, make_gateway, make_branch):
    gateway = make_gateway(computes, "--idle-timeout", "2s")
    dev = make_branch("dev")
    assert computes.names() == []
    assert gateway.sql(dev, "SELECT count(*) FROM kept") == str(ROWS)
    assert gateway.sql(None, "CREATE TABLE mine AS SELECT 1 AS i; SELECT current_user", user=f"postgres@{dev}") == \
        "postgres"
    assert computes.names() == [dev]
    gateway.await_sleep(dev)
    assert gateway.sql(dev, "SELECT i FROM mine") == "1", "what it wrote is there when it wakes"


def test_who_is_refused_learns_why(followed, computes, make_gateway, make_branch):
    gateway = make_gateway(computes)
    make_branch("strict")
    error = gateway.refusal("nowhere")
    assert 'FATAL:  branch "nowhere" does not exist' in error and "HINT:  There are " in error and "strict" in error
    assert "names no branch" in gateway.refusal(None)
    assert "has no moment" in gateway.refusal("strict@yesterday")
    wrong = gateway.connstr("strict").replace(PASSWORD, "wrong")
    assert 'password authentication failed for user "postgres"' in gateway.psql(wrong, "SELECT 1").stderr
    assert "password authentication failed" in gateway.refusal("strict", user="nobody"), "it has no password"
    root = followed.timeline.info()["name"] or followed.timeline.id
    error = gateway.refusal(root)
    assert "writes the branch" in error and f"{root}@-0s" in error
    assert gateway.sql(f"{root}@-0s", "SELECT count(*) FROM kept") == str(ROWS)


def test_a_compute_that_cannot_start_says_why_to_the_client(computes, make_gateway, make_branch):
    computes.start("broken", "--branch", make_branch("broken"))
    computes.ok("set", "broken", "--set", "shared_buffers=nonsense")
    computes.ok("stop", "broken")
    gateway = make_gateway(computes)
    assert 'invalid value for parameter "shared_buffers"' in gateway.refusal("broken")
    computes.ok("set", "broken", "--unset", "shared_buffers")
    assert gateway.sql("broken", "SELECT count(*) FROM kept") == str(ROWS), "nothing is left behind"


def test_moments_are_read_by_any_number_and_gone_when_nobody_is_there(computes, make_gateway, make_branch):
    gateway = make_gateway(computes, "--idle-timeout", "3s")
    past = make_branch("past")
    lsn = gateway.sql(past, "SELECT pg_current_wal_flush_lsn()")
    gateway.sql(past, "TRUNCATE kept")
    moment = f"{past}@{lsn}"
    with psycopg.connect(gateway.connstr(moment)) as one, psycopg.connect(gateway.connstr(moment)) as other:
        for reader in (one, other):
            assert reader.execute("SELECT count(*) FROM kept").fetchone() == (ROWS,)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            one.execute("TRUNCATE kept")
        (name,) = (name for name in computes.names() if name != past)
        assert computes.about(name)["mode"] != computes.about(past)["mode"]
    assert gateway.sql(past, "SELECT count(*) FROM kept") == "0"
    gateway.await_gone(name)


def test_drivers(computes, make_gateway, make_branch):
    gateway = make_gateway(computes)
    branch = make_branch("drivers")

    async def with_asyncpg() -> int:
        connection = await asyncpg.connect(
            host="127.0.0.1", port=gateway.port, user=f"postgres@{branch}", password=PASSWORD, database="postgres",
            ssl=False,
        )
        try:
            rows = await connection.fetch("SELECT i FROM kept WHERE i <= $1", 10)
            await connection.copy_records_to_table("kept", records=[(i,) for i in range(ROWS)])
            return len(rows)
        finally:
            await connection.close()

    assert asyncio.run(with_asyncpg()) == 10
    with psycopg.connect(gateway.connstr(branch)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM kept WHERE i < %s", (5,)).fetchone()
        assert count == 4 + 5
        # Longer than any buffer on the way.
        (text,) = connection.execute("SELECT repeat('x', 3000000)").fetchone()
        assert text == "x" * 3_000_000


def test_a_cancelled_command_ends_and_the_session_goes_on(computes, make_gateway, make_branch):
    gateway = make_gateway(computes)
    with psycopg.connect(gateway.connstr(make_branch("cancels")), autocommit=True) as connection:
        timer = threading.Timer(1, connection.cancel)
        timer.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("SELECT pg_sleep(60)")
        timer.join()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_who_sleeps_and_who_does_not(computes, make_gateway, make_branch):
    """What a gateway has started sleeps, also if another gateway follows; what people have started does not."""
    gateway = make_gateway(computes, "--idle-timeout", "1s")
    by_hand = computes.start("by_hand", "--branch", make_branch("by_hand"), "--listen", "127.0.0.1")
    assert gateway.sql("by_hand", "SELECT 1") == "1"
    woken = make_branch("woken")
    assert gateway.sql(woken, "SELECT 1") == "1"
    gateway.await_sleep(woken)
    assert by_hand.state() == "running"
    assert gateway.sql(woken, "SELECT 1") == "1"
    gateway.end()
    assert computes.about(woken)["state"] == "running"
    # Somebody uses it without the gateway.
    direct = computes.json("connect", woken, "--print")["connstr"]
    with psycopg.connect(direct) as connection:
        gateway.start()
        with pytest.raises(AssertionError):
            wait_until(lambda: computes.about(woken)["state"] == "stopped", 6)
        assert connection.execute("SELECT 1").fetchone() == (1,)
    gateway.await_sleep(woken)
    assert by_hand.state() == "running"


def test_what_people_started_may_sleep_if_they_say_so(computes, make_gateway, make_branch):
    gateway = make_gateway(computes, "--idle-timeout", "1s")
    lulled = computes.start("lulled", "--branch", make_branch("lulled"), "--listen", "127.0.0.1")
    assert gateway.sql("lulled", "SELECT 1") == "1"
    computes.ok("set", "lulled", "--sleeps")
    assert gateway.sql("lulled", "SELECT 1") == "1"
    gateway.await_sleep("lulled")
    assert gateway.sql("lulled", "SELECT count(*) FROM kept") == str(ROWS), "and wakes"
    # And stays awake from the moment when that is taken back.
    computes.ok("set", "lulled", "--sleeps=false")
    with pytest.raises(AssertionError):
        wait_until(lambda: lulled.state() == "stopped", 5)


def test_a_branch_that_is_deleted_under_a_session_ends_that(computes, make_gateway, make_branch):
    """The session ends with an error, whoever comes next learns why, and nothing of the branch is left here."""
    gateway = make_gateway(computes, "--idle-timeout", "1s")
    doomed = make_branch("doomed")
    with psycopg.connect(gateway.connstr(doomed), autocommit=True) as session:
        assert session.execute("SELECT count(*) FROM kept").fetchone() == (ROWS,)
        pid = computes.about(doomed)["pid"]
        done = computes.pagectl("branch", "delete", doomed)
        assert done.code != 0 and "--force" in done.stderr, done.text
        assert session.execute("SELECT 1").fetchone() == (1,), "it goes on if the deletion is refused"
        done = computes.pagectl("branch", "delete", doomed, "--force")
        assert done.code == 0, done.text
        with pytest.raises(psycopg.OperationalError):
            session.execute("SELECT count(*) FROM kept")
        assert session.broken
    assert f'branch "{doomed}" does not exist' in gateway.refusal(doomed)
    assert doomed not in computes.names() and not (computes.dir / doomed).exists()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 20, what="the end of its Postgres")
    assert doomed not in Path("/proc/mounts").read_text()
    # Another one of that name is served as a new one.
    make_branch(doomed)
    assert gateway.sql(doomed, "SELECT count(*) FROM kept") == str(ROWS)


def test_a_branch_may_be_called_as_the_compute_of_another(computes, make_gateway, make_branch):
    gateway = make_gateway(computes)
    other = computes.start("taken", "--branch", make_branch("elsewhere"))
    assert gateway.sql(make_branch("taken"), "CREATE TABLE here (); SELECT count(*) FROM kept") == str(ROWS)
    assert other.sql("SELECT to_regclass('here') IS NULL") == "t"
    assert len(computes.names()) == 2


def test_many_computes_wake_at_once(computes, make_gateway, make_branch):
    gateway = make_gateway(computes, "--wakes-max", "2")
    branches = [make_branch(f"many{number}") for number in range(5)]
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda branch: gateway.sql(branch, "SELECT count(*) FROM kept"), branches * 2))
    assert answers == [str(ROWS)] * 10
    assert sorted(computes.names()) == sorted(branches)


def test_the_port_of_one_that_slept_may_be_taken(computes, make_gateway, make_branch):
    gateway = make_gateway(computes, "--idle-timeout", "1s")
    moved = make_branch("moved")
    assert gateway.sql(moved, "SELECT 1") == "1"
    gateway.await_sleep(moved)
    before = computes.about(moved)["port"]
    with socket.create_server(("127.0.0.1", before)):
        assert gateway.sql(moved, "SELECT 1") == "1"
    assert computes.about(moved)["port"] != before


def test_what_a_gateway_refuses_to_begin_with(computes, make_gateway, make_branch):
    done = computes.pagectl("gateway", "--trust", "--listen", "0.0.0.0:0")
    assert done.code == 1 and "needs an address on loopback" in done.stderr, done.text
    done = computes.pagectl("gateway", "--listen", "127.0.0.1:0", "--connections-max", "100000000")
    assert done.code == 1 and "connections need" in done.stderr and "ulimit" in done.stderr, done.text
    gateway = make_gateway(computes, "--trust")
    assert gateway.sql(make_branch("open"), "SELECT current_user", user="nobody") == "nobody"
