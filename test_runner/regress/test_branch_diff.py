"""What differs between branches: schemas, and rows of tables; and how much a tenant may have."""

import json

import pytest

from fixtures.gateway import follow_with_password
from fixtures.wait import wait_until

MANY = 20_000


@pytest.fixture(scope="module")
def followed(make_postgres, make_pageserver):
    return follow_with_password(
        make_postgres, make_pageserver, "diff",
        f"CREATE TABLE plain AS SELECT i AS id, 'row ' || i AS v FROM generate_series(1, {MANY}) AS i",
        "ALTER TABLE plain ADD PRIMARY KEY (id)",
        "CREATE TABLE pairs (a text, b int, v numeric, note text, PRIMARY KEY (b, a))",
        "INSERT INTO pairs VALUES ('Zoe', 1, 1.5, NULL), ('ann', 1, 2, 'x'), ('ann', -2, 3, NULL), ('bob', 10, 4, 'y')",
        "CREATE TABLE keyless AS SELECT i % 3 AS i, i AS j FROM generate_series(1, 9) AS i",
        "CREATE DATABASE other")


@pytest.fixture
def computes(followed, make_computes):
    return make_computes(followed.pageserver)


@pytest.fixture
def dev(followed, computes):
    """A branch with a compute that writes it."""
    assert computes.pagectl("branch", "create", "dev").code == 0
    compute = computes.start("dev", "--branch", "dev")
    yield compute
    compute.stop()
    computes.ok("destroy", "dev")
    assert computes.pagectl("branch", "delete", "dev").code == 0


def diff(computes, *args, status: int) -> str:
    done = computes.pagectl("branch", "diff", *args)
    assert done.code == status, done.text
    assert not [name for name in computes.names() if name.startswith("diff-")], "what it needed is gone"
    return done.stdout if status < 2 else done.stderr


def objects(computes, *args, status=1) -> list[dict]:
    done = computes.pagectl("--json", "branch", "diff", *args)
    assert done.code == status, done.text
    return [json.loads(line) for line in done.stdout.splitlines()]


def flushed(dev) -> str:
    """Where the branch has all that was written."""
    lsn = dev.sql("SELECT pg_current_wal_flush_lsn()")
    wait_until(lambda: dev.timeline.info()["last_record_lsn"] and dev.sql(
        f"SELECT '{dev.timeline.info()['last_record_lsn']}'::pg_lsn + 40 >= '{lsn}'") == "t", 30, what="its WAL")
    return dev.timeline.info()["last_record_lsn"]


