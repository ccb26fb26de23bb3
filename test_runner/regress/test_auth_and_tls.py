"""Authentication: bearer tokens by scope on both ports, and TLS."""

import http.client
import json
import shutil
import signal
import ssl
import time

import pytest

from fixtures.followed import Followed, follow_new
from fixtures.http import HttpClient, HttpError
from fixtures.libpq import Closed, Connection, ServerError, Socket, message, special, startup, SSL_REQUEST
from fixtures.pageserver import new_id
from fixtures.pagestream import PageStream, Rel, get_page, nblocks
from fixtures.tokens import Signer, base64url, write_certificate

DATABASES = Rel(1664, 0, 1262)


class Guarded:
    """A pageserver that requires tokens on both ports, and a cluster that it follows."""

    def __init__(self, followed: Followed, signer: Signer):
        self.followed, self.server, self.timeline = followed, followed.pageserver, followed.timeline
        self.signer = signer

    def token(self, text: str) -> str:
        """Registers a token: it must never appear in the log."""
        return self.server.secret(text)

    def http(self, token: str | None) -> HttpClient:
        return HttpClient(self.server.http_port, token=token)

    def is_refused(self, token: str | None) -> bool:
        """Whether the token is refused; both ports must agree."""
        with pytest.raises(HttpError) as error:
            self.http(token).get(self.timeline.path)
        assert error.value.status in (401, 403), error.value
        if token is not None:
            with pytest.raises(ServerError) as refused:
                with Connection(self.server.pg_port, token=token) as connection:
                    PageStream.start(connection, self.timeline.tenant, self.timeline.id)
            assert refused.value.code == "XX000", refused.value
        return True

    def may_read(self, token: str):
        assert self.http(token).get(self.timeline.path)["timeline_id"] == self.timeline.id
        for version in (2, 3):
            connection = Connection(self.server.pg_port, token=token)
            with PageStream.start(connection, self.timeline.tenant, self.timeline.id, version) as stream:
                assert any(stream.ask(get_page(DATABASES, 0)))


@pytest.fixture(scope="module")
def guarded(make_postgres, make_pageserver, module_dir):
    signer = Signer()
    (module_dir / "keys").mkdir()
    signer.write_public(module_dir / "keys" / "first.pem")
    settings = {
        "http_auth_type": "JWT", "pg_auth_type": "JWT",
        "auth_validation_public_key_path": str(module_dir / "keys"),
    }
    pg = make_postgres("guarded", max_replication_slots=10).start()
    server = make_pageserver("guarded", **settings)
    server.token = server.secret(signer.admin())
    server.start()
    return Guarded(Followed(pg, server, server.follow(pg)), signer)


def test_a_token_of_the_tenant_opens_what_is_the_tenants(guarded):
    tenant = guarded.token(guarded.signer.tenant(guarded.timeline.tenant))
    guarded.may_read(tenant)
    http = guarded.http(tenant)
    assert http.get(f"/v1/tenant/{guarded.timeline.tenant}")["id"] == guarded.timeline.tenant
    # Neither operations on the server, nor on another tenant.
    http.refuse("GET", "/v1/tenant", status=403)
    http.refuse("POST", "/v1/follow", {"connstr": "host=x"}, status=403)
    http.refuse("POST", "/v1/reload_auth_validation_keys", status=403)
    http.refuse("GET", f"/v1/tenant/{new_id()}", status=403)
    other = guarded.token(guarded.signer.tenant(new_id()))
    with Connection(guarded.server.pg_port, token=other) as connection:
        for command in ("pagestream_v3", "pagestream_v2", "basebackup", "fullbackup"):
            with pytest.raises(ServerError):
                connection.rows(f"{command} {guarded.timeline.tenant} {guarded.timeline.id}")
        with pytest.raises(ServerError):
            connection.rows(f"lease lsn {guarded.timeline.tenant} {guarded.timeline.id} 0/1")
        assert connection.rows("set a to b") == []


