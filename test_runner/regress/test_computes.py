"""Computes: any moment of a cluster as an ordinary Postgres, with its writes on its branch."""

import json
import time
from datetime import datetime, timezone

import pytest

from fixtures import workload
from fixtures.followed import follow_new, rel_of
from fixtures.computes import Compute, amcheck, stay_where_it_is
from fixtures.copies import boot, catalogs, checksum_failures, checksums, fetch
from fixtures.http import HttpClient
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.servers import DEFAULT_MAJOR


def now() -> str:
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


def dump(pg, db="postgres") -> list[str]:
    """A logical dump, without the random words of newer servers and without the positions of sequences."""
    out = pg.run("pg_dump", "--no-unlogged-table-data", *pg.connection(db))
    left_out = ("\\restrict", "\\unrestrict", "SELECT pg_catalog.setval(")
    return [line for line in out.stdout.splitlines() if not line.startswith(left_out)]


def sequences(pg) -> dict[str, int]:
    """The last value of each sequence."""
    listed = pg.sql("SELECT string_agg(sequencename || '=' || coalesce(last_value, 0), ',') FROM pg_sequences")
    return {name: int(value) for name, value in (entry.split("=") for entry in listed.split(",") if entry)}


@pytest.mark.parametrize("mode", [[], ["--copy"]], ids=["lazy", "copy"])
def test_an_accident_is_undone_by_a_compute_of_the_moment_before(make_postgres, make_pageserver, make_computes, mode):
    followed = follow_new(make_postgres, make_pageserver, f"accident{len(mode)}", checksums=True)
    pg, computes = followed.postgres, make_computes(followed.pageserver)
    workload.ddl(pg)
    pg.bench(1000)
    pg.sql("CREATE UNLOGGED TABLE fleeting AS SELECT 1")
    expected, text, before, moment = checksums(pg), dump(pg), sequences(pg), now()
    time.sleep(1.1)
    pg.sql("DROP TABLE pgbench_accounts CASCADE; TRUNCATE pgbench_history")
    followed.catch_up()
    rescue = computes.start("rescue", "--branch", "dev", "--at", moment, *mode)
    assert checksums(rescue) == expected
    assert dump(rescue) == text
    # Postgres logs them up to 32 values ahead, and continues there after a crash.
    after = sequences(rescue)
    assert after.keys() == before.keys() and all(0 <= after[name] - before[name] <= 32 for name in after), after
    amcheck(rescue)
    rescue.bench(1000)
    assert rescue.sql("SELECT count(*) FROM pgbench_history") != pg.sql("SELECT count(*) FROM pgbench_history")
    # After it has stopped, all that it wrote is on its branch, page by page.
    written = checksums(rescue)
    end = rescue.stop()
    assert rescue.timeline.last_record_lsn() == end
    if rescue.copied:
        print(followed.assert_files_equal(end, rescue.timeline, rescue.data))
        rescue.run("pg_checksums", "--check", "-D", rescue.data)
    # It resumes where it was; and so does another one on the same branch.
    rescue.start()
    assert checksums(rescue) == written
    rescue.bench(500)
    written = checksums(rescue)
    rescue.stop()
    heir = computes.start("heir", "--branch", "dev", "--copy")
    assert checksums(heir) == written
    heir.bench(500)
    # The stopped one is behind now.
    computes.refuse("start", "rescue", names="compute heir")
    end = heir.stop()
    followed.assert_files_equal(end, heir.timeline, heir.data)
    computes.refuse("start", "rescue", names="does not continue it")
    computes.ok("destroy", "rescue")
    assert computes.names() == ["heir"]


