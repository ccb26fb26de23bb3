"""The process itself: its configuration, its directory, how it starts and ends."""

import json
import re
import signal
import subprocess
import time

import pytest

from fixtures.followed import SMALL_LAYERS, follow_new
from fixtures.libpq import Closed, ServerError
from fixtures.pagestream import Rel, get_page
from fixtures.tokens import Signer, write_certificate


def test_init_writes_every_key_and_the_result_starts(make_pageserver, pageserver_binary, work_dir):
    place = work_dir / "fresh"
    command = [pageserver_binary, "init", "--workdir", place]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    text = (place / "pageserver.toml").read_text()
    for key in ("listen_pg_addr", "listen_http_addr", "checkpoint_distance", "wait_lsn_timeout", "log_format"):
        assert key in text, key
    again = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert again.returncode != 0 and "exists already" in again.stderr
    assert (place / "pageserver.toml").read_text() == text, "what is there is not touched"
    server = make_pageserver("fresh", place)
    server.start()
    server.stop()


@pytest.mark.parametrize("line, names", [
    ("checkpoint_distanse = 1", ["checkpoint_distanse", "checkpoint_distance"]),
    ("listen_adr = 'x'", ["listen_adr", "listen_"]),
    ("checkpoint_distance = 'much'", ["checkpoint_distance"]),
    ("checkpoint_distance = -1", ["checkpoint_distance"]),
    ("wait_lsn_timeout = '3 parsecs'", ["wait_lsn_timeout"]),
    ("log_format = 'xml'", ["log_format", "json"]),
    ("max_get_vectored_keys = 4\npage_service_max_batch_size = 32", ["page_service_max_batch_size"]),
    ("checkpoint_distance = 1\ncheckpoint_distance = 2", ["checkpoint_distance"]),
    ("= = =", ["pageserver.toml"]),
])
def test_a_wrong_setting_is_refused_and_named(make_pageserver, work_dir, line, names):
    server = make_pageserver(work_dir.name, work_dir / "store")
    (server.workdir / "pageserver.toml").write_text(line + "\n")
    said = server.refuses_to_start()
    for name in names:
        assert name in said, said


def test_flags_go_before_environment_before_file(make_pageserver, work_dir):
    server = make_pageserver("order", work_dir / "store", wait_lsn_timeout="1s")

    def printed(*args, **env):
        process = subprocess.run(
            [server.binary, "--workdir", server.workdir, "--print-config", *args],
            env=env, capture_output=True, text=True, timeout=30, check=True,
        )
        return next(line for line in process.stdout.splitlines() if line.lstrip("# ").startswith("wait_lsn_timeout"))

    assert "1s" in printed()
    assert "2s" in printed(PAGESERVER_WAIT_LSN_TIMEOUT="2s")
    assert "3s" in printed("-c", "wait_lsn_timeout=3s", PAGESERVER_WAIT_LSN_TIMEOUT="2s")
    said = server.refuses_to_start("-c", "wait_lsn_timeoot=3s")
    assert "wait_lsn_timeoot" in said and "wait_lsn_timeout" in said


def test_a_second_process_in_the_same_directory_is_refused(make_pageserver, work_dir):
    server = make_pageserver("first", work_dir / "store").start()
    second = make_pageserver("second", work_dir / "store")
    second.log = work_dir / "second.log"
    said = second.refuses_to_start()
    assert "in use" in said and str(server.process.pid) in said
    assert server.answers(), "the first goes on"
    server.kill()
    # A lock of a dead process does not count.
    server.start()
    server.stop()


@pytest.mark.parametrize("key", ["listen_pg_addr", "listen_http_addr"])
def test_beyond_loopback_it_only_listens_with_authentication(make_pageserver, work_dir, key):
    server = make_pageserver(work_dir.name, work_dir / "store", **{key: "0.0.0.0:0"})
    said = server.refuses_to_start()
    assert key in said and "allow_insecure_listen" in said and "auth_type" in said, said
    server.configure(allow_insecure_listen=True)
    server.allow(rf"WARN.*{key}.*anybody could read.*allow_insecure_listen").start()
    assert re.search(rf"WARN.*{key}", server.log_text()), "it is said at each start"
    server.stop()


