"""`pagectl bench` measures a running server, `pagectl top` shows what it does."""

import json

import pytest

from fixtures.followed import follow_new, rel_of
from fixtures.load import load
from fixtures.pagectl import Pagectl
from fixtures.programs import program


@pytest.fixture(scope="module")
def followed(make_postgres, make_pageserver):
    made = follow_new(make_postgres, make_pageserver, "bench", scale=2)
    made.catch_up()
    return made


def words(followed, *more) -> list:
    server = followed.pageserver
    return ["bench", "--server", server.http.base, "--page-service",
            f"host=127.0.0.1 port={server.pg_port} user=bench", "--time", "1s", *more]


def ctl(followed) -> Pagectl:
    return Pagectl(program("pagectl"), followed.pageserver.workdir)


@pytest.mark.parametrize("more", [
    [], ["--connections", 4, "--sizes", 20], ["--connections", 2, "--in-flight", 500], ["--sizes", 100],
], ids=["one", "four", "window", "sizes"])
def test_a_server_is_measured(followed, more):
    rel = rel_of(followed.postgres, "pgbench_accounts")
    found = json.loads(ctl(followed).ok("--json", *words(followed, "--rel", rel, *more)).stdout)
    assert found["answers"] > 100 and found["per_s"] == pytest.approx(found["answers"], abs=1)
    assert 0 < found["p50_us"] <= found["p95_us"] <= found["p99_us"] <= found["max_us"]


def test_a_server_is_measured_while_its_pages_change(followed):
    rel = rel_of(followed.postgres, "pgbench_tellers")
    with load(followed.postgres):
        done = ctl(followed).ok(*words(followed, "--rel", rel, "--connections", 4, "--sizes", 10))
    assert "answers/s to 4 connections with 1 in flight each" in done.summary


def test_a_moment_is_measured(followed):
    rel, lsn = rel_of(followed.postgres, "pgbench_accounts"), followed.catch_up()
    assert "answers/s" in ctl(followed).ok(*words(followed, "--rel", rel, "--lsn", lsn)).summary


def test_what_cannot_be_measured_is_said(followed):
    refuse, rel = ctl(followed).refuse, rel_of(followed.postgres, "pgbench_accounts")
    refuse(*words(followed, "--rel", "1663/5/77777"), names=["1663/5/77777"])
    refuse(*words(followed, "--rel", "accounts"), names=["expected TABLESPACE/DATABASE/RELATION"])
    followed.postgres.sql("CREATE TABLE empty ()")
    followed.catch_up()
    refuse(*words(followed, "--rel", rel_of(followed.postgres, "empty")), names=["is empty"])
    refuse(*words(followed, "--rel", rel, "--lsn", "FFFF/0"), names=["FFFF/0 is beyond the end of history"])
    refuse("bench", "--server", followed.pageserver.http.base, "--rel", rel, "--page-service",
           "host=127.0.0.1 port=1 user=bench", names=["refused"])


def test_top_shows_what_happens(followed):
    server = followed.pageserver
    with load(followed.postgres):
        done = ctl(followed).ok("--json", "top", "--server", server.http.base, "--interval", "1s", "--count", 2)
    frames = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(frames) == 2
    for frame in frames:
        (timeline,) = frame["timelines"]
        assert timeline["timeline_id"] == followed.timeline.id and timeline["layers"] > 0
        assert frame["rates"]["wal_bytes_per_s"] > 0 and frame["rates"]["records_per_s"] > 0
    assert frames[1]["timelines"][0]["wal_bytes_per_s"] > 0 and 0.9 < frames[1]["rates"]["seconds"] < 5


def test_top_is_for_people_too(followed):
    done = ctl(followed).ok("top", "--server", followed.pageserver.http.base)
    assert "WAL" in done.stdout and "BRANCH" in done.stdout and "\x1b" not in done.stdout, "no terminal, one look"
    assert followed.timeline.id[:8] in done.stdout
    ctl(followed).refuse("top", "--server", "http://127.0.0.1:1", names=["cannot reach the pageserver"])
    ctl(followed).refuse("top", "--interval", "1ms", names=["a load of its own"])
