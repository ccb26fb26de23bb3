"""Two pageservers on one bucket: neither takes anything unasked; whoever takes a tenant over follows its server at
once."""


import pytest

from fixtures.followed import Followed, follow_new
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.stored import QUICK, all_stored, wipe
from fixtures.wait import wait_until

FENCED = r"(WARN|ERROR).*another server has taken the tenant over"
# A server that is told to end does not wait long for a busy bucket.
UNFINISHED = r"WARN.*not uploaded to their end: the next start goes on with it"


@pytest.fixture
def pair(make_postgres, make_pageserver, make_store, request):
    """A followed server, and a second pageserver on the same bucket, not started yet."""
    name = request.node.name.removeprefix("test_")[:30]
    settings = {**QUICK, **make_store("directory").settings(name)}
    followed = follow_new(make_postgres, make_pageserver, name, settings=settings)
    followed.pageserver.allow(UNFINISHED)
    wait_until(lambda: followed.timeline.info()["remote_consistent_lsn"], 60, what="the import in the store")
    second = make_pageserver(f"{name}-second", **settings).allow(UNFINISHED)
    yield followed, second
    for server in (followed.pageserver, second):
        if server.is_running():
            server.stop()
    if followed.postgres.is_running():
        followed.postgres.stop()


def tenants(server) -> list[str]:
    return [tenant["id"] for tenant in server.http.get("/v1/tenant")]


def test_nothing_is_taken_unasked(pair):
    followed, second = pair
    first, tenant = followed.pageserver, followed.timeline.tenant
    second.allow(r"WARN.*tenants in .* are not attached").start()
    assert tenants(second) == []
    assert "server_id" in second.log_text() and tenant in second.log_text()
    followed.postgres.bench(200)
    followed.catch_up()
    assert followed.timeline.info()["fenced"] is None
    # It recovers by itself when its disk is lost.
    lsn = all_stored(followed)
    first.stop()
    wipe(first)
    first.start()
    followed.assert_files_equal(lsn)
    assert tenants(second.restart()) == []


def test_the_slot_comes_with_the_tenant(pair):
    followed, second = pair
    first, timeline = followed.pageserver, followed.timeline
    first.allow(FENCED, POSTGRES_IS_GONE)
    second.allow(r"WARN.*tenants in .* are not attached").start()
    taken = second.timeline(timeline.tenant, timeline.id)
    second.http.put(f"/v1/tenant/{timeline.tenant}/location_config", {"mode": "AttachedSingle"})
    over = Followed(followed.postgres, second, taken)
    over.wait_for_receiver("streaming", "catching_up", timeout=20)
    followed.postgres.bench(200)
    over.catch_up()
    wait_until(lambda: timeline.info()["fenced"], 60, what="the first server to notice")
    assert "that was ended, since this server owns the tenant now" in second.log_text()
    over.stop_and_compare()


def test_a_slot_that_somebody_else_holds_is_told_and_waited_for(pair):
    followed, _ = pair
    server, postgres = followed.pageserver, followed.postgres
    server.allow(r"WARN.*the replication slot .* is in use")
    slot, _ = followed.slot()
    server.stop()
    place = postgres.own(postgres.data.parent / "received")
    holder = postgres.popen("pg_receivewal", *postgres.address(), "-D", place, "-S", slot)
    try:
        active = "SELECT count(*) FROM pg_replication_slots WHERE active"
        wait_until(lambda: postgres.sql(active) == "1", 30, what="somebody else at the slot")
        server.start()
        told = lambda: (followed.timeline.info()["walreceiver"] or {}).get("last_error")
        said = wait_until(told, 30, what="what keeps the receiver")
        assert "pg_receivewal" in said and "pg_terminate_backend" in said and slot in said, said
        assert postgres.sql(active) == "1", "it must not be ended"
    finally:
        holder.terminate()
        holder.wait(30)
    followed.wait_for_receiver("streaming")
    log = postgres.log.read_text(errors="replace")
    assert f'replication slot "{slot}" already exists' not in log
