"""The management interface: its answers, its refusals, and that the document it serves matches them."""

import json
import re
import socket
import struct
import subprocess
import xml.etree.ElementTree as xml

import pytest

from fixtures import lsn as lsns
from fixtures.followed import SMALL_LAYERS, follow_new, rel_of
from fixtures.libpq import Socket
from fixtures.pageserver import new_id
from fixtures.pagestream import get_page


@pytest.fixture(scope="module")
def followed(make_postgres, make_pageserver):
    followed = follow_new(make_postgres, make_pageserver, "managed", settings=SMALL_LAYERS)
    followed.postgres.bench(2000)
    followed.catch_up()
    return followed


def test_timeline_info_has_the_fields_that_clients_know(followed):
    info = followed.timeline.info()
    for name in ("last_record_lsn", "disk_consistent_lsn", "min_readable_lsn", "applied_gc_cutoff_lsn", "initdb_lsn"):
        assert re.fullmatch(r"[0-9A-F]{1,8}/[0-9A-F]{1,8}", info[name]), name
    assert info["tenant_id"] == followed.timeline.tenant and info["timeline_id"] == followed.timeline.id
    assert info["ancestor_timeline_id"] is None and info["state"] == "Active"
    assert info["pg_version"] in (15, 150000) or info["pg_version"] // 10000 == 15
    assert info["current_physical_size"] > 10_000_000 and info["layer_count"] >= 2
    status = info["walreceiver"]
    assert status["state"] in ("streaming", "catching_up") and status["slot"] == f"pageserver_{info['timeline_id']}"
    assert str(followed.postgres.sockets) in status["host"]
    _, headers, _ = followed.pageserver.http.raw("GET", "/v1/status")
    assert "pageserver_launch_timestamp" in {name.lower() for name in headers}


def test_layers_are_listed_and_drawn(followed):
    http, path = followed.pageserver.http, followed.timeline.path
    layers = http.get(f"{path}/layer")
    historic = layers["historic_layers"]
    assert {layer["kind"] for layer in historic} == {"Image", "Delta"}
    on_disk = {file.name for file in followed.timeline.dir().iterdir() if "__" in file.name}
    assert {layer["layer_file_name"] for layer in historic} <= on_disk
    picture = xml.fromstring(http.text(f"{path}/layers.svg"))
    boxes = [element for element in picture.iter() if element.tag.endswith("rect")]
    assert picture.tag.endswith("svg") and len(boxes) >= len(historic)


def test_the_key_space_and_its_pages(followed):
    http, path, pg = followed.pageserver.http, followed.timeline.path, followed.postgres
    space = http.get(f"{path}/keyspace")
    assert space["keys"] and space["sparse_keys"] is not None
    accounts = rel_of(pg, "pgbench_accounts")
    # A key names a page as 00 SPC DB REL FORK BLOCK.
    key = f"00{accounts.spc:08X}{accounts.db:08X}{accounts.rel:08X}00{7:08X}"
    assert any(low.upper() <= key < high.upper() for low, high in space["keys"])
    _, _, page = http.raw("GET", f"{path}/getpage?key={key}&lsn={space['at_lsn']}")
    with followed.timeline.stream() as stream:
        assert stream.ask(get_page(accounts, 7, lsns.parse(space["at_lsn"]), 1)) == page
    assert http.get(f"{path}/touchpage?key={key}") == {"bytes": 8192}


