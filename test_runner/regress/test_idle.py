"""A Postgres on which nothing is committed: its pageserver adds no layers."""

import time

from fixtures.followed import Followed, follow_new
from fixtures.wait import wait_until


def layers(followed: Followed) -> int:
    return followed.timeline.info()["layer_count"]


def test_an_idle_server_adds_no_layers(make_postgres, make_pageserver):
    settings = {"checkpoint_timeout": "1s"}
    followed = follow_new(make_postgres, make_pageserver, "idle", settings=settings, max_wal_senders=10)
    followed.catch_up()
    # The backup ends a segment: that much WAL is not kept for a layer that stays open.
    followed.postgres.sql("CHECKPOINT")
    wait_until(lambda: layers(followed) == 2, what="a layer after the one of the import")
    for _ in range(8):
        followed.postgres.sql("CHECKPOINT")
        time.sleep(1)
    followed.catch_up()
    assert layers(followed) == 2
    followed.postgres.sql("CREATE TABLE committed AS SELECT 1")
    followed.catch_up()
    wait_until(lambda: layers(followed) == 3, what="a layer with what was committed")
    followed.stop_and_compare()