def test_one_branch_has_one_writer(make_postgres, make_pageserver, make_computes):
    followed = follow_new(make_postgres, make_pageserver, "writers")
    followed.pageserver.allow(POSTGRES_IS_GONE)
    computes, elsewhere = make_computes(followed.pageserver), make_computes(followed.pageserver, "elsewhere")
    main = followed.timeline
    computes.refuse("start", "x", "--branch", main.id, names="writes the branch")
    first = computes.start("first", "--branch", "one")
    first.sql("CREATE TABLE t AS SELECT 1 AS i")
    computes.refuse("start", "second", "--branch", "one", names="compute first writes the branch one")
    # The management interface itself refuses it, too.
    body = {"id": "other", "name": "other", "connstr": "host=/nowhere", "slot": "s", "start_lsn": "0/8"}
    http = followed.pageserver.http
    http.refuse("PUT", f"{first.timeline.path}/writer", body, status=409, names=["compute first"])
    http.refuse("PUT", f"{main.path}/writer", body, status=409, names=["make a branch"])
    http.refuse("DELETE", f"{first.timeline.path}/writer?id=other", status=409, names=["compute first"])
    http.refuse("DELETE", f"{main.path}/writer?id=other", status=404, names=["no compute"])
    # Its host is lost: another one takes its place at the last position received from it.
    lsn = first.sql("SELECT pg_current_wal_flush_lsn()")
    first.timeline.wait_for_lsn(lsn)
    first.kill()
    second = elsewhere.start("second", "--branch", "one", "--replace", "--copy")
    assert second.sql("SELECT count(*) FROM t") == "1"
    second.sql("INSERT INTO t VALUES (2)")
    # If it comes back, it is refused.
    computes.refuse("start", "first", names="compute second")
    followed.pageserver.restart()
    computes.refuse("start", "first", names="compute second")
    assert second.sql("SELECT count(*) FROM t") == "2"
    end = second.stop()
    followed.assert_files_equal(end, second.timeline, second.data)


def test_any_number_of_computes_reads(make_postgres, make_pageserver, make_computes):
    followed = follow_new(make_postgres, make_pageserver, "readers")
    pg, computes = followed.postgres, make_computes(followed.pageserver)
    pg.sql("CREATE TABLE t AS SELECT generate_series(1, 1000) AS i")
    early = followed.catch_up()
    pg.sql("DELETE FROM t WHERE i > 10")
    followed.catch_up()
    one = computes.start("one", "--read-only", "--at", early)
    two = computes.start("two", "--read-only")
    assert (one.sql("SELECT count(*) FROM t"), two.sql("SELECT count(*) FROM t")) == ("1000", "10")
    assert one.sql("SELECT pg_is_in_recovery()") == "t"
    before = followed.timeline.info()
    done = one.run("psql", *one.connection(), "-c", "DELETE FROM t", check=False)
    assert "read-only transaction" in done.stderr
    assert followed.timeline.info()["walreceiver"]["host"] == before["walreceiver"]["host"]
    assert one.stop() is None
    one.start()
    assert one.sql("SELECT count(*) FROM t") == "1000"
    computes.refuse("destroy", "one", names="stop it first")


def test_a_pageserver_that_is_away_is_waited_for(make_postgres, make_pageserver, make_computes):
    followed = follow_new(make_postgres, make_pageserver, "away")
    computes = make_computes(followed.pageserver)
    compute = computes.start("c", "--branch", "c", "--set", "shared_buffers=1MB")
    stay_where_it_is(followed.pageserver)
    followed.pageserver.stop()
    counting = compute.start_sql("SELECT count(*), sum(abalance) FROM pgbench_accounts")
    time.sleep(3)
    assert counting.poll() is None, "nobody could have answered"
    followed.pageserver.start()
    out, _ = counting.communicate(timeout=60)
    assert out.strip() == "100000|0", out
    compute.bench(100)
    compute.stop()


def test_the_pageserver_comes_and_goes(make_postgres, make_pageserver, make_computes):
    followed = follow_new(make_postgres, make_pageserver, "gone")
    computes = make_computes(followed.pageserver)
    compute = computes.start("c", "--branch", "c", "--copy")
    compute.bench(500)
    server = followed.pageserver
    stay_where_it_is(server)
    server.stop()
    compute.bench(500)
    compute.sql("CREATE TABLE alone AS SELECT generate_series(1, 10000) AS i")
    computes.refuse("stop", "c", "--timeout", "5s", names="start it again")
    server.start()
    # Nothing is lost: it is still registered to write the branch.
    compute.start()
    end = compute.stop()
    report = followed.assert_files_equal(end, compute.timeline, compute.data)
    print(report)
    other = computes.start("d", "--branch", "c")
    assert other.sql("SELECT count(*) FROM alone") == "10000"