def test_metrics_move_with_what_happens(followed):
    http = followed.pageserver.http

    def total(prefix: str, *labels: str) -> float:
        found = {name: value for name, value in http.metrics().items()
                 if name.startswith(prefix) and all(label in name for label in labels)}
        assert found, f"no metric {prefix} {labels}"
        return sum(found.values())

    reads = ("pageserver_smgr_query_seconds_global_count", 'get_page_at_lsn')
    if not any(name.startswith(reads[0]) for name in http.metrics()):
        reads = ("pageserver_smgr_query_seconds_count", 'get_page_at_lsn')
    before = total(*reads)
    accounts = rel_of(followed.postgres, "pgbench_accounts")
    with followed.timeline.stream() as stream:
        for block in range(100):
            stream.ask(get_page(accounts, block))
    assert total(*reads) >= before + 100
    records = total("pageserver_wal_ingest_records")
    followed.postgres.bench(500)
    followed.catch_up()
    assert total("pageserver_wal_ingest_records") > records + 500, http.text("/metrics")
    last = [value for name, value in http.metrics().items() if name.startswith("pageserver_last_record_lsn")]
    assert last and lsns.parse(followed.timeline.last_record_lsn()) in [int(value) for value in last]
    assert http.text("/metrics").rstrip().endswith("# EOF")


def test_leases_moments_and_waiting(followed):
    http, path = followed.pageserver.http, followed.timeline.path
    last = followed.timeline.last_record_lsn()
    assert http.post(f"{path}/lsn_lease", {"lsn": last})["valid_until"].endswith("Z")
    http.refuse("POST", f"{path}/lsn_lease", {"lsn": "0/28"}, status=412, names=["0/28"])
    moment = http.get(f"{path}/get_timestamp_of_lsn?lsn={last}")
    found = http.get(f"{path}/get_lsn_by_timestamp?timestamp={moment}&with_lease=true")
    assert found["kind"] in ("present", "future") and found["valid_until"]
    tenant = f"/v1/tenant/{followed.timeline.tenant}"
    body = {"timelines": {followed.timeline.id: last}, "timeout": "5s"}
    assert http.raw("POST", f"{tenant}/wait_lsn", json.dumps(body).encode())[0] == 200
    body = {"timelines": {followed.timeline.id: "FF/0"}, "timeout": "100ms"}
    assert http.raw("POST", f"{tenant}/wait_lsn", json.dumps(body).encode())[0] == 404


def test_every_path_of_the_document_is_there_and_no_other(followed):
    http = followed.pageserver.http
    document = http.get("/v1/openapi.json")
    assert document["openapi"].startswith("3.")
    assert len(document["paths"]) > 15
    for path, item in document["paths"].items():
        made = path.replace("{tenant_shard_id}", new_id()).replace("{timeline_id}", new_id())
        made = made.replace("{layer_file_name}", "none").replace("{name}", "none").replace("{server_id}", "none")
        assert "{" not in made
        for method in ("get", "put", "post", "delete"):
            status, _, body = http.raw(method.upper(), made)
            if method in item:
                assert status != 405 and status < 500, f"{method} {path}: {status} {body[:200]}"
                documented = set(item[method]["responses"])
                assert str(status) in documented | {"400", "404"}, f"{method} {path}: {status} not in {documented}"
            else:
                assert status == 405, f"{method} {path}: {status}"
    http.refuse("GET", "/v1/no/such/path", status=404)
    http.refuse("GET", "/no/such/path", status=404)


def test_paths_and_commands_go_on_by_their_former_names(followed, pagectl_binary):
    http, timeline = followed.pageserver.http, followed.timeline
    path = f"/v1/tenant/{timeline.tenant}/timeline/{timeline.id}"
    assert http.get(f"{path}/attach_status") == http.get(f"{path}/follow_status")
    body = {"connstr": "host=/nonexistent", "tenant_id": timeline.tenant, "timeline_id": timeline.id}
    for name in ("follow", "attach"):
        assert http.raw("POST", f"/v1/{name}", json.dumps(body).encode())[0] == 409, name
        told = subprocess.run([pagectl_binary, name, "--help"], capture_output=True, text=True, check=True).stdout
        assert "replication slot" in told, name


NUL_ID = "0" * 32
BAD_IDS = ["x", NUL_ID[1:], NUL_ID + "0", "g" * 32, "-", "%00", NUL_ID + "-", NUL_ID + "-zzzz", "%FF%FE", "a" * 5000]


