"""SQL that runs on a branch before anybody uses it: nobody sees what it masks, whatever is killed meanwhile."""

import json
import os
import signal
import subprocess
import threading
import time

import pytest

from fixtures.computes import stay_where_it_is
from fixtures.gateway import follow_with_password
from fixtures.wait import wait_until

# What is not known of branches right after the start would keep them.
AT_ONCE = {"gc_pause_after_attach": "1ms"}
ROWS = 500
MASK = "UPDATE people SET name = 'masked'"
SLOWLY = f"SELECT pg_sleep(2); {MASK}; SELECT pg_sleep(1)"
SEEN = "SELECT count(*) FROM people WHERE name <> 'masked'"
# Of clients that are refused; others come again at once.
PAUSE = 0.03
COUNTED = "SELECT count(*), count(*) FILTER (WHERE name = 'masked') FROM people"
ALL_MASKED = f"{ROWS}|{ROWS}"


@pytest.fixture(scope="module")
def followed(make_postgres, make_pageserver):
    return follow_with_password(
        make_postgres, make_pageserver, "init",
        "CREATE TABLE people (id int PRIMARY KEY, name text, age text);"
        f"INSERT INTO people SELECT i, 'Ann Smith ' || i, 'young' FROM generate_series(1, {ROWS}) AS i",
        settings=AT_ONCE)


@pytest.fixture
def computes(followed, make_computes):
    return make_computes(followed.pageserver)


@pytest.fixture
def sql_file(tmp_path):
    def write(sql: str) -> str:
        path = tmp_path / f"{abs(hash(sql))}.sql"
        path.write_text(sql)
        return str(path)

    return write


def shown(branch, name: str) -> dict:
    return branch("show", name)


def state(branch, name: str) -> str:
    return shown(branch, name)["init"]["state"]


