"""The life of branches: they expire, are protected, labelled and restored in their place; who did what is noted."""

import json

import psycopg
import pytest

from fixtures.followed import follow_new
from fixtures.gateway import follow_with_password
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.stored import QUICK
from fixtures.wait import wait_until

# What is not known of branches right after the start would keep them.
AT_ONCE = {"gc_pause_after_attach": "1ms"}
FENCED = r"(WARN|ERROR).*another server has taken the tenant over"


@pytest.fixture(scope="module")
def followed(make_postgres, make_pageserver):
    return follow_with_password(make_postgres, make_pageserver, "life",
                                "CREATE TABLE accounts AS SELECT i FROM generate_series(1, 100) AS i", settings=AT_ONCE)


@pytest.fixture
def computes(followed, make_computes):
    return make_computes(followed.pageserver)


def refused(computes, *args, names: str):
    done = computes.pagectl("branch", *args)
    assert done.code == 1 and names in done.stderr, done.text


def listed(branch, *args) -> dict[str, dict]:
    return {one["name"]: one for one in branch("list", *args)["branches"]}


def test_an_expired_branch_goes_and_nobody_gets_in(followed, computes, branch, make_gateway):
    gateway = make_gateway(computes)
    made = branch("create", "brief", "--ttl", "6s")
    assert made["expires_at"] > made["created_at"] and made["expired"] is None
    row = next(line for line in computes.pagectl("branch", "list").stdout.splitlines() if line.startswith("brief "))
    assert "expires in" in row
    assert gateway.sql("brief", "SELECT count(*) FROM accounts") == "100", "its compute is awake from now on"
    path = f"/v1/tenant/{made['tenant_id']}/timeline/{made['timeline_id']}"
    wait_until(lambda: "brief" not in listed(branch), 30, what="the end of the branch")
    followed.pageserver.http.refuse("GET", path, status=404)
    assert "FATAL" in (error := gateway.refusal("brief")) and 'branch "brief" does not exist' in error
    assert branch("create", "brief")["timeline_id"] != made["timeline_id"]
    assert gateway.sql("brief", "SELECT count(*) FROM accounts") == "100", "the new one has a compute of its own"


def test_an_expired_branch_with_a_branch_stays_and_says_why(computes, branch, make_gateway):
    gateway = make_gateway(computes)
    branch("create", "parent", "--ttl", "1h")
    with psycopg.connect(gateway.connstr("parent"), autocommit=True) as inside:
        branch("create", "child", "--from", "parent", "--ttl", "1h")
        branch("set", "parent", "--ttl", "1s")
        wait_until(lambda: listed(branch)["parent"]["expired"] == "it has a branch", 30, what="its expiry")
        assert "expired: it has a branch" in computes.pagectl("branch", "list").stdout
        wait_until(lambda: 'branch "parent" has expired' in gateway.refusal("parent"), 10, what="its refusal")
        assert inside.execute("SELECT count(*) FROM accounts").fetchone() == (100,), "who is there stays"
        branch("set", "parent", "--no-ttl")
        assert gateway.sql("parent", "SELECT count(*) FROM accounts") == "100", "it lives on"
    for name in ("child", "parent"):
        branch("set", name, "--ttl", "1s")
    wait_until(lambda: not {"child", "parent"} & set(listed(branch)), 30, what="the end of both")


def test_a_branch_expires_after_a_crash(followed, branch):
    branch("create", "outlived", "--ttl", "2s")
    branch("create", "kept", "--ttl", "1h", "--label", "a=b")
    before = listed(branch)["kept"]
    followed.pageserver.kill()
    followed.pageserver.start()
    wait_until(lambda: "outlived" not in listed(branch), 30, what="its end")
    after = listed(branch)["kept"]
    assert all(after[name] == before[name] for name in ("expires_at", "labels", "owner", "created_at"))
    branch("delete", "kept")


def test_a_protected_branch_is_neither_deleted_nor_reset(followed, computes, branch):
    made = branch("create", "safe", "--protect", "--ttl", "1s")
    computes.start("on_safe", "--branch", "safe").stop()
    path = f"/v1/tenant/{made['tenant_id']}/timeline/{made['timeline_id']}"
    followed.pageserver.http.refuse("DELETE", path, status=409, names=["pagectl branch set safe --unprotect"])
    refused(computes, "delete", "safe", "--force", names="branch set safe --unprotect")
    refused(computes, "reset", "safe", "--force", "--ttl", "1h", names="branch set safe --unprotect")
    assert "on_safe" in computes.names()
    wait_until(lambda: listed(branch)["safe"]["expired"] == "it is protected", 30, what="its expiry")
    branch("set", "safe", "--no-ttl", "--unprotect")
    branch("delete", "safe")


def test_labels_say_whose_a_branch_is(computes, branch):
    branch("create", "labelled", "--label", "pr=7", "--label", "team=db", "--reason", "a try", "--owner", "ann")
    branch("create", "other", "--label", "pr=8")
    assert set(listed(branch, "--label", "pr=7", "--label", "team=db")) == {"labelled"}
    assert listed(branch, "--label", "pr=7", "--label", "team=web") == {}
    one = listed(branch)["labelled"]
    assert (one["owner"], one["reason"]) == ("ann", "a try")
    table = computes.pagectl("branch", "list", "--label", "pr=7").stdout
    assert "ann" in table and "pr=7 team=db (a try)" in table and "other" not in table
    reset = branch("reset", "labelled")
    assert (reset["labels"], reset["owner"]) == (one["labels"], "ann"), "it is the same branch for people"
    renamed = branch("set", "labelled", "--name", "renamed", "--unlabel", "pr", "--reason", "")
    assert (renamed["name"], renamed["labels"], renamed["reason"]) == ("renamed", {"team": "db"}, None)
    refused(computes, "set", "renamed", "--name", "other", names="exists already")
    refused(computes, "set", "renamed", names="say what to change")


