"""The metrics that benchmarks sum up are there on a real server: one that is not there would count as nothing."""

import re
import sys
from pathlib import Path

import pytest

from fixtures.load import load
from fixtures.retention import SMALL, follow
from fixtures.wait import wait_until

BENCHES = Path(__file__).resolve().parents[2] / "benches"
sys.path.append(str(BENCHES))

from compaction import total  # noqa: E402

# Those of `memory.py` that are asked for in a loop are named there without a call.
NAMED = ("compaction_debt_bytes", "upload_queue_layers", "compaction_failing")


def summed() -> set[str]:
    sources = "".join((BENCHES / name).read_text() for name in ("compaction.py", "memory.py"))
    return {*re.findall(r'total\(.*?, "(\w+)"', sources), *(name for name in NAMED if f'"{name}"' in sources)}


def test_each_is_there(make_postgres, make_pageserver, make_store):
    names, store = summed(), make_store("directory")
    assert {*NAMED, "flushed_bytes_total", "compaction_slowed_seconds_total"} <= names
    followed = follow(make_postgres, make_pageserver, "metrics", **store.settings("bucket"), **SMALL)

    def written() -> float:
        return total(followed.pageserver.http.metrics(), "flushed_bytes_total")

    with load(followed.postgres):
        wait_until(lambda: written() > 0, 60, what="a layer")
    found = {name: total(followed.pageserver.http.metrics(), name) for name in names}
    assert found["timeline_value_bytes_total"] > 0 and found["compaction_slowed_seconds_total"] >= 0, found


def test_one_that_is_missing_fails():
    metrics = {"pageserver_here": 1.0, 'pageserver_labelled{kind="a"}': 2.0, 'pageserver_labelled{kind="b"}': 3.0}
    assert (total(metrics, "here"), total(metrics, "labelled"), total(metrics, "labelled", '"b"')) == (1, 5, 3)
    with pytest.raises(AssertionError, match="no metric label"):
        total(metrics, "label")