def test_a_token_for_everything_opens_everything(guarded):
    token = guarded.token(guarded.signer.admin())
    guarded.may_read(token)
    assert guarded.http(token).get("/v1/tenant")
    assert guarded.http(token).post("/v1/reload_auth_validation_keys") == {"keys": 1}


def test_without_a_token_only_what_is_open_answers(guarded):
    http = guarded.http(None)
    assert guarded.is_refused(None)
    for path in ("/v1/status", "/metrics", "/v1/openapi.json", "/v1/doc"):
        status, _, body = http.raw("GET", path)
        assert status == 200 and body, path
        assert guarded.timeline.tenant.encode() not in body or path == "/metrics"
    for method, path in [("GET", "/v1/tenant"), ("POST", "/v1/follow"), ("DELETE", guarded.timeline.path)]:
        http.refuse(method, path, status=401)
    with Socket(guarded.server.pg_port) as sock:
        sock.send(startup({"user": "x"}))
        tag, body = sock.message()
        assert (tag, body) == (b"R", b"\0\0\0\3"), "asked for a password, in the clear"


def test_tokens_that_are_not_good_are_refused(guarded):
    sign, tenant = guarded.signer.sign, guarded.timeline.tenant
    good = {"scope": "tenant", "tenant_id": tenant}
    token = guarded.token(guarded.signer.tenant(tenant))
    head, body, signature = token.split(".")
    now = time.time()
    bad = {
        "of another key": Signer().tenant(tenant),
        "expired": sign({**good, "exp": int(now) - 3600}),
        "without a scope": sign({"tenant_id": tenant}),
        "of a scope for others": sign({"scope": "safekeeperdata"}),
        "of a scope that is none": sign({"scope": "root", "tenant_id": tenant}),
        "of a tenant, which it does not say": sign({"scope": "tenant"}),
        "of a tenant that is none": sign({"scope": "tenant", "tenant_id": "x"}),
        "unsigned": f"{base64url(json.dumps({'alg': 'none'}).encode())}.{body}.",
        "signed by the public key": sign(good, {"alg": "HS256", "typ": "JWT"}),
        "with another body": f"{head}.{base64url(json.dumps({'scope': 'pageserverapi'}).encode())}.{signature}",
        "cut off": token[:-8],
        "cut to two parts": f"{head}.{body}",
        "with a part more": f"{token}.{signature}",
        "no token at all": "secret",
        "nothing": "",
        "not text": "\u00e4\u00f6" * 40,
        "long": "a" * 4000,
    }
    for name, text in bad.items():
        if not text.isascii():
            continue
        assert guarded.is_refused(text), name
    with pytest.raises((ServerError, Closed)):
        Connection(guarded.server.pg_port, token=bad["not text"])
    with pytest.raises((ServerError, Closed)):
        Connection(guarded.server.pg_port, token="b" * 1_000_000)
    # A token that is valid for another hour is accepted.
    guarded.may_read(guarded.token(sign({**good, "exp": int(now) + 3600})))
    guarded.may_read(guarded.token(sign({**good, "endpoint_id": None, "whatever": 1})))


def test_keys_are_replaced_without_a_restart(guarded, module_dir):
    keys = module_dir / "keys"
    second = Signer()
    token = guarded.token(second.tenant(guarded.timeline.tenant))
    assert guarded.is_refused(token)
    second.write_public(keys / "second.pem")
    admin = guarded.http(guarded.server.token)
    assert admin.post("/v1/reload_auth_validation_keys") == {"keys": 2}
    guarded.may_read(token)
    # An invalid key changes nothing.
    (keys / "third.pem").write_text("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")
    admin.refuse("POST", "/v1/reload_auth_validation_keys", status=412, names=["third.pem"])
    guarded.may_read(token)
    (keys / "third.pem").unlink()
    (keys / "second.pem").unlink()
    assert admin.post("/v1/reload_auth_validation_keys") == {"keys": 1}
    assert guarded.is_refused(token)


