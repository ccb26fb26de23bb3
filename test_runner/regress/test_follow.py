"""Following a live server: what is readable from when on, what is reported to the server, and that refusals leave
nothing behind."""

import time

import pytest

from fixtures import lsn as lsns
from fixtures import workload
from fixtures.followed import Followed, follow_new
from fixtures.compare import compare_files
from fixtures.load import load
from fixtures.pageserver import POSTGRES_IS_GONE, connection_string, new_id
from fixtures.pagestream import Rel, get_page
from fixtures.wait import wait_until


def test_pages_of_a_server_followed_under_load_equal_its_files_at_every_moment(
    make_postgres, make_pageserver, module_dir, pagectl_binary
):
    pg = make_postgres("busy", max_replication_slots=10).start()
    pg.bench_init(2)
    workload.tablespace(pg)
    server = make_pageserver("busy", checkpoint_distance=2 * 1024 * 1024).start()
    with load(pg) as bench:
        timeline = server.follow(pg)
        followed = Followed(pg, server, timeline)
        first = timeline.info()["min_readable_lsn"]
        assert server.follow_status(timeline)["consistent_lsn"] == first
        time.sleep(3)
        assert bench.poll() is None, "the load failed"

    moments = []
    for number, work in enumerate([workload.ddl, workload.vacuum, workload.truncate]):
        work(pg)
        pg.bench(2000)
        moments.append((followed.stop_postgres(), pg.copy_stopped(module_dir / f"moment-{number}")))
        pg.start()
    pg.bench(2000)
    last = followed.stop_postgres()
    timeline.wait_for_lsn(last)
    for lsn, data in [*moments, (last, pg.data)]:
        with timeline.stream() as stream:
            report = compare_files(stream, data, lsn)
        assert not report.different and report.equal > 3000, str(report)
    with timeline.stream() as stream:
        assert compare_files(stream, moments[0][1], last).different, "files of one moment are not those of another"
        # Before its end the copy is not consistent, and an error says so.
        begin = server.follow_status(timeline)["start_lsn"]
        assert lsns.parse(begin) < lsns.parse(first)
        for lsn in (begin, lsns.show(lsns.parse(first) - 8)):
            text = stream.refusal(get_page(Rel(1663, 5, 1259), 0, lsns.parse(lsn), 1))
            assert lsn in text and first in text and "consistent" in text, text
        assert any(stream.ask(get_page(Rel(1664, 0, 1262), 0, lsns.parse(first), 1)))
    server.stop()
    store = timeline.store(pagectl_binary)
    store.verify(pg.data)
    for lsn, data in moments:
        store.verify(data, lsn)
    store.layers()


def test_servers_of_all_versions_are_copied_and_followed(pg_major, make_postgres, make_pageserver, pagectl_binary):
    followed = follow_new(make_postgres, make_pageserver, f"version-{pg_major}", major=pg_major)
    workload.tablespace(followed.postgres)
    workload.ddl(followed.postgres)
    workload.multixacts(followed.postgres)
    followed.postgres.bench(2000)
    workload.vacuum(followed.postgres)
    followed.stop_and_verify(pagectl_binary)


def test_the_server_keeps_the_wal_that_is_not_durable_here_and_no_more(make_postgres, make_pageserver):
    followed = follow_new(make_postgres, make_pageserver, "feedback")
    pg, timeline = followed.postgres, followed.timeline
    assert followed.slot()[0] == f"pageserver_{timeline.id}"
    with load(pg):
        for _ in range(40):
            # Read in this order, because the durable position only grows.
            kept_from = followed.slot()[1]
            durable = timeline.info()["disk_consistent_lsn"]
            assert lsns.parse(kept_from) <= lsns.parse(durable), "the server may forget WAL that only it has"
            sent, write, flush, replay = pg.sql(
                "SELECT sent_lsn, coalesce(write_lsn, '0/0'), coalesce(flush_lsn, '0/0'), coalesce(replay_lsn, '0/0') "
                "FROM pg_stat_replication WHERE application_name = 'pageserver'"
            ).split("|")
            info = timeline.info()
            assert lsns.parse(flush) <= lsns.parse(info["disk_consistent_lsn"])
            assert lsns.parse(replay) <= lsns.parse(info["last_record_lsn"])
            assert lsns.parse(flush) <= lsns.parse(replay) <= lsns.parse(write) <= lsns.parse(sent)
            time.sleep(0.1)
    followed.catch_up()
    # A checkpoint here makes everything durable, and the server is informed: it need not keep older WAL.
    end = pg.sql("SELECT pg_current_wal_flush_lsn()")
    followed.pageserver.http.put(f"{timeline.path}/checkpoint")
    assert lsns.parse(timeline.info()["disk_consistent_lsn"]) >= lsns.parse(end)
    wait_until(lambda: lsns.parse(followed.slot()[1]) >= lsns.parse(end), 15, what="the slot at what is durable")


def test_a_server_stops_in_seconds_while_it_is_followed(make_postgres, make_pageserver):
    """On a fast stop Postgres waits until its followers have confirmed all of its WAL."""
    followed = follow_new(make_postgres, make_pageserver, "stopping", settings={})
    followed.postgres.bench(1000)
    began = time.monotonic()
    lsn = followed.stop_postgres()
    assert time.monotonic() - began < 15
    followed.timeline.wait_for_lsn(lsn)
    followed.assert_files_equal(lsn)