@pytest.mark.parametrize("port", ["pg", "http"])
def test_beyond_loopback_tokens_need_tls(make_pageserver, work_dir, port):
    Signer().write_public(work_dir / "key.pem")
    certificate, key, trusting = write_certificate(work_dir)
    listen, tls = f"listen_{port}_addr", {"pg": "enable_tls_page_service_api", "http": "enable_tls_http_api"}[port]
    server = make_pageserver(
        work_dir.name, work_dir / "store", auth_validation_public_key_path=str(work_dir / "key.pem"),
        ssl_cert_file=str(certificate), ssl_key_file=str(key), **{f"{port}_auth_type": "JWT", listen: "0.0.0.0:0"},
    )
    said = server.refuses_to_start()
    assert listen in said and "in the clear" in said and tls in said and "allow_plaintext_tokens" in said, said
    server.configure(**{tls: True})
    server.tls = trusting if port == "http" else None
    server.start().stop()
    server.tls = None
    server.configure(**{tls: False, "allow_plaintext_tokens": True})
    server.allow(rf"WARN.*{listen}.*in the clear.*allow_plaintext_tokens permits it").start()
    assert re.search(rf"WARN.*{listen}.*in the clear", server.log_text())
    server.stop()


def test_an_address_in_use_is_named(make_pageserver, work_dir):
    first = make_pageserver("one", work_dir / "one").start()
    second = make_pageserver("two", work_dir / "two", listen_pg_addr=f"127.0.0.1:{first.pg_port}")
    said = second.refuses_to_start()
    assert "listen_pg_addr" in said and str(first.pg_port) in said
    first.stop()


def test_a_stop_is_prompt_and_tells_those_who_are_connected(make_postgres, make_pageserver):
    followed = follow_new(make_postgres, make_pageserver, "prompt")
    server = followed.pageserver
    streams = [followed.timeline.stream() for _ in range(20)]
    idle = [server.connect() for _ in range(20)]
    bench = followed.postgres.start_bench(seconds=4)
    time.sleep(2)
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 8
    for stream in streams:
        with pytest.raises((ServerError, Closed)) as ended:
            stream.ask(get_page(Rel(1664, 0, 1262), 0))
        if isinstance(ended.value, ServerError):
            assert (ended.value.code, ended.value.message) == ("57P01", "shutdown")
    for connection in idle:
        with pytest.raises((ServerError, Closed)):
            connection.next()
    server.start()
    bench.wait(30)
    # WAL that was durable at its end need not be sent again, and WAL written meanwhile is.
    followed.catch_up()
    followed.stop_and_compare()
    server.stop()


def test_a_second_signal_ends_it_at_once(make_pageserver, work_dir):
    server = make_pageserver("impatient", work_dir / "store").start().allow("ERROR.*second signal")
    server.process.send_signal(signal.SIGINT)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(10) in (0, 4)


def test_logs_as_json(make_pageserver, work_dir):
    server = make_pageserver("json", work_dir / "store", log_format="json").start()
    server.stop()
    lines = [json.loads(line) for line in server.log_text().splitlines()]
    assert lines and all({"timestamp", "level"} <= set(line) for line in lines)
    assert any("stopped" in str(line) for line in lines)


def damage_manifest(timeline):
    files = [path for path in timeline.dir().iterdir() if "manifest" in path.name]
    assert files, sorted(path.name for path in timeline.dir().iterdir())
    for path in files:
        path.write_bytes(path.read_bytes()[:-7])


def test_a_damaged_timeline_comes_from_its_bucket_again(make_postgres, make_pageserver):
    followed = follow_new(make_postgres, make_pageserver, "mended")
    server, timeline = followed.pageserver, followed.timeline
    followed.stop_postgres()
    server.stop()
    damage_manifest(timeline)
    server.allow("(WARN|ERROR).*" + timeline.id).start()
    assert "Active" in timeline.info()["state"]
    followed.assert_files_equal()
    server.stop()


def test_a_damaged_timeline_does_not_keep_others_from_being_served(make_postgres, make_pageserver):
    settings = {**SMALL_LAYERS, "remote_storage": "none"}
    followed = follow_new(make_postgres, make_pageserver, "damaged", settings=settings)
    server, timeline = followed.pageserver, followed.timeline
    second = server.follow(followed.postgres)
    followed.stop_postgres()
    server.stop()
    damage_manifest(timeline)
    server.allow("(WARN|ERROR).*" + timeline.id).start()
    listed = server.http.get(f"/v1/tenant/{timeline.tenant}/timeline")
    assert [info["timeline_id"] for info in listed] == [timeline.id]
    assert "Broken" in listed[0]["state"], listed
    followed.assert_files_equal(timeline=second)
    server.stop()