def test_branches_have_names(make_postgres, make_pageserver, make_computes):
    followed = follow_new(make_postgres, make_pageserver, "names")
    computes = make_computes(followed.pageserver)
    early = followed.catch_up()
    followed.postgres.bench(100)
    followed.catch_up()

    def branch(*args, refused: str | None = None):
        done = computes.pagectl("branch", *args)
        assert (done.code != 0 and refused in done.stderr) if refused else done.code == 0, done.text
        return done

    branch("create", "past", "--at", early)
    branch("create", "now")
    branch("create", "deeper", "--from", "past")
    branch("create", "past", refused="exists already")
    branch("create", "late", "--at", "FF/0", refused="after the last record")
    branch("create", "bad name", refused="no name for a branch")
    branch("create", "when", "--at", "yesterday", refused="10 minutes ago")
    branch("create", "before", "--at", "100 years ago", refused="before")
    listed = branch("list").stdout
    assert all(name in listed for name in ("past", "now", "deeper", early)), listed
    followed.pageserver.restart()
    assert branch("list").stdout.count("past") == 2
    branch("delete", "past", refused="delete those first")
    branch("delete", "deeper")
    branch("delete", "past")
    branch("create", "past", "--at", early)
    compute = computes.start("c", "--branch", "past")
    branch("delete", "past", refused="compute c")
    compute.sql("CREATE TABLE only_here AS SELECT generate_series(1, 10000) AS i")
    compute.sql("UPDATE pgbench_branches SET bbalance = 7")
    rel = rel_of(compute, "only_here")
    branches = rel_of(compute, "pgbench_branches")
    assert compute.stop()
    found = json.loads(branch("diff", "past", "--json").stdout)
    assert found["common_lsn"] == early
    by_rel = {one["rel"]: one for one in found["relations"]}
    mine = by_rel[f"{rel.spc}/{rel.db}/{rel.rel}"]
    assert mine["blocks_there"] is None and mine["blocks_here"] == mine["blocks_differing"] == 45
    changed = by_rel[f"{branches.spc}/{branches.db}/{branches.rel}"]
    assert 1 <= changed["blocks_differing"] <= changed["blocks_here"]
    accounts = rel_of(followed.postgres, "pgbench_accounts_pkey")
    assert f"{accounts.spc}/{accounts.db}/{accounts.rel}" not in by_rel
    same = branch("diff", "past", "past", "--at", early, "--other-at", early).summary
    assert same.startswith("0 blocks of 0 relations differ"), same
    computes.ok("destroy", "c")
    branch("delete", "past")
    assert "past" not in branch("list").stdout


@pytest.mark.parametrize("mib", [1, 64])
def test_wal_segments_of_another_size(make_postgres, make_pageserver, make_computes, mib):
    followed = follow_new(make_postgres, make_pageserver, f"segments{mib}", wal_segment_mib=mib)
    pg, computes = followed.postgres, make_computes(followed.pageserver)
    backup = fetch(followed.timeline, "fullbackup", followed.catch_up())
    compute = computes.start("c", "--branch", "c")
    assert compute.sql("SHOW wal_segment_size") == pg.sql("SHOW wal_segment_size") == f"{mib}MB"
    # The values that initdb chooses.
    for copy in (compute, boot(make_postgres, f"copy{mib}", backup)):
        sizes = [copy.sql(f"SELECT setting FROM pg_settings WHERE name = '{name}'")
                 for name in ("min_wal_size", "max_wal_size")]
        assert sizes == [str(5 * mib), str(64 * mib)]
        assert checksums(copy) == checksums(pg)
    compute.bench(500)
    compute.sql("SELECT pg_switch_wal()")
    compute.bench(500)
    written = checksums(compute)
    compute.stop()
    assert checksums(computes.start("heir", "--branch", "c")) == written


def test_what_makes_no_sense_is_refused(make_postgres, make_pageserver, make_computes):
    followed = follow_new(make_postgres, make_pageserver, "refused")
    computes = make_computes(followed.pageserver)
    for args, names in [
        (["start", "x"], "--branch"),
        (["start", "../x", "--branch", "b"], "no name for a compute"),
        (["start", "x", "--branch", "b", "--at", "FF/0"], "after the last record"),
        (["start", "x", "--branch", "b", "--set", "nonsense"], "no setting"),
        (["start", "x", "--branch", "b2", "--set", "port=1"], "options of their own"),
        (["start", "x", "--branch", "b3", "--pg-bin", "/nowhere"], "no PostgreSQL 15"),
        (["start", "x", "--branch", "b4", "--set", "work_mem=lots"], "work_mem"),
        (["start", "x", "--branch", "b5", "--superuser", "nobody"], "nobody"),
        (["stop", "x"], "no compute"),
        (["destroy", "x"], "no compute"),
        (["logs", "x"], "no compute"),
        (["connect", "x"], "no compute"),
    ]:
        computes.refuse(*args, names=names)
        assert computes.names() == [], args
    # No branch is left that was made for a compute that did not start, so that the next attempt can make it.
    listed = followed.pageserver.http.get(f"/v1/tenant/{followed.timeline.tenant}/timeline")
    assert [one["timeline_id"] for one in listed] == [followed.timeline.id]


