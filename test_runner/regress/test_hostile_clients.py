"""Clients that violate the protocol, or do not read: they harm nobody but themselves."""

import random
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fixtures.followed import follow_new, rel_of
from fixtures.libpq import (
    CANCEL_REQUEST, GSS_REQUEST, SSL_REQUEST, Closed, ServerError, Socket, message, special, startup,
)
from fixtures.pagestream import LATEST, PageStream, Rel, get_page, nblocks
from fixtures.wait import wait_until

SEED = 20261121
DATABASES = Rel(1664, 0, 1262)


@pytest.fixture(scope="module")
def followed(make_postgres, make_pageserver):
    return follow_new(make_postgres, make_pageserver, "patient", scale=5)


@pytest.fixture(autouse=True)
def still_well(followed):
    """After every test the server serves, and has released what the clients had."""
    files = followed.pageserver.open_files()
    yield
    assert followed.pageserver.is_running()
    with followed.timeline.stream() as stream:
        assert any(stream.ask(get_page(DATABASES, 0)))
    followed.timeline.info()
    # Layer files may be opened meanwhile, and the receiver's own connection may be reopened.
    wait_until(lambda: followed.pageserver.open_files() <= files + 20, 30, what="file descriptors given back")


STARTS = {
    "nothing": b"",
    "one byte": b"\0",
    "a length only": struct.pack(">I", 8),
    "length zero": struct.pack(">II", 0, 196608),
    "length 7": struct.pack(">I", 7) + b"\0\3\0",
    "length 10001": struct.pack(">II", 10001, 196608) + b"x" * 10000,
    "a negative length": struct.pack(">iI", -1, 196608),
    "the largest length": struct.pack(">II", 0x7FFFFFFF, 196608) + b"x" * 100_000,
    "version 2": startup({"user": "x"}, protocol=2 << 16),
    "version 4": startup({"user": "x"}, protocol=4 << 16),
    "version 0": struct.pack(">II", 8, 0),
    "a name without value": struct.pack(">II", 13, 196608) + b"user\0",
    "no end": struct.pack(">II", 14, 196608) + b"useruX"[:6],
    "bytes behind the end": struct.pack(">II", 19, 196608) + b"user\0x\0\0zzz",
    "not UTF-8": startup({"user": "x"}).replace(b"x", b"\xff"),
    "cancel": special(CANCEL_REQUEST),
    "cancel with numbers": struct.pack(">IIII", 16, CANCEL_REQUEST, 1, 2),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS hello": bytes.fromhex("1603010200010001fc0303") + b"\0" * 500,
    "a query first": message(b"Q", b"select 1\0"),
    "SSL for ever": special(SSL_REQUEST) * 1000,
    "GSS for ever": special(GSS_REQUEST) * 1000,
}


@pytest.mark.parametrize("name", STARTS)
def test_malformed_starts_are_refused(followed, name):
    with Socket(followed.pageserver.pg_port, timeout=15) as sock:
        try:
            sock.send(STARTS[name])
            sock.sock.shutdown(socket.SHUT_WR)
        except OSError:
            return
        said = drain(sock)
    assert len(said) < 10_000
    # Whatever was sent, the connection was not accepted.
    assert b"Z\0\0\0\5I" not in said, said
    assert said.lstrip(b"NS")[:1] in (b"", b"E"), said


def drain(sock: Socket) -> bytes:
    """Everything received until the other side closes, which it must."""
    out = bytearray(sock.buffer)
    while True:
        try:
            got = sock.sock.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            return bytes(out)
        if not got:
            return bytes(out)
        out += got
        assert len(out) < 100 << 20


def test_gss_then_tls_then_plain_is_a_good_start(followed):
    with Socket(followed.pageserver.pg_port) as sock:
        for code in (GSS_REQUEST, SSL_REQUEST):
            sock.send(special(code))
            assert sock.read(1) == b"N"
        sock.send(startup({"user": "x", "options": "-c neon.compute_mode=primary", "nonsense": "y" * 2000}))
        assert sock.message() == (b"R", b"\0\0\0\0")