class Open:
    """Connections with one token on both ports: idle, in the middle of a request, of a stream of pages, and of a
    backup."""

    def __init__(self, guarded: Guarded, token: str):
        self.timeline, port = guarded.timeline, guarded.server.pg_port
        self.idle = Connection(port, token=token)
        self.stream = PageStream.start(Connection(port, token=token), self.timeline.tenant, self.timeline.id)
        assert any(self.stream.ask(get_page(DATABASES, 0)))
        # More than fits into the buffers in between, so that it stays in progress as long as nobody reads.
        self.backup = Connection(port, token=token)
        self.backup.send(message(b"Q", f"fullbackup {self.timeline.tenant} {self.timeline.id}\0".encode()))
        self.http = http.client.HTTPConnection("127.0.0.1", guarded.server.http_port, timeout=30)
        self.header = {"Authorization": f"Bearer {token}"}
        assert self.get() == 200
        self.busy = http.client.HTTPConnection("127.0.0.1", guarded.server.http_port, timeout=30)
        body = json.dumps({"timelines": {self.timeline.id: "FFFFFFFF/0"}, "timeout": "1h"})
        self.busy.request("POST", f"/v1/tenant/{self.timeline.tenant}/wait_lsn", body, self.header)

    def get(self) -> int:
        self.http.request("GET", self.timeline.path, headers=self.header)
        with self.http.getresponse() as answer:
            answer.read()
            return answer.status

    def go_on(self):
        assert self.idle.rows("set a to b") == []
        assert any(self.stream.ask(get_page(DATABASES, 0)))
        assert self.get() == 200

    def must_be_ended(self):
        """Each must end within seconds, with the reason where the protocol allows one."""
        with pytest.raises(ServerError, match="good no more"):
            self.idle.expect(b"Z")
        with pytest.raises(ServerError, match="good no more"):
            self.stream.connection.expect(b"d")
        assert self.busy.getresponse().status == 401
        assert self.http.sock.recv(1) == b"", "nobody asks any more, so nobody is told"
        with pytest.raises((ServerError, Closed)):
            while True:
                self.backup.next()

    def close(self):
        for one in (self.idle, self.stream.connection, self.backup, self.http, self.busy):
            one.close()


def test_open_connections_end_with_their_token(guarded):
    # It is valid for a minute longer, to tolerate clock skew.
    short = guarded.token(guarded.signer.tenant(guarded.timeline.tenant, exp=time.time() - 45))
    long = guarded.token(guarded.signer.tenant(guarded.timeline.tenant, exp=time.time() + 3600))
    ending, lasting = Open(guarded, short), Open(guarded, long)
    try:
        began = time.monotonic()
        ending.must_be_ended()
        assert time.monotonic() - began < 30
        lasting.go_on()
    finally:
        ending.close()
        lasting.close()


@pytest.mark.parametrize("how", ["signal", "request"])
def test_open_connections_end_with_their_key(guarded, module_dir, how):
    keys, second = module_dir / "keys", Signer()
    second.write_public(keys / "leaving.pem")
    admin = guarded.http(guarded.server.token)
    admin.post("/v1/reload_auth_validation_keys")
    token = guarded.token(second.tenant(guarded.timeline.tenant))
    ending, lasting = Open(guarded, token), Open(guarded, guarded.token(guarded.signer.admin()))
    try:
        admin.post("/v1/reload_auth_validation_keys")
        ending.go_on()
        (keys / "leaving.pem").unlink()
        if how == "signal":
            guarded.server.process.send_signal(signal.SIGHUP)
        else:
            admin.post("/v1/reload_auth_validation_keys")
        ending.must_be_ended()
        assert guarded.is_refused(token)
        lasting.go_on()
    finally:
        ending.close()
        lasting.close()