def test_computes_by_http(make_postgres, make_pageserver, make_computes):
    followed = follow_new(make_postgres, make_pageserver, "http")
    computes = make_computes(followed.pageserver)
    token = "a token of some length"
    server = computes.serve(token)
    http = HttpClient(server.port, token=token)
    HttpClient(server.port).refuse("GET", "/v1/compute", status=401, names=["token"])
    HttpClient(server.port, token="wrong").refuse("POST", "/v1/compute", {"branch": "x"}, status=401)
    assert http.get("/v1/compute") == {"computes": []}
    made = http.post("/v1/compute", {"name": "c", "branch": "b", "settings": ["work_mem=7MB"]})
    assert made["name"] == "c" and made["ready_ms"] >= made["postgres_ready_ms"] > 0
    compute = Compute(computes, "c")
    assert compute.sql("SHOW work_mem") == "7MB"
    compute.sql("CREATE TABLE t AS SELECT 1")
    http.refuse("POST", "/v1/compute", {"branch": "b", "name": "d"}, status=409, names=["compute c"])
    http.refuse("POST", "/v1/compute", {"branches": "b"}, status=400, names=["branches"])
    http.refuse("PATCH", "/v1/compute/c", {"setings": []}, status=400, names=["setings"])
    told = http.call("PATCH", "/v1/compute/c", {"unset": ["work_mem"], "settings": ["jit=off"]})
    assert told["needs_restart"] and told["options"]["settings"] == ["jit=off"]
    http.refuse("GET", "/v1/compute/d", status=404, names=["no compute d"])
    http.refuse("DELETE", "/v1/compute/c", status=409, names=["stop it first"])
    assert http.get("/v1/compute/c")["state"] == "running"
    assert "ready to accept connections" in http.get("/v1/compute/c/logs")["log"]
    end = http.post("/v1/compute/c/stop")["end_lsn"]
    assert compute.timeline.last_record_lsn() == end
    http.post("/v1/compute/c/start", {})
    assert compute.sql("SELECT count(*) FROM t") == "1"
    assert compute.sql("SHOW jit") == "off" and compute.sql("SHOW work_mem") == "4MB"
    http.delete("/v1/compute/c?force=true")
    assert http.get("/v1/compute") == {"computes": []}


def test_every_version(make_postgres, make_pageserver, make_computes, pg_major):
    """From one server to a compute, to another compute, and back to pages; compares logical dumps of each."""
    followed = follow_new(make_postgres, make_pageserver, f"v{pg_major}", major=pg_major, checksums=True)
    pg, computes = followed.postgres, make_computes(followed.pageserver, f"v{pg_major}")
    workload.ddl(pg)
    pg.bench(500)
    lsn = followed.catch_up()
    expected = checksums(pg)
    reader = computes.start("reader", "--read-only", "--at", lsn)
    assert checksums(reader) == expected
    assert catalogs(reader) == catalogs(pg)
    # The installed clients are of one version, and cannot dump a newer server.
    if pg_major <= DEFAULT_MAJOR:
        assert dump(reader) == dump(pg)
    first = computes.start("first", "--branch", "work", "--at", lsn)
    assert checksums(first) == expected
    first.bench(500)
    first.sql("CREATE TABLE later AS SELECT generate_series(1, 1000) AS i; VACUUM")
    written = checksums(first)
    first.kill()
    first.start()
    assert checksums(first) == written
    first.stop()
    second = computes.start("second", "--branch", "work", "--copy")
    assert checksums(second) == written
    second.bench(100)
    amcheck(second)
    for compute in (second, reader):
        assert checksum_failures(compute) == 0 and compute.sql("SHOW data_checksums") == "on"
    print(followed.assert_files_equal(second.stop(), second.timeline, second.data))
    # This client can read the control files of these versions only.
    if pg_major <= DEFAULT_MAJOR + 1:
        second.run("pg_checksums", "--check", "-D", second.data)
    assert checksums(reader) == expected