MESSAGES = {
    "an unknown type": message(b"%", b"x"),
    "length 3": b"Q\0\0\0\3",
    "a negative length": b"Q\xff\xff\xff\xff",
    "a huge length": b"Q\x7f\xff\xff\xff" + b"x" * 100_000,
    "no NUL": message(b"Q", b"pagestream_v3"),
    "an empty query message": message(b"Q"),
    "not UTF-8": message(b"Q", b"\xff\xfe\0"),
    "CopyData outside COPY": message(b"d", b"\0" * 42),
    "a password again": message(b"p", b"x\0"),
    "Bind without Parse": message(b"B", b"\0\0\0\0\0\0\0\0"),
    "Parse of nothing": message(b"P", b"\0\0\0\0"),
    "Parse cut off": message(b"P", b"x"),
    "Execute of nothing": message(b"E", b"\0\0\0\0\0") + message(b"S"),
    "Describe of nonsense": message(b"D", b"Zx\0") + message(b"S"),
    "a function call": message(b"F", b"\0" * 20),
    "half a message": message(b"Q", b"pagestream_v3 x y\0")[:-4],
    "a long command": message(b"Q", b"a" * 5_000_000 + b"\0"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_malformed_messages_are_refused(followed, name):
    with followed.pageserver.connect(timeout=15) as connection:
        try:
            connection.send(MESSAGES[name])
            connection.sock.shutdown(socket.SHUT_WR)
        except OSError:
            return
        said = drain(connection)
    assert b"E" in said[:1] or said == b"" or b"E\0\0" in said, said[:200]
    assert len(said) < 100_000


def page_request(**fields) -> bytes:
    request = get_page(DATABASES, 0, fields.get("lsn", LATEST), fields.get("since", 1))
    return request.pack(3)


REQUESTS = {
    "no tag": b"",
    "an unknown tag": b"\x63" + bytes(24),
    "tag 255": b"\xff" + bytes(100),
    "a tag alone": b"\2",
    "cut off": page_request()[:-1],
    "of version 2": get_page(DATABASES, 0).pack(2),
    "a byte more": page_request() + b"\0",
    "fork 4": get_page(Rel(1664, 0, 1262, 4), 0).pack(3),
    "fork 255": get_page(Rel(1664, 0, 1262, 255), 0).pack(3),
    "SLRU kind 3": b"\4" + bytes(7) + struct.pack(">BQQBI", 1, LATEST, 1, 3, 0),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_malformed_requests_end_the_stream_after_those_before_them(followed, name):
    with followed.timeline.stream(timeout=15) as stream:
        good = stream.ask(get_page(DATABASES, 0))
        stream.send(get_page(DATABASES, 0), get_page(DATABASES, 0))
        stream.connection.send(message(b"d", REQUESTS[name]))
        assert stream.receive() == stream.receive() == good
        try:
            tag, body = stream.connection.message()
        except Closed:
            return
        # An error of the stream, or an error as the answer, but never a page.
        assert tag == b"E" or (tag == b"d" and body[0] == 103), (tag, body[:100])


@pytest.mark.parametrize("tag", [b"c", b"f", b"Q", b"S", b"H"])
def test_what_is_no_copy_data_ends_the_stream(followed, tag):
    with followed.timeline.stream(timeout=15) as stream:
        assert any(stream.ask(get_page(DATABASES, 0)))
        stream.connection.send(message(tag, {b"f": b"why\0", b"Q": b"set x\0"}.get(tag, b"")))
        said = drain(stream.connection)
        assert said[:1] in (b"E", b""), said


def test_extreme_numbers_are_answered(followed):
    """Keys and LSNs at their limits: only errors or zeros, and the stream continues."""
    largest = 2**32 - 1
    with followed.timeline.stream(timeout=30) as stream:
        for rel in (Rel(0, 0, 0), Rel(largest, largest, largest), Rel(1663, 5, largest, 3), Rel(1664, largest, 1)):
            for block in (0, largest - 1, largest):
                assert stream.refusal(get_page(rel, block))
        for lsn, since in ((1, 1), (1, 0), (LATEST - 1, 1), (LATEST, 0)):
            try:
                stream.ask(get_page(DATABASES, 0, lsn, since))
            except Exception as error:
                assert "consistent" in str(error), error
        assert not any(stream.ask(get_page(DATABASES, largest)))
        assert any(stream.ask(get_page(DATABASES, 0)))


def test_ten_thousand_connections_with_garbage(followed, request):
    count = request.config.getoption("--garbage")
    port, server = followed.pageserver.pg_port, followed.pageserver
    chance = random.Random(SEED)
    good_start = startup({"user": "x"})
    command = f"pagestream_v3 {followed.timeline.tenant} {followed.timeline.id}\0".encode()

    def garbage() -> bytes:
        noise = chance.randbytes(chance.randint(0, 300))
        kind = chance.randrange(5)
        if kind == 0:
            return noise
        if kind == 1:
            return struct.pack(">II", len(noise) + 8, 196608) + noise
        if kind == 2:
            return good_start + noise
        if kind == 3:
            return good_start + message(b"Q", noise)
        return good_start + message(b"Q", command) + message(b"d", noise)

    def attack(data: bytes, how: int):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
            try:
                sock.sendall(data)
                if how == 0:
                    # Closes with a reset, whatever is in flight.
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                elif how == 1:
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(65536):
                        pass
            except (ConnectionResetError, BrokenPipeError):
                pass

    def run(number: int):
        with ThreadPoolExecutor(32) as pool:
            jobs = [(garbage(), chance.randrange(3)) for _ in range(number)]
            list(pool.map(lambda job: attack(*job), jobs))

    # After the first connections, caches and allocator have reached their size.
    run(count // 10)
    before = server.memory_mib()
    began = time.monotonic()
    run(count)
    seconds = time.monotonic() - began
    grown = server.memory_mib() - before
    print(f"{count} connections in {seconds:.1f} s, memory {before:.0f} MiB and {grown:+.1f}, seed {SEED}")
    assert grown < 30, f"memory grew by {grown:.1f} MiB"


def test_connections_beyond_the_limit_are_told_and_others_go_on(followed, make_pageserver, work_dir):
    server = make_pageserver("small", work_dir / "store", max_connections=10).start()
    server.allow("WARN.*too many clients")
    held = [server.connect() for _ in range(10)]
    with pytest.raises((ServerError, Closed)) as refused:
        server.connect()
    if isinstance(refused.value, ServerError):
        assert refused.value.code == "53300" and "10" in refused.value.message
    assert held[0].rows("set x to y") == []
    held.pop().terminate()
    wait_until(lambda: can_connect(server), 10, what="room for another client")
    for connection in held:
        connection.close()
    server.stop()


def can_connect(server) -> bool:
    try:
        server.connect().terminate()
    except (ServerError, Closed):
        return False
    return True


def test_half_closed_connections_get_their_answers(followed):
    kept = rel_of(followed.postgres, "pgbench_accounts")
    for _ in range(50):
        with followed.timeline.stream() as stream:
            stream.send(*(get_page(kept, block) for block in range(40)))
            stream.connection.sock.shutdown(socket.SHUT_WR)
            for _ in range(40):
                assert any(stream.receive())
            assert stream.connection.at_end()


def test_clients_that_do_not_read_hold_up_nobody(followed):
    """Each client asks for far more than buffers hold; the server keeps only one batch for each."""
    server, kept = followed.pageserver, rel_of(followed.postgres, "pgbench_accounts")
    with followed.timeline.stream() as stream:
        blocks = stream.ask(nblocks(kept))
        fast = [timed(stream, get_page(kept, block % blocks)) for block in range(500)]
    before = server.memory_mib()
    greedy = [followed.timeline.stream() for _ in range(40)]
    for stream in greedy:
        stream.connection.sock.settimeout(0.5)
        frames = b"".join(stream.frame(get_page(kept, block % blocks)) for block in range(20_000))
        try:
            stream.connection.send(frames)
        except TimeoutError:
            pass
    time.sleep(1)
    grown = server.memory_mib() - before
    assert grown < 64, f"memory grew by {grown:.0f} MiB for {len(greedy)} clients"
    with followed.timeline.stream() as stream:
        slow = [timed(stream, get_page(kept, block % blocks)) for block in range(500)]
    middle = len(fast) // 2
    print(f"one page: {sorted(fast)[middle] * 1e6:.0f} us alone, {sorted(slow)[middle] * 1e6:.0f} us beside those, "
          f"memory {grown:+.0f} MiB")
    # Waiting behind a client that does not read would take as long as the send timeout.
    assert sorted(slow)[middle] < 1
    # A client that reads after all gets what it asked for, as far as the server could send it.
    greedy[0].connection.sock.settimeout(30)
    assert sum(any(greedy[0].receive()) for _ in range(100)) == 100
    # The process still ends in time although they do not read.
    began = time.monotonic()
    server.restart()
    assert time.monotonic() - began < 15
    for stream in greedy:
        stream.connection.close()


def timed(stream: PageStream, request) -> float:
    began = time.perf_counter()
    stream.ask(request)
    return time.perf_counter() - began


def test_slow_readers_of_backups_hold_up_nobody(followed):
    before = followed.pageserver.memory_mib()
    held = []
    for _ in range(10):
        connection = followed.pageserver.connect()
        connection.query(f"fullbackup {followed.timeline.tenant} {followed.timeline.id}")
        connection.expect(b"H")
        held.append(connection)
    time.sleep(2)
    grown = followed.pageserver.memory_mib() - before
    assert grown < 64, f"memory grew by {grown:.0f} MiB"
    with followed.timeline.stream() as stream:
        assert any(stream.ask(get_page(DATABASES, 0)))
    for connection in held:
        connection.close()


def test_clients_that_never_say_who_they_are_keep_nobody_out(make_pageserver, followed):
    server = make_pageserver("crowded", max_connections=4, http_max_connections=4).start()
    silent = []
    try:
        for begun in (b"", b"\0\0", startup({"user": "x"})[:-1]):
            for _ in range(60):
                for port in (server.pg_port, server.http_port):
                    silent.append(Socket(port))
                    silent[-1].send(begun)
            began = time.monotonic()
            with server.connect(timeout=10) as connection:
                assert connection.rows("set a to b") == []
            for path in ("/v1/status", "/metrics", "/v1/tenant"):
                assert server.http.raw("GET", path, timeout=10)[0] == 200, path
            assert time.monotonic() - began < 10
        # Admitted clients stay, and their number does not exceed the limit.
        clients = [server.connect() for _ in range(4)]
        silent += [Socket(server.pg_port) for _ in range(200)]
        with pytest.raises(ServerError, match="the limit is 4"):
            server.connect()
        assert all(client.rows("set a to b") == [] for client in clients)
        for client in clients:
            client.close()
    finally:
        for sock in silent:
            sock.close()
    server.allow(r"WARN.*too many clients").stop()


def test_what_is_logged_of_a_command_is_bounded(followed):
    server = followed.pageserver
    before = len(server.log_text())
    tenant, many = followed.timeline.tenant, "\u00e4\n" * 100_000
    commands = [many, f"pagestream_v3 {tenant} {'f' * 900_000}", f"basebackup {'0' * 500_000} x", f"lease lsn {many}",
                f"fullbackup {tenant} {followed.timeline.id} {'F' * 300_000}/0"]
    for command in commands:
        with server.connect() as connection:
            with pytest.raises(ServerError) as refused:
                connection.rows(command)
            assert len(str(refused.value)) < 2000
    wait_until(lambda: server.log_text().count(" failed: ") >= len(commands), 10, what="the log")
    assert len(server.log_text()) - before < 2000 * len(commands)
    assert "(200000 bytes)" in server.log_text() or "(300000 bytes)" in server.log_text()