def test_a_tenants_end_takes_a_scope_of_its_own(guarded):
    tenant = new_id()
    everything = guarded.http(guarded.token(guarded.signer.admin()))
    everything.call("PUT", f"/v1/tenant/{tenant}/location_config", {"mode": "AttachedSingle"})
    user = guarded.http(guarded.token(guarded.signer.tenant(tenant)))
    assert user.get(f"/v1/tenant/{tenant}")["id"] == tenant
    user.refuse("DELETE", f"/v1/tenant/{tenant}", status=403)
    user.refuse("PUT", f"/v1/tenant/{tenant}/location_config", {"mode": "Detached"}, status=403)
    of_the_cluster = guarded.http(guarded.token(guarded.signer.tenant(guarded.timeline.tenant)))
    of_the_cluster.refuse("DELETE", guarded.timeline.path, status=403)
    branch = guarded.timeline.branch()
    of_the_cluster.delete(branch.path)
    admin = guarded.token(guarded.signer.sign({"scope": "tenant_admin", "tenant_id": tenant}))
    guarded.http(admin).refuse("DELETE", f"/v1/tenant/{guarded.timeline.tenant}", status=403)
    guarded.http(admin).delete(f"/v1/tenant/{tenant}")
    everything.refuse("GET", f"/v1/tenant/{tenant}", status=404)


def test_tls_on_both_ports(make_postgres, make_pageserver, module_dir):
    place = module_dir / "tls"
    place.mkdir()
    certificate, key, trusting = write_certificate(place)
    server = make_pageserver(
        "tls", enable_tls_page_service_api=True, enable_tls_http_api=True,
        ssl_cert_file=str(certificate), ssl_key_file=str(key),
    )
    server.tls = trusting
    server.start()
    pg = make_postgres("tls", max_replication_slots=10).start()
    timeline = server.follow(pg)
    with timeline.stream() as stream:
        assert stream.connection.sock.version() in ("TLSv1.2", "TLSv1.3")
        blocks = stream.ask(nblocks(Rel(1664, 0, 1260)))
        pages = list(stream.pipelined(get_page(Rel(1663, 5, 1259), block % blocks) for block in range(2000)))
        assert all(map(any, pages)), "more than fits into any buffer on the way"
    # Plaintext is refused, with the reason.
    with pytest.raises(ServerError, match="must connect with TLS"):
        Connection(server.pg_port)
    status_line = plain_http(server.http_port)
    assert not status_line.startswith(b"HTTP/1.1 200"), status_line
    # TLS from the first byte, as clients of Postgres 17 may do.
    with Socket(server.pg_port) as sock:
        sock.sock = trusting.wrap_socket(sock.sock, server_hostname="localhost")
        sock.send(startup({"user": "x"}))
        assert sock.message()[0] == b"R"
    # Bytes before the handshake are not taken as part of it.
    with Socket(server.pg_port) as sock:
        sock.send(special(SSL_REQUEST) + startup({"user": "x"}))
        assert sock.read(1) in (b"S", b"E") and sock.at_end()
    stranger = ssl.create_default_context()
    with pytest.raises(ssl.SSLError):
        Connection(server.pg_port, tls=stranger)
    # Replaces the certificate without a restart.
    other = module_dir / "tls-other"
    other.mkdir()
    certificate2, key2, trusting2 = write_certificate(other)
    shutil.copy(certificate2, certificate)
    shutil.copy(key2, key)
    server.process.send_signal(1)
    end = time.monotonic() + 10
    while True:
        try:
            Connection(server.pg_port, tls=trusting2).terminate()
            break
        except ssl.SSLError:
            assert time.monotonic() < end, "the certificate is not read again"
            time.sleep(0.1)
    server.tls = trusting2
    with timeline.stream() as stream:
        assert any(stream.ask(get_page(DATABASES, 0)))
    server.stop()


def plain_http(port: int) -> bytes:
    with Socket(port) as sock:
        sock.send(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            return sock.read(12)
        except Closed:
            return b""


def test_what_tls_needs_and_is_not_there_is_named(make_pageserver, work_dir):
    server = make_pageserver("no-cert", work_dir / "store", enable_tls_page_service_api=True)
    assert "server.crt" in server.refuses_to_start()
    server.configure(enable_tls_page_service_api=False, pg_auth_type="JWT")
    assert "auth_public_key.pem" in server.refuses_to_start()