def test_what_cannot_be_followed_leaves_nothing(make_postgres, make_pageserver):
    pg = make_postgres("refusing", max_replication_slots=2).start()
    pg.sql("CREATE ROLE plain LOGIN")
    server = make_pageserver("refusing").start().allow(r"WARN.*cannot follow the server")
    secret = server.secret("hunter-2-s3cret")
    for connstr, names in [
        ("host=/nowhere user=postgres", ["/nowhere"]),
        (f"host=127.0.0.1 port=1 user=postgres password={secret} connect_timeout=3", ["refused"]),
        (connection_string(pg, user="nobody_there"), ["nobody_there"]),
        (connection_string(pg, user="plain"), ["replication"]),
    ]:
        timeline = server.start_follow(connstr)
        status = wait_until(
            lambda t=timeline: (s := server.follow_status(t))["phase"] == "failed" and s, 30, what="the failure"
        )
        assert secret not in str(status)
        assert all(name in status["error"] for name in names), status
    for connstr in ("", "nonsense", f"host=a passwrd={secret}", "user=postgres"):
        said = server.http.refuse("POST", "/v1/follow", {"connstr": connstr}, status=400)
        assert secret not in said
    assert server.http.get("/v1/tenant") == []
    assert pg.sql("SELECT count(*) FROM pg_replication_slots") == "0"
    # A slot whose name the user chose is not ours.
    pg.sql("SELECT pg_create_physical_replication_slot('taken')")
    timeline = server.start_follow(connection_string(pg), slot="taken")
    status = wait_until(lambda: (s := server.follow_status(timeline))["phase"] == "failed" and s, 30)
    assert "taken" in status["error"] and "exists" in status["error"]
    assert pg.sql("SELECT slot_name FROM pg_replication_slots") == "taken"
    assert not list(server.workdir.glob("tenants/*/timelines/*"))
    pg.stop()


def test_a_server_without_wal_for_replicas_is_refused(make_postgres, make_pageserver):
    pg = make_postgres("minimal", wal_level="minimal", max_wal_senders=0).start()
    server = make_pageserver("minimal").start().allow(r"WARN.*cannot follow the server")
    timeline = server.start_follow(connection_string(pg))
    status = wait_until(lambda: (s := server.follow_status(timeline))["phase"] == "failed" and s, 30)
    assert status["error"]
    pg.stop()


def test_a_copy_that_is_killed_can_be_made_again(make_postgres, make_pageserver, pagectl_binary):
    pg = make_postgres("again", max_replication_slots=10).start()
    pg.bench_init(5)
    server = make_pageserver("again").start().allow(POSTGRES_IS_GONE)
    tenant, timeline_id = new_id(), new_id()
    for delay in (0.05, 0.3, 0.6):
        server.start_follow(connection_string(pg), tenant_id=tenant, timeline_id=timeline_id)
        time.sleep(delay)
        server.kill()
        server.start()
        if any(info["timeline_id"] == timeline_id for info in timelines(server, tenant)):
            break
    else:
        timeline = server.follow(pg, tenant_id=tenant, timeline_id=timeline_id)
        assert timeline.id == timeline_id
    timeline = server.timeline(tenant, timeline_id)
    assert pg.sql("SELECT count(*) FROM pg_replication_slots") == "1"
    server.http.refuse("POST", "/v1/follow", {
        "connstr": connection_string(pg), "tenant_id": tenant, "timeline_id": timeline_id,
    }, status=409)
    pg.bench(500)
    timeline.wait_for_lsn(Followed(pg, server, timeline).stop_postgres())
    server.stop()
    timeline.store(pagectl_binary).verify(pg.data)


def timelines(server, tenant: str) -> list[dict]:
    if tenant not in [info["id"] for info in server.http.get("/v1/tenant")]:
        return []
    return server.http.get(f"/v1/tenant/{tenant}/timeline")


def test_a_password_reaches_the_server_and_nobody_else(make_postgres, make_pageserver):
    pg = make_postgres("secret", max_replication_slots=10)
    pg.start()
    server = make_pageserver("secret").start()
    for method in ("md5", "scram-sha-256"):
        secret = server.secret(f"pass word-{method}")
        pg.sql(f"SET password_encryption = '{method}'; DROP ROLE IF EXISTS follower; "
               f"CREATE ROLE follower LOGIN REPLICATION PASSWORD '{secret}'")
        hba = f"local replication follower {method}\nlocal all follower {method}\nlocal all all trust\n"
        (pg.data / "pg_hba.conf").write_text(hba)
        pg.sql("SELECT pg_reload_conf()")
        connstr = connection_string(pg, user="follower", password=f"'{secret}'")
        timeline = server.follow(pg, connstr=connstr)
        answers = [server.follow_status(timeline), timeline.info(), server.http.get("/v1/tenant")]
        assert secret not in str(answers)
        assert (timeline.dir() / "manifest").stat().st_mode & 0o777 == 0o600
        # The bucket has it, too: a directory that the server creates is accessible to its owner alone.
        assert (server.workdir / "objects").stat().st_mode & 0o777 == 0o700
        others = [path for path in timeline.dir().iterdir() if path.is_file() and path.stat().st_mode & 0o077]
        assert not any(secret.encode() in path.read_bytes() for path in others)
        server.allow(r"WARN.*cannot follow the server")
        wrong = server.secret("wrong-s3cret")
        failed = server.start_follow(connection_string(pg, user="follower", password=wrong))
        status = wait_until(lambda: (s := server.follow_status(failed))["phase"] == "failed" and s, 30)
        assert "authentication" in status["error"] and wrong not in str(status)
        server.http.delete(f"/v1/tenant/{timeline.tenant}")
        pg.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
        pg.sql("DROP ROLE follower")
    pg.stop()
