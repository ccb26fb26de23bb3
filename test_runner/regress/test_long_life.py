"""A server whose history goes while it is written, and which is killed again and again: computes of the moments that
are kept have what was there then, those of others are refused."""

import random
import time

from fixtures import lsn as lsns
from fixtures import workload
from fixtures.computes import amcheck, stay_where_it_is
from fixtures.copies import catalogs, checksum_failures, checksums
from fixtures.followed import Followed, follow_new
from fixtures.load import load
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.retention import SHORT, pagectl
from fixtures.wait import wait_until

SEED = 20261125
# Rounds of changes, each under kills; a moment is kept after the first ones, one after the last is not.
ROUNDS = 3
KILLS = 2
SECONDS = 5
# Ingest waits at 12 L0 layers (`compaction_l0_wait`) for compaction, whatever else the machine does; the layer that was
# open then is one more where a moment is kept, which writes it out.
L0_MAX = 12 + 1


def tables(pg, db="postgres") -> list[str]:
    """One line per table, with a hash over its rows, in any server's order."""
    return sorted(checksums(pg, db).splitlines())


def work(followed: Followed, number: int, chance: random.Random) -> int:
    """Changes of all kinds while the server is killed; returns the highest number of L0 layers seen."""
    pg, server, highest = followed.postgres, followed.pageserver, 0
    due = sorted(chance.uniform(0.2, 0.9) * SECONDS for _ in range(KILLS))
    with load(pg):
        began = time.monotonic()
        pg.sql(f"CREATE DATABASE round_{number}")
        workload.ddl(pg, f"round_{number}")
        if number:
            pg.sql(f"DROP DATABASE round_{number - 1}")
        while (now := time.monotonic() - began) < SECONDS:
            if due and now > due[0]:
                due.pop(0)
                server.kill()
                server.start()
            highest = max(highest, followed.timeline.info()["l0_layer_count"])
            time.sleep(0.1)
    assert not due
    return highest


def kept(followed: Followed, pagectl_binary, number: int) -> dict:
    """Has the present moment kept; says what is there."""
    lsn = followed.catch_up()
    pagectl(pagectl_binary, followed.timeline, "hold", "create", f"moment {number}", "--at", lsn)
    pg = followed.postgres
    return {"lsn": lsn, "tables": tables(pg), "catalogs": catalogs(pg), "round": tables(pg, f"round_{number}")}


def remove_until(followed: Followed, pagectl_binary, lsn: str) -> int:
    """Compacts and removes history until `lsn` is below the cutoff; returns the number of layers removed."""
    timeline, removed = followed.timeline, 0

    def is_below() -> bool:
        nonlocal removed
        followed.postgres.bench(1000)
        followed.catch_up()
        timeline.server.http.put(f"{timeline.path}/checkpoint")
        pagectl(pagectl_binary, timeline, "compact", "--now")
        reports = pagectl(pagectl_binary, timeline, "gc", "--now")["timelines"]
        removed += sum(report["removed_layers"] for report in reports)
        return lsns.parse(timeline.info()["min_readable_lsn"]) > lsns.parse(lsn)

    wait_until(is_below, 60, what=f"{lsn} below the cutoff")
    return removed


def test_computes_of_kept_moments(make_postgres, make_pageserver, make_computes, pagectl_binary, pg_major):
    name, chance = f"life{pg_major}", random.Random(SEED)
    followed = follow_new(make_postgres, make_pageserver, name, major=pg_major, checksums=True, settings=SHORT)
    server, timeline = followed.pageserver.allow(POSTGRES_IS_GONE), followed.timeline
    # Computes expect it there, also after it was killed.
    stay_where_it_is(server)
    highest, moments = 0, []
    for number in range(ROUNDS):
        highest = max(highest, work(followed, number, chance))
        moments.append(kept(followed, pagectl_binary, number))
    lost = followed.catch_up()
    removed = remove_until(followed, pagectl_binary, lost)
    assert removed > 0 and highest <= L0_MAX, (removed, highest)
    computes = make_computes(server, name)
    for number, moment in enumerate(moments):
        compute = computes.start(f"m{number}", "--branch", f"kept-{number}", "--at", moment["lsn"])
        assert tables(compute) == moment["tables"]
        assert tables(compute, f"round_{number}") == moment["round"]
        # Before anything is changed there.
        assert catalogs(compute) == moment["catalogs"]
        amcheck(compute)
        assert checksum_failures(compute) == 0
        compute.stop()
    # One byte later nobody keeps anything.
    nobody = lsns.show(lsns.parse(moments[0]["lsn"]) + 8)
    computes.refuse("start", "late", "--branch", "late", "--at", nobody, names="history below LSN")
    assert "late" not in computes.names()
    # What the moments needed goes with them, but for the branches that are there now.
    for number in range(ROUNDS):
        pagectl(pagectl_binary, timeline, "hold", "delete", f"moment {number}")
    again = computes.start("again", "--read-only", "--at", moments[1]["lsn"])
    assert tables(again) == moments[1]["tables"]
    print(f"{ROUNDS * KILLS} kills, at most {highest} L0 layers, {removed} layers removed, seed {SEED}")
    followed.stop_and_compare()