def test_a_branch_is_restored_and_what_it_was_is_kept(followed, computes, branch, make_gateway):
    gateway = make_gateway(computes)
    branch("create", "prod", "--label", "env=prod")
    gateway.sql("prod", "INSERT INTO accounts SELECT generate_series(101, 150)")
    good = gateway.sql("prod", "SELECT pg_current_wal_flush_lsn()")
    gateway.sql("prod", "DELETE FROM accounts WHERE i > 50")
    refused(computes, "restore", "prod", "--at", good, names="the compute prod runs on the branch prod")
    done = branch("restore", "prod", "--at", good, "--keep-as", "prod-broken", "--force")
    assert (done["branch"]["name"], done["kept"]["name"]) == ("prod", "prod-broken")
    assert done["branch"]["ancestor_lsn"] == good and done["branch"]["labels"] == {"env": "prod"}
    assert gateway.sql("prod", "SELECT count(*) FROM accounts") == "150"
    assert gateway.sql("prod-broken", "SELECT count(*) FROM accounts") == "50"
    gateway.sql("prod", "INSERT INTO accounts VALUES (0)")
    assert gateway.sql("prod-broken", "SELECT count(*) FROM accounts") == "50", "they are two from then on"
    refused(computes, "delete", "prod-broken", "--force", names="has 1 branches")
    refused(computes, "restore", "prod", "--at", "F/0", "--force", names="after its last record")
    refused(computes, "restore", "prod", "--at", good, "--keep-as", "prod-broken", "--force", names="stays as it is")
    assert gateway.sql("prod", "SELECT count(*) FROM accounts") == "151", "its compute runs on"
    # What is kept goes once nothing needs it, and all that is there after a restart.
    assert computes.pagectl("timeline", "detach", "prod").code == 0
    branch("delete", "prod-broken", "--force")
    assert gateway.sql("prod", "SELECT count(*) FROM accounts") == "151"
    gateway.end()
    computes.destroy_all()
    followed.pageserver.restart()
    after = listed(branch)
    assert "prod-broken" not in after and after["prod"]["detached_lsn"] == good
    branch("delete", "prod")


def test_who_did_what_is_noted(followed, computes, branch):
    made = branch("create", "noted", "--ttl", "1s")
    http = followed.pageserver.http
    path = f"/v1/tenant/{made['tenant_id']}/timeline/{made['timeline_id']}"
    status, headers, _ = http.raw("PUT", f"{path}/branch", b'{"ttl": "never"}', **{"X-Request-Id": "by-hand"})
    assert status == 400 and headers["x-request-id"] == "by-hand"
    wait_until(lambda: "noted" not in listed(branch), 30, what="its end")
    log = followed.pageserver.workdir / "audit.jsonl"

    def lines() -> list[dict]:
        all_of_them = map(json.loads, log.read_text().splitlines())
        return [line for line in all_of_them if line["timeline"] == made["timeline_id"]]

    wait_until(lambda: len(lines()) == 3, 10, what="three lines")
    create, change, expiry = lines()
    assert (create["method"], create["status"], create["authorized"]) == ("POST", 201, True)
    assert create["operation"] == "/v1/tenant/{tenant_shard_id}/timeline" and create["tenant"] == made["tenant_id"]
    assert create["peer"].startswith("127.0.0.1:") and create["subject"] is None
    assert (change["method"], change["status"], change["request_id"]) == ("PUT", 400, "by-hand")
    assert (expiry["method"], expiry["peer"], expiry["operation"]) == ("server", None, "expiry of a branch")
    assert log.stat().st_mode & 0o777 == 0o600


def test_whoever_takes_the_tenant_over_knows_when_its_branches_expire(make_postgres, make_pageserver, make_store):
    store = make_store("directory")
    settings = {**QUICK, **AT_ONCE, **store.settings("heir")}
    followed = follow_new(make_postgres, make_pageserver, "heir", settings=settings)
    first, timeline = followed.pageserver, followed.timeline
    first.allow(FENCED, POSTGRES_IS_GONE)
    second = make_pageserver("heir-second", **settings).allow(r"WARN.*tenants in .* are not attached").start()
    branch = timeline.branch()
    first.http.put(f"{branch.path}/branch", {"ttl": "1h", "protected": True, "name": "inherited"})
    wait_until(lambda: branch.info()["remote_consistent_lsn"], 60, what="the branch in the store")

    def is_stored() -> bool:
        parts = (store.root / "heir").rglob(f"*{branch.id}*/index_part*")
        return any(b"inherited" in part.read_bytes() for part in parts)

    # What was noted after the branch was made comes there a moment later.
    wait_until(is_stored, 60, what="what was noted in the store")
    first.kill()
    second.http.put(f"/v1/tenant/{timeline.tenant}/location_config", {"mode": "AttachedSingle"})
    taken = second.timeline(timeline.tenant, branch.id)
    assert (taken.info()["name"], taken.info()["protected"]) == ("inherited", True)
    assert taken.info()["expires_at"]
    second.http.put(f"{taken.path}/branch", {"ttl": "1s", "protected": False})
    second.http.get(taken.path)

    def is_gone() -> bool:
        return second.http.raw("GET", taken.path)[0] == 404

    wait_until(is_gone, 30, what="its end")