@pytest.mark.parametrize("bad", BAD_IDS, ids=lambda bad: bad[:40])
def test_bad_ids_are_refused(followed, bad):
    http = followed.pageserver.http
    ours = f"/v1/tenant/{followed.timeline.tenant}"
    for path in (f"/v1/tenant/{bad}", f"/v1/tenant/{bad}/timeline", f"{ours}/timeline/{bad}"):
        for method in ("GET", "DELETE"):
            status, _, body = http.raw(method, path)
            assert status in (400, 404, 405, 414, 431), f"{method} {path}: {status} {body[:200]}"
    assert followed.timeline.info()


BODIES = [
    b"", b"{", b"null", b"[]", b'"x"', b"{}", b"\xff\xfe", b'{"connstr": 1}', b'{"connstr": "host=x", "extra": 1}',
    b'{"connstr": "host=x", "tenant_id": "x"}', b'{"connstr": "host=x", "slot": "A B"}', b"[" * 100_000,
    b'{"new_timeline_id": "' + b"0" * 32 + b'", "ancestor_timeline_id": "x"}',
    b'{"lsn": "x"}', b'{"lsn": 5}', b'{"lsn": "1/2/3"}', b'{"lsn": "FFFFFFFFF/0"}',
    b'{"timelines": {}, "timeout": "x"}',
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:30]))
def test_bad_bodies_are_refused(followed, body):
    http, tenant = followed.pageserver.http, f"/v1/tenant/{followed.timeline.tenant}"
    paths = [
        ("POST", "/v1/follow"), ("POST", f"{tenant}/timeline"), ("POST", f"{followed.timeline.path}/lsn_lease"),
        ("POST", f"{tenant}/wait_lsn"), ("PUT", f"{tenant}/location_config"),
    ]
    for method, path in paths:
        status, _, answer = http.raw(method, path, body)
        assert status == 400, f"{method} {path}: {status} {answer[:200]}"
        assert set(json.loads(answer)) == {"msg"}


def test_bodies_that_are_too_large_are_refused(followed):
    http = followed.pageserver.http
    try:
        status, _, _ = http.raw("POST", "/v1/follow", b" " * (50 << 20))
        assert status == 413, status
    except OSError:
        pass  # refused before the request was sent completely
    assert followed.timeline.info()


@pytest.mark.parametrize("query", ["lsn=x", "lsn=0/28", "key=zz", "key=" + "0" * 35, "kye=0", "key=" + "F" * 36, ""])
def test_bad_parameters_are_refused(followed, query):
    status, _, body = followed.pageserver.http.raw("GET", f"{followed.timeline.path}/getpage?{query}")
    assert status in (400, 404, 412), f"{status} {body[:200]}"


RAW = [
    b"\x00" * 100, b"GET", b"GET / HTTP/9.9\r\n\r\n", b"GET /v1/status HTTP/1.1\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
    b"POST /v1/follow HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/follow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 50,
]


@pytest.mark.parametrize("data", RAW, ids=lambda data: repr(data[:20]))
def test_what_is_no_http_is_refused(followed, data):
    with Socket(followed.pageserver.http_port, timeout=20) as sock:
        try:
            sock.send(data)
            sock.sock.shutdown(socket.SHUT_WR)
            said = bytearray()
            while got := sock.sock.recv(65536):
                said += got
        except OSError:
            said = b""  # refused before the request was read completely
    assert not said.startswith(b"HTTP/1.1 2"), said[:200]
    assert followed.timeline.info()


def test_clients_of_http_that_say_nothing_hold_up_nobody(followed):
    """More than may be served at once, but they cannot shut others out permanently."""
    held = [Socket(followed.pageserver.http_port) for _ in range(100)]
    for number, sock in enumerate(held):
        sock.send([b"", b"GET /v1/status HT", b"POST /v1/follow HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{"][number % 3])
    assert followed.timeline.info()
    for sock in held:
        sock.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    assert followed.timeline.info()
