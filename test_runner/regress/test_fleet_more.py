"""Of fleets what rarely breaks: a standby whose disk is full, and stores of earlier formats."""

import shutil

import pytest

from fixtures.fleet import EXPECTED, SOON, Writer
from fixtures.programs import REPOSITORY
from fixtures.small_disk import fill, small_disk
from fixtures.wait import wait_until

pytestmark = pytest.mark.daily

NO_ROOM = r"(WARN|ERROR).*(No space|no space|ENOSPC|os error 28|disk is full|has no room|journal)"
GOLDEN = REPOSITORY / "pageserver" / "tests" / "golden"


def test_a_standby_whose_disk_is_full_holds_nobody_up_and_goes_on(make_fleet, make_computes, make_pageserver, work_dir):
    fleet = make_fleet(1, settings={"durability": "journal", "checkpoint_timeout": "1h"})
    first = fleet.servers[0]
    with small_disk(work_dir, 120) as disk:
        settings = {key: value for key, value in first.settings.items() if not key.startswith("listen")}
        second = make_pageserver("small", disk / "store", **settings).allow(*EXPECTED, NO_ROOM)
        second.log = work_dir / "small.log"
        second.start()
        try:
            fleet.servers.append(second)
            fleet.make_standby(second)
            computes = make_computes(first)
            computes.servers = fleet.servers
            compute = computes.start("dev", "--branch", "dev", "--wait-for-pageserver")
            fleet.wait_for_standby(second, compute, compute.timeline)
            ballast = fill(disk / "ballast", leave_mib=8)
            with Writer(compute, "acknowledged") as writer:
                compute.sql("CREATE TABLE much AS SELECT g, repeat('x', 900) FROM generate_series(1, 40000) g")
                writer.wait_for_rows(len(writer.rows) + 20)
                behind = fleet.standing(second, compute.timeline)
                assert behind["lag_bytes"] is None or behind["lag_bytes"] > 1 << 20 or behind["error"], behind
                ballast.unlink()
                fleet.wait_for_standby(second, compute, compute.timeline, 120)
            writer.check()
            assert second.is_running() and fleet.state(second) == "Standby"
            # What it has is worth something.
            first.kill()
            fleet.wait_for_owner(second)
            writer.check()
            compute.stop()
        finally:
            fleet.servers.remove(second)
            second.destroy()


@pytest.mark.parametrize("name", sorted(one.name for one in GOLDEN.iterdir()))
def test_a_store_of_an_earlier_format_has_standbys(name, make_pageserver, work_dir):
    """A server goes on with its disk and bucket as an earlier version left them, and another one takes over from it."""
    shutil.copytree(GOLDEN / name, work_dir / "golden")
    settings = {**SOON, "remote_storage": f"file://{work_dir / 'golden' / 'bucket'}", "keep_lease": True}
    (tenant,) = (path.name for path in (work_dir / "golden" / "disk" / "tenants").iterdir())
    first = make_pageserver(f"{name}-old", work_dir / "old", attach_on_start="local", **settings)
    shutil.copytree(work_dir / "golden" / "disk" / "tenants", first.workdir / "tenants")
    # Nobody is at the address that it follows.
    away = (*EXPECTED, r"(WARN|ERROR).*(WAL does not come|cannot connect|follow)")
    first.allow(*away).start()
    second = make_pageserver(f"{name}-new", work_dir / "new", **settings).allow(*away).start()
    timelines = lambda server: {one["timeline_id"]: (one["last_record_lsn"], one["ancestor_timeline_id"])
                                for one in server.http.get(f"/v1/tenant/{tenant}/timeline")}
    before = timelines(first)
    assert len(before) == 2
    expected = [line.split() for line in (work_dir / "golden" / "expected").read_text().splitlines()]
    assert {line[0] for line in expected} <= set(before)
    second.http.put(f"/v1/tenant/{tenant}/location_config", {"mode": "Secondary"})

    def seen():
        owner = second.http.get(f"/v1/tenant/{tenant}")["owner"]
        return owner and owner["lease"]["slug"] == "Believed"

    wait_until(seen, 60, every=0.2, what="the owner's lease")
    generation = first.http.get(f"/v1/tenant/{tenant}")["generation"]
    first.kill()
    state = lambda: [one["state"]["slug"] for one in second.http.get("/v1/tenant") if one["id"] == tenant]
    wait_until(lambda: state() == ["Active"], 30, what="the takeover")
    assert second.http.get(f"/v1/tenant/{tenant}")["generation"] > generation
    assert timelines(second) == before
    # The one that was the owner is its standby now, and both are of today.
    first.configure(attach_on_start="own")
    first.start()
    first.http.put(f"/v1/tenant/{tenant}/location_config", {"mode": "Secondary"})
    second.stop()
    wait_until(lambda: [one["state"]["slug"] for one in first.http.get("/v1/tenant")] == ["Active"], 60,
               what="the way back")
    assert timelines(first) == before
    first.stop()
