"""A Postgres on which nothing is committed: its pageserver adds no layers."""

import time

from fixtures.attached import Attached, attach_new
from fixtures.wait import wait_until


def layers(attached: Attached) -> int:
    return attached.timeline.info()["layer_count"]


def test_an_idle_server_adds_no_layers(make_postgres, make_pageserver):
    settings = {"checkpoint_timeout": "1s"}
    attached = attach_new(make_postgres, make_pageserver, "idle", settings=settings, max_wal_senders=10)
    attached.catch_up()
    # The backup ends a segment: that much WAL is not kept for a layer that stays open.
    attached.postgres.sql("CHECKPOINT")
    wait_until(lambda: layers(attached) == 2, what="a layer after the one of the import")
    for _ in range(8):
        attached.postgres.sql("CHECKPOINT")
        time.sleep(1)
    attached.catch_up()
    assert layers(attached) == 2
    attached.postgres.sql("CREATE TABLE committed AS SELECT 1")
    attached.catch_up()
    wait_until(lambda: layers(attached) == 3, what="a layer with what was committed")
    attached.stop_and_compare()
