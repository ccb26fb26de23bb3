"""TLS before a gateway, with libpq as people use it: the server's name is verified and names the branch, TLS begins at
once or is asked for, and a certificate is replaced without a restart."""

import signal
import socket
import ssl

import psycopg
import pytest

from fixtures.gateway import PASSWORD, follow_with_password
from fixtures.tokens import write_certificate
from fixtures.wait import wait_until

DOMAIN = "db.test"
ROWS = 7
# Since this version libpq can begin with TLS at once.
DIRECT = 170000


@pytest.fixture(scope="module")
def followed(make_postgres, make_pageserver):
    return follow_with_password(make_postgres, make_pageserver, "gate-tls",
                                f"CREATE TABLE kept AS SELECT generate_series(1, {ROWS}) AS i")


@pytest.fixture
def computes(followed, make_computes):
    computes = make_computes(followed.pageserver)
    done = computes.pagectl("branch", "create", "dev")
    assert done.code in (0, 1) and (done.code == 0 or "exists" in done.stderr), done.text
    return computes


@pytest.fixture
def certified(computes, make_gateway, tmp_path):
    """A gateway with a certificate for all names of the domain."""
    cert, key, _ = write_certificate(tmp_path, f"*.{DOMAIN}")
    gateway = make_gateway(computes, "--tls-cert", str(cert), "--tls-key", str(key), "--require-tls",
                           "--domain", DOMAIN)
    return gateway, cert


def connect(gateway, cert, host: str, **more):
    """As somebody does whose resolver knows the name: that goes into the handshake, and is verified."""
    return psycopg.connect(host=host, hostaddr="127.0.0.1", port=gateway.port, user="postgres", password=PASSWORD,
                           dbname="postgres", sslmode="verify-full", sslrootcert=str(cert), connect_timeout=60, **more)


def test_the_verified_name_of_the_server_names_the_branch(certified):
    gateway, cert = certified
    with connect(gateway, cert, f"dev.{DOMAIN}") as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (ROWS,)
        assert connection.pgconn.ssl_in_use
    with pytest.raises(psycopg.OperationalError, match='branch "other" does not exist'):
        connect(gateway, cert, f"other.{DOMAIN}")
    with pytest.raises(psycopg.OperationalError, match="does not match host name"):
        connect(gateway, cert, "dev.elsewhere.test")
    with pytest.raises(psycopg.OperationalError, match="must connect with TLS"):
        psycopg.connect(f"host=127.0.0.1 port={gateway.port} user=postgres@dev dbname=postgres sslmode=disable")


@pytest.mark.skipif(psycopg.pq.version() < DIRECT, reason="libpq of psycopg is older than 17")
def test_tls_may_begin_at_once(certified):
    gateway, cert = certified
    with connect(gateway, cert, f"dev.{DOMAIN}", sslnegotiation="direct") as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (ROWS,)


def served(gateway) -> bytes:
    """The certificate that clients get, in DER."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["postgresql"])
    with socket.create_connection(("127.0.0.1", gateway.port), 20) as plain:
        with context.wrap_socket(plain, server_hostname=f"dev.{DOMAIN}") as stream:
            return stream.getpeercert(binary_form=True)


def test_a_certificate_is_replaced_while_sessions_go_on(certified, tmp_path):
    gateway, cert = certified
    with connect(gateway, cert, f"dev.{DOMAIN}") as session:
        before = served(gateway)
        assert ssl.PEM_cert_to_DER_cert(cert.read_text()) == before
        # One that is broken stays where it is.
        whole = cert.read_text()
        cert.write_text("rubbish")
        gateway.process.send_signal(signal.SIGHUP)
        assert served(gateway) == before
        cert.write_text(whole)
        write_certificate(tmp_path, f"*.{DOMAIN}")
        gateway.process.send_signal(signal.SIGHUP)
        wait_until(lambda: served(gateway) == ssl.PEM_cert_to_DER_cert(cert.read_text()) != before, 20,
                   what="the new certificate")
        assert session.execute("SELECT count(*) FROM kept").fetchone() == (ROWS,)
    with connect(gateway, cert, f"dev.{DOMAIN}") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