def test_schemas_are_compared(computes, dev):
    flushed(dev)
    assert "nothing differs" in diff(computes, "dev", "--schema", status=0)
    before = flushed(dev)
    dev.sql("ALTER TABLE pairs ADD COLUMN extra int DEFAULT 7")
    dev.sql("CREATE VIEW seen AS SELECT a FROM pairs; CREATE INDEX by_v ON plain (v); CREATE TYPE mood AS ENUM ('ok')")
    dev.sql("DROP TABLE keyless; CREATE SEQUENCE numbers; CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    flushed(dev)
    found = diff(computes, "dev", "--schema", status=1)
    for line in ("+    extra integer DEFAULT 7", "+CREATE VIEW public.seen AS", "+CREATE INDEX by_v ON",
                 "+CREATE SEQUENCE", "+CREATE TYPE public.mood AS ENUM (", "-CREATE TABLE public.keyless (",
                 "+CREATE FUNCTION public.f()"):
        assert line in found, found
    assert found.startswith("--- ") and "\n+++ dev@" in found
    # From the first to the second one.
    back = diff(computes, "dev", f"dev@{before}", "--schema", "--db", "postgres", status=1)
    assert "+CREATE TABLE public.keyless (" in back and "-CREATE VIEW public.seen AS" in back
    (one,) = objects(computes, f"dev@{before}", "dev", "--schema")
    assert one["same"] is False and [each["database"] for each in one["databases"]] == ["postgres"]
    assert "nothing differs" in diff(computes, "dev", "--schema", "--db", "other", status=0)
    dev.sql("DROP DATABASE other")
    flushed(dev)
    assert "other" in diff(computes, "dev", "--schema", "--db", "other", status=1)
    assert "there is no database nowhere" in diff(computes, "dev", "--schema", "--db", "nowhere", status=2)


def test_rows_are_compared(computes, dev):
    flushed(dev)
    assert "0 rows inserted, 0 deleted, 0 changed" in diff(computes, "dev", "--rows", "plain", status=0)
    dev.sql("UPDATE plain SET v = 'other' WHERE id = 9; DELETE FROM plain WHERE id = 10000")
    dev.sql(f"INSERT INTO plain VALUES ({MANY + 1}, 'new'), (-5, 'new')")
    flushed(dev)
    found = diff(computes, "dev", "--rows", "plain", status=1).splitlines()
    assert found[:-1] == ["+ id='-5' v='new'", "~ id='9'  v: 'row 9' -> 'other'", "- id='10000' v='row 10000'",
                          f"+ id='{MANY + 1}' v='new'"]
    assert "2 rows inserted, 1 deleted, 1 changed" in found[-1]
    cut = diff(computes, "dev", "--rows", "plain", "--limit", "2", status=1).splitlines()
    assert cut[:-1] == found[:2] and "there are more" in cut[-1]
    # NULLs, a key of two columns in another order than the table's, text by bytes.
    dev.sql("UPDATE pairs SET note = NULL WHERE a = 'bob'; UPDATE pairs SET note = '' WHERE a = 'Zoe'")
    dev.sql("UPDATE pairs SET b = 2 WHERE b = -2; UPDATE pairs SET v = 2.0 WHERE a = 'ann' AND b = 1")
    flushed(dev)
    rows = objects(computes, "dev", "--rows", "pairs")
    assert [row.get("change") for row in rows] == ["deleted", "changed", "changed", "inserted", "changed", None]
    assert rows[0]["row"] == {"a": "ann", "b": "-2", "v": "3", "note": None}
    assert (rows[1]["from"]["note"], rows[1]["to"]["note"]) == (None, "")
    assert (rows[2]["from"]["v"], rows[2]["to"]["v"]) == ("2", "2.0")
    assert (rows[4]["from"]["note"], rows[4]["to"]["note"]) == ("y", None)
    assert (rows[5]["inserted"], rows[5]["deleted"], rows[5]["changed"]) == (1, 1, 3)
    # The other way round, by naming both.
    back = objects(computes, "dev", followed_name(computes), "--rows", "pairs")
    assert back[0]["change"] == "inserted"
    assert "has no primary key: say with --key" in diff(computes, "dev", "--rows", "keyless", status=2)
    assert "several rows have the key" in diff(computes, "dev", "--rows", "keyless", "--key", "i", status=2)
    diff(computes, "dev", "--rows", "keyless", "--key", "j", status=0)
    assert "does not exist" in diff(computes, "dev", "--rows", "nowhere", status=2)
    dev.sql("ALTER TABLE pairs ADD COLUMN more int; ALTER TABLE pairs DROP COLUMN note")
    flushed(dev)
    assert "only one side has them: note, more" in diff(computes, "dev", "--rows", "pairs", status=1)
    # By blocks, as ever: whatever differs, that is no failure.
    assert "relations differ" in diff(computes, "dev", status=0)


def followed_name(computes) -> str:
    done = computes.pagectl("--json", "branch", "show", "dev")
    return json.loads(done.stdout)["ancestor_timeline_id"] + "@" + json.loads(done.stdout)["ancestor_lsn"]


def test_a_tenant_has_a_quota(followed, computes):
    def quota(*args) -> dict:
        done = computes.pagectl("--json", "tenant", "quota", *args)
        assert done.code == 0, done.text
        return json.loads(done.stdout)

    def made(name: str):
        return computes.pagectl("branch", "create", name)

    assert quota()["branches"] is None
    assert quota("--branches", "2", "--computes", "1")["used"]["branches"] == 0
    assert made("one").code == 0 and made("two").code == 0
    done = made("three")
    assert done.code == 1 and "has 2 branches, and its quota is 2" in done.stderr, done.text
    first = computes.start("one", "--branch", "one")
    computes.refuse("start", "two", "--branch", "two", names="has 1 computes that write, and its quota is 1")
    computes.refuse("start", "reads", "--read-only", "--branch", "two", names="its quota is 1")
    first.stop()
    first.start()
    first.stop()
    computes.start("reads", "--read-only", "--branch", "two")
    computes.refuse("start", "more", "--read-only", "--branch", "two", names="1 that only read run here")
    computes.ok("destroy", "reads", "--force")
    # It is kept, also with the branches alone.
    followed.pageserver.restart()
    assert (quota()["branches"], quota()["computes"]) == (2, 1)
    done = computes.pagectl("tenant", "quota", "--branches", "none", "--computes", "none", "--bytes", "1KiB")
    assert done.code == 0 and "exceeded" in done.stdout, done.text
    done = made("three")
    assert done.code == 1 and "bytes of layers, and its quota is 1024" in done.stderr, done.text
    tenant = followed.timeline.tenant
    line = f'pageserver_tenant_quota_exceeded{{tenant_id="{tenant}",quota="bytes"}} 1'
    assert line in followed.pageserver.http.raw("GET", "/metrics")[2].decode()
    # What is there goes on.
    first.start()
    assert first.sql("CREATE TABLE more AS SELECT 1 AS i; SELECT i FROM more") == "1"
    first.stop()
    quota("--bytes", "1TiB")
    assert made("three").code == 0
