"""The six queries from S3: what the report says, what it refuses, how requests are counted."""

import json
import subprocess
import sys

import pytest
from test_benchmark_reports import BENCHES, TOPOLOGY, VALIDITY

sys.path.insert(0, str(BENCHES / "social"))

from link import Request, one_after_the_other  # noqa: E402
from network import Network, Size  # noqa: E402
from queries import LEVELS, QUERIES  # noqa: E402
from world import shape  # noqa: E402


def execution(query: str, level: str, delay: float, **other) -> dict:
    gets = 0 if level == "data" else 5
    found = {"query": query, "level": level, "delay_ms": delay, "ms": 80.0 if gets else 0.4, "gets": gets,
             "pages": 6 * bool(gets), "mib": 0.5 * bool(gets), "round_trips": gets, "rows": 1, "start_to_row_ms": 500.0,
             "cpu_ms": {"pageserver": 50.0, "psql": 10.0}}
    return {**found, **other}


def results(**other) -> dict:
    executions = [execution(query, level, delay) for query in QUERIES for level in LEVELS for delay in (4, 25)]
    return {"users": 10, "pg_major": 15, "link_mib_per_s": 300.0, "settings": [], "postgres": {},
            "plain_ms": dict.fromkeys(QUERIES, 0.4), "database_mib": 9.0, "posts_mib": 4.0, "bucket_mib": 3.0,
            "executions": executions, **other}


def write(place, name: str, found: dict):
    artifact = {"format": 1, "bench": name, "topology": {**TOPOLOGY, "delay_ms": [4, 25]},
                "validity": dict(VALIDITY), "results": found}
    (place / f"{name}.json").write_text(json.dumps(artifact))


def report(place, found: dict) -> subprocess.CompletedProcess:
    write(place, "social", found)
    return subprocess.run([sys.executable, BENCHES / "report_social.py", place], capture_output=True, text=True)


def test_the_report_has_every_query_beside_what_was_published(tmp_path):
    done = report(tmp_path, results())
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "social.md").read_text()
    assert "| post | 4 | 80 | 77 | 1.04 | 80 | 93 | 5 | 10.5 | 0.5 | 4 | **missed** |" in page
    assert "| mutual | 25 | 80 | 183 | 0.44 | 80 | 264 | 5 | 13.1 | 0.5 | 17 | yes |" in page
    assert all(f"| {query} | {level} | 25 | 1 |" in page for query in QUERIES for level in LEVELS)
    assert "| scan at 4 ms: MB/s of the bucket (237) | 7 | **missed** |" in page
    assert "* at 25 ms, in 80 ms: pageserver 50\n" in page, "what takes little is left out"


@pytest.mark.parametrize("wrong", [
    execution("post", "data", 4, pages=1), execution("post", "none", 4, gets=0),
    execution("post", "none", 4, ms=600.0), execution("post", "none", 4, ms=0.0),
])
def test_the_report_refuses_what_contradicts_itself(tmp_path, wrong):
    done = report(tmp_path, results(executions=[execution("post", "none", 4), wrong]))
    assert done.returncode != 0 and "no report" in done.stderr and not (tmp_path / "social.md").exists()


def test_the_best_settings_are_shown_beside_none(tmp_path):
    def one(ahead, whole, at_once, of_compute, ms):
        return {"query": "post", "delay_ms": 25, "read_ahead_mib": ahead, "whole_after": whole,
                "io_concurrency": at_once, "ahead_mib": of_compute, "ms": ms, "gets": 7, "mib": 0.5}

    matrix = [one(0, 101, 1, 0, 200.0), one(4, 50, 1, 32, 100.0), one(16, 10, 16, 8, 50.0), one(1, 10, 1, 8, 150.0)]
    write(tmp_path, "social_matrix", results(matrix=matrix))
    done = report(tmp_path, results())
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "social_matrix.md").read_text()
    assert "| post | 16 | 10 | 16 | 8 | 50 | 7 | 0.5 | 0.25 |" in page
    assert "| post (without) | 0 | never | 1 | 0 | 200 | 7 | 0.5 | 1.00 |" in page
    assert "| post (default) | 4 | 50 | 1 | 32 | 100 | 7 | 0.5 | 0.50 |" in page


def test_requests_at_once_are_waited_for_once():
    def asked(*times):
        return one_after_the_other([Request("GET", began, ended) for began, ended in times])

    assert asked() == 0
    assert asked((0, 3), (0, 2), (1, 4)) == 1
    assert asked((0, 3), (3, 5), (0, 9), (5, 6)) == 3


def test_rows_are_the_same_for_the_same_seed():
    def lines(seed):
        return {table: list(rows) for table, rows in Network(Size(60), seed).tables()}

    one = lines(1)
    assert one == lines(1) and one["likes"] != lines(2)["likes"]
    assert [len(one[table]) for table in ("users", "posts", "likes")] == [60, 600, 1800]
    pairs = {tuple(row.split("\t")[:2]) for row in one["friendships"]}
    assert pairs == {(other, user) for user, other in pairs} and len(pairs) >= 1500
    counted = {row.split("\t")[0]: int(row.split("\t")[3]) for row in one["posts"]}
    assert sum(counted.values()) == 1800, "like_count is the number of likes"


def test_keys_are_no_part_of_a_plan():
    assert shape("Index Cond: (id = '724'::bigint)") == shape("Index Cond: (id = $1)") != shape("Seq Scan on posts p")