class Hammer:
    """Clients that want to see what is not masked, from before a branch exists on."""

    def __init__(self, gateway, name: str, clients=3):
        self.gateway, self.name = gateway, name
        self.seen, self.refused, self.came_in = [], set(), 0
        self.stop = threading.Event()
        self.names = [f"{name}{moment}" for moment in ([""] * clients + ["@-0s"])]
        self.threads = [threading.Thread(target=self.run, args=(wanted,)) for wanted in self.names]
        for thread in self.threads:
            thread.start()

    def run(self, wanted: str):
        while not self.stop.is_set():
            done = self.gateway.psql(self.gateway.connstr(wanted), SEEN)
            if done.returncode == 0:
                self.came_in += 1
                if done.stdout.strip() != "0":
                    self.seen.append((wanted, done.stdout))
            else:
                self.refused.add(done.stderr)
                time.sleep(PAUSE)

    def end(self):
        self.give_up()
        assert self.seen == [], "somebody has seen what is not masked"


    def give_up(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()


@pytest.fixture
def hammer_at(make_gateway):
    made = []

    def start(*args, **more) -> Hammer:
        made.append(Hammer(*args, **more))
        return made[-1]

    yield start
    for hammer in made:
        hammer.give_up()


def begun(computes, *args) -> subprocess.Popen:
    return subprocess.Popen([str(computes.binary), "branch", *args], env=computes.environment(), cwd="/",
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_nobody_sees_what_is_to_be_masked(followed, computes, branch, make_gateway, hammer_at, sql_file):
    gateway = make_gateway(computes, "--idle-timeout", "2s")
    hammer = hammer_at(gateway, "masked")
    made = branch("create", "masked", "--init-sql", sql_file(SLOWLY))
    assert made["init"]["state"] == "done" and made["init"]["lsn"] > made["ancestor_lsn"]
    wait_until(lambda: hammer.came_in > 5, 60, what="clients")
    hammer.end()
    assert any("FATAL" in text and "is closed" in text for text in hammer.refused), hammer.refused
    assert gateway.sql("masked", COUNTED) == ALL_MASKED
    assert "init-" not in " ".join(computes.names())
    # Moments from before it was done are nobody's.
    for moment in (made["ancestor_lsn"], made["init"]["lsn"].rpartition("/")[0] + "/1"):
        error = gateway.refusal(f"masked@{moment}")
        assert "was done: nobody is to see" in error, error
    assert gateway.sql(f"masked@{made['init']['lsn']}", COUNTED) == ALL_MASKED
    computes.refuse("start", "early", "--read-only", "--branch", "masked", "--at", made["ancestor_lsn"],
                    names="nobody is to see")
    # A branch of it is masked as well, and its moments are as those of its parent.
    done = computes.pagectl("branch", "create", "child", "--from", "masked", "--at", made["ancestor_lsn"])
    assert done.code == 1 and "nobody is to see" in done.stderr, done.text
    child = branch("create", "child", "--from", "masked")
    assert child["init"]["state"] == "done" and child["init"]["lsn"] == made["init"]["lsn"]
    assert gateway.sql("child", COUNTED) == ALL_MASKED
    assert "nobody is to see" in gateway.refusal(f"child@{made['ancestor_lsn']}")
    assert "nobody is to see" in computes.pagectl("branch", "restore", "masked", "--force",
                                                  "--at", made["ancestor_lsn"]).stderr
    # Neither the log of calls nor what is shown has the SQL.
    log = (followed.pageserver.workdir / "audit.jsonl").read_text()
    assert made["init"]["sql"][0]["sha256"] in log and "pg_sleep" not in log
    assert "pg_sleep" not in json.dumps(shown(branch, "masked"))
    # It is still known after a restart.
    gateway.end()
    computes.destroy_all()
    followed.pageserver.restart()
    assert shown(branch, "masked")["init"] == made["init"]


def test_each_branch_of_a_parent_is_masked_however_it_is_made(followed, computes, branch, make_gateway, sql_file):
    root = followed.timeline.id
    assert branch("set", root, "--init-sql", sql_file(MASK))["branches_init_sql"]["database"] == "postgres"
    try:
        gateway = make_gateway(computes, "--idle-timeout", "2s")
        done = computes.pagectl("branch", "create", "ci", "--print-url", "--gateway", f"127.0.0.1:{gateway.port}")
        assert done.code == 0 and done.stdout.startswith("postgresql://"), done.text
        assert state(branch, "ci") == "pending", "the gateway runs it"
        assert "closed, SQL pending" in computes.pagectl("branch", "list").stdout
        computes.refuse("start", "peek", "--read-only", "--branch", "ci", names="has not run yet")
        done = computes.pagectl("branch", "create", "of-ci", "--from", "ci")
        assert done.code == 1 and "is closed" in done.stderr, done.text
        assert gateway.sql("ci", COUNTED) == ALL_MASKED
        # A compute that is started by hand has it run before; what runs on one branch too is run after.
        assert computes.start("hand", "--branch", "hand").sql(SEEN) == "0"
        own = sql_file("UPDATE people SET age = name")
        assert len(branch("create", "both", "--init-sql", own)["init"]["sql"]) == 2
        assert gateway.sql("both", "SELECT DISTINCT name, age FROM people") == "masked|masked"
        # As it begins anew it is masked again, by both.
        gateway.sql("both", "INSERT INTO people VALUES (0, 'me', '1')")
        before = shown(branch, "both")
        again = branch("reset", "both", "--force")
        assert again["timeline_id"] != before["timeline_id"] and again["init"]["state"] == "done"
        assert [one["sha256"] for one in again["init"]["sql"]] == [one["sha256"] for one in before["init"]["sql"]]
        assert gateway.sql("both", "SELECT DISTINCT name, age FROM people") == "masked|masked"
    finally:
        branch("set", root, "--no-init-sql")
    assert branch("create", "plain")["init"] is None


def test_sql_that_fails_keeps_the_branch_closed_until_it_is_mended(followed, computes, branch, make_gateway, sql_file):
    gateway = make_gateway(computes)
    bad = sql_file("UPDATE people SET name = 'masked';\n\nUPDATE people\n  SET age = age::int;\n")
    done = computes.pagectl("branch", "create", "bad", "--init-sql", bad)
    assert done.code == 1 and "statement 2, line 3" in done.stderr and "branch init bad --retry" in done.stderr
    init = shown(branch, "bad")["init"]
    assert init["state"] == "failed" and "22P02" in init["error"] and "young" not in init["error"]
    error = gateway.refusal("bad")
    assert "FATAL" in error and "statement 2, line 3" in error and "--retry" in error and "young" not in error
    computes.refuse("start", "bad", "--branch", "bad", names="has failed")
    done = computes.pagectl("branch", "init", "bad")
    assert done.code == 1 and "has failed" in done.stderr, done.text
    # Who repairs something says so.
    repair = computes.start("repair", "--branch", "bad", "--uninitialized")
    assert repair.sql("SELECT count(*) FROM people WHERE name = 'masked'") == "0", "it was one transaction"
    repair.sql("CREATE TABLE left_behind ()")
    assert "FATAL" in gateway.refusal("bad"), "nobody else gets in meanwhile"
    repair.stop()
    computes.ok("destroy", "repair")
    missing = sql_file("UPDATE people SET nome = 'masked'")
    done = computes.pagectl("branch", "init", "bad", "--retry", "--init-sql", missing)
    assert done.code == 1 and 'column "nome" of relation "people" does not exist' in done.stderr, done.text
    for sql, names in [("BEGIN; UPDATE people SET name = 'masked'; ROLLBACK; SELECT 1/0", "division by zero"),
                       ("COPY people FROM STDIN", "nothing to read"), ("VACUUM; SELECT 1", "cannot run inside")]:
        done = computes.pagectl("branch", "init", "bad", "--retry", "--init-sql", sql_file(sql))
        assert done.code == 1 and names in done.stderr, done.text
    # What is begun and not ended is not undone.
    opened = branch("init", "bad", "--retry", "--init-sql", sql_file("BEGIN; UPDATE people SET name = 'masked'"))
    assert opened["init"]["state"] == "done" and opened["name"] == "bad"
    assert gateway.sql("bad", COUNTED) == ALL_MASKED
    assert gateway.sql("bad", "SELECT to_regclass('left_behind') IS NULL") == "t", "it begins as it was made"
    done = computes.pagectl("branch", "create", "no", "--init-sql", sql_file("SELECT 1"), "--init-db", "nowhere")
    assert done.code == 1 and 'database "nowhere" does not exist' in done.stderr, done.text
    done = computes.pagectl("branch", "create", "long", "--init-sql", sql_file("SELECT 1;" * 70_000))
    assert done.code == 1 and "may have 524288" in done.stderr, done.text
    # Those that took another's place go by themselves.
    ids = {one["timeline_id"] for one in branch("list")["branches"] if one["name"] is None}
    wait_until(lambda: not ids & {one["timeline_id"] for one in branch("list")["branches"]} - {followed.timeline.id},
               30, what="the end of what was replaced")


def test_who_runs_it_is_killed(computes, branch, make_gateway, hammer_at, sql_file):
    """Its turn is over after a while, and somebody else runs it, on a branch as it was made."""
    gateway = make_gateway(computes)
    hammer = hammer_at(gateway, "killed", clients=2)
    creating = begun(computes, "create", "killed", "--init-sql",
                     sql_file("CREATE TABLE once (); SELECT pg_sleep(3);" + MASK))
    wait_until(lambda: any(one["name"] == "killed" and one["init"]["state"] == "running"
                           for one in branch("list")["branches"]), 30, what="its run")
    first = shown(branch, "killed")["timeline_id"]
    time.sleep(1)
    creating.kill()
    creating.communicate()
    wait_until(lambda: hammer.came_in > 3, 90, what="clients")
    hammer.end()
    after = shown(branch, "killed")
    assert after["init"]["state"] == "done" and after["timeline_id"] != first
    assert gateway.sql("killed", COUNTED) == ALL_MASKED
    wait_until(lambda: not [name for name in computes.names() if name.startswith("init-")], 20, what="no compute left")


def test_the_gateway_is_killed_while_it_runs_it(computes, branch, make_gateway, hammer_at, sql_file):
    gateway = make_gateway(computes)
    branch("create", "gone", "--init-later", "--init-sql", sql_file(SLOWLY))
    hammer = hammer_at(gateway, "gone", clients=2)
    wait_until(lambda: state(branch, "gone") == "running", 30, what="its run")
    time.sleep(1)
    os.kill(gateway.process.pid, signal.SIGKILL)
    gateway.process.wait()
    gateway.process.stdout.close()
    hammer.end()
    gateway.start()
    hammer = hammer_at(gateway, "gone", clients=2)
    wait_until(lambda: hammer.came_in > 3, 90, what="clients")
    hammer.end()
    assert gateway.sql("gone", COUNTED) == ALL_MASKED


def test_the_pageserver_is_killed_while_it_is_run(followed, computes, branch, make_gateway, hammer_at, sql_file):
    stay_where_it_is(followed.pageserver)
    gateway = make_gateway(computes)
    hammer = hammer_at(gateway, "crash", clients=2)
    creating = begun(computes, "create", "crash", "--init-sql", sql_file(SLOWLY))
    time.sleep(2)
    followed.pageserver.kill()
    followed.pageserver.start()
    creating.communicate(timeout=200)
    wait_until(lambda: hammer.came_in > 3, 90, what="clients")
    hammer.end()
    assert shown(branch, "crash")["init"]["state"] == "done"
    # What it has opened is durable, whenever the server ends.
    followed.pageserver.kill()
    followed.pageserver.start()
    assert shown(branch, "crash")["init"]["state"] == "done"
    assert gateway.sql("crash", COUNTED) == ALL_MASKED


def test_many_ask_at_once_and_it_runs_once(computes, branch, make_gateway, hammer_at, sql_file):
    gateway = make_gateway(computes)
    log = "CREATE TABLE runs AS SELECT 1; SELECT pg_sleep(1);"
    branch("create", "once", "--init-later", "--ttl", "1h", "--init-sql", sql_file(log + MASK))
    first = shown(branch, "once")["timeline_id"]
    by_hand = [begun(computes, "init", "once") for _ in range(2)]
    hammer = hammer_at(gateway, "once", clients=3)
    wait_until(lambda: hammer.came_in > 2, 60, what="clients")
    hammer.end()
    for process in by_hand:
        _, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
    after = shown(branch, "once")
    assert after["timeline_id"] == first and after["expires_at"], "nobody ran it on what another run had left"
    assert gateway.sql("once", "SELECT count(*) FROM runs") == "1"
