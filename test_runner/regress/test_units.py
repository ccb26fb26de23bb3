"""systemd's units, and the configurations of fleets of two and of three: they are what systemd takes, and servers that
are started by them and by nothing else replace one another."""

import re
import subprocess
import time
import tomllib

import pytest

from fixtures.fleet import EXPECTED, Fleet, Writer
from fixtures.followed import Followed
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.programs import program
from fixtures.s3 import KEY, SECRET, free_ports
from fixtures.tokens import Signer, write_certificate
from fixtures.units import DEPLOY, Installed, InstalledComputes, env_file, replaced, unit_command

UNITS = ("pageserver.service", "pageserver@.service", "pageserver-gateway.service")
FLEETS = {"two": "ab", "three": "abc"}
TAKEOVER = 10.0


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_takes_the_unit(unit, work_dir):
    text = replaced((DEPLOY / unit).read_text(), {"/usr/local/bin/": f"{program('pageserver').parent}/"})
    # An instance of a template, as it would be started.
    copy = work_dir / unit.replace("@.", "@a.")
    copy.write_text(text)
    if "@" in unit:
        (work_dir / unit).write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and unit.split(".")[0] not in done.stderr, done.stderr


@pytest.mark.parametrize("unit", UNITS[:2])
def test_a_unit_exposes_little(unit):
    """Of systemd's own scale to 10; without any hardening it is 9.6."""
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=20", DEPLOY / unit],
                          capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"})
    assert done.returncode == 0 and "Overall exposure level" in done.stdout, done.stdout[-300:] + done.stderr


def test_the_template_is_the_single_server_s_unit_but_for_the_place():
    one, many = ((DEPLOY / unit).read_text().splitlines() for unit in UNITS[:2])
    settings = lambda lines: {line for line in lines if re.match(r"\w+=", line)}
    names = lambda lines: sorted(line.partition("=")[0] for line in lines)
    assert names(settings(one) - settings(many)) == ["Description", "ExecStart", "StateDirectory"]
    more = ["Description", "EnvironmentFile", "ExecStart", "StateDirectory"]
    assert names(settings(many) - settings(one)) == more


def test_servers_of_a_fleet_differ_only_by_their_names():
    settings = {name: tomllib.loads((DEPLOY / "fleet" / f"{name}.toml").read_text()) for name in "abc"}
    for name, own in settings.items():
        assert own.pop("server_id") == name and own.pop("public_url") == f"https://{name}.pages.example:9898/"
    assert settings["a"] == settings["b"] == settings["c"]


class Example:
    """A fleet of the example's files on one machine: other places, ports and names, and nothing else is another."""

    def __init__(self, count, make_postgres, make_store, pageservers, pagectl_binary, place):
        self.signer, self.place, self.pagectl_binary = Signer(), place, pagectl_binary
        etc = place / "etc"
        (etc / "keys").mkdir(parents=True)
        self.signer.write_public(etc / "keys" / "first.pem")
        certificate, _, self.trusting = write_certificate(etc)
        (etc / "ca.crt").write_bytes(certificate.read_bytes())
        (etc / "bucket.toml").write_text(f'access_key_id = "{KEY}"\nsecret_access_key = "{SECRET}"\n')
        self.store = make_store("weed").settings(f"fleet-{count}")
        self.etc, self.names = etc, FLEETS[count]
        ports = free_ports(2 * len(self.names))
        self.ports = {name: ports[2 * at : 2 * at + 2] for at, name in enumerate(self.names)}
        postgres = make_postgres(f"units-{count}", max_replication_slots=10).start()
        postgres.bench_init(1)
        self.servers = [self.install(name, pageservers) for name in self.names]
        first = self.servers[0]
        self.fleet = Fleet(Followed(postgres, first, first.follow(postgres)), self.servers, "")
        self.fleet.tenant = self.fleet.followed.timeline.tenant
        env = (DEPLOY / "fleet" / f"computes-{count}.env").read_text()
        for name, (pages, http) in self.ports.items():
            env = replaced(env, {f"{name}.pages.example:9898": f"localhost:{http}",
                                 f"host={name}.pages.example port=64000": f"host=127.0.0.1 port={pages}"})
        self.env = env_file(replaced(env, {"/etc/pageserver": str(etc), "/var/lib": str(place)}))
        self.computes = InstalledComputes(pagectl_binary, first, place / "computes",
                                          {**self.env, "PAGECTL_TOKEN": self.signer.admin()})

    def install(self, name: str, pageservers) -> Installed:
        pages, http = self.ports[name]
        text = replaced((DEPLOY / "fleet" / f"{name}.toml").read_text(), {
            "/etc/pageserver": str(self.etc), "0.0.0.0:64000": f"127.0.0.1:{pages}",
            "0.0.0.0:9898": f"127.0.0.1:{http}", f"{name}.pages.example:9898": f"localhost:{http}",
            "s3://example-pages/fleet": self.store["remote_storage"],
        })
        # A bucket that is not in a cloud.
        endpoint = self.store["remote_storage_endpoint"]
        text += f'remote_storage_endpoint = "{endpoint}"\nremote_storage_allow_http = true\n'
        binary = program("pageserver")
        command = unit_command("pageserver@.service", name, {"/usr/local/bin/pageserver": str(binary),
                                                             "/var/lib/pageserver": str(self.place)})
        server = Installed(binary, self.place / name, text, command, {"PAGESERVER_LOG_FORMAT": "human"})
        server.allow(*EXPECTED)
        server.token, server.tls = self.signer.admin(), self.trusting
        server.secret(server.token)
        pageservers.append(server)
        server.start()
        assert server.says_ready()
        return server

    def pagectl(self, *args) -> str:
        done = self.computes.pagectl(*args)
        assert done.code == 0, done.text
        return done.stdout


@pytest.fixture
def make_example(make_postgres, make_store, pageservers, pagectl_binary, work_dir):
    made = []

    def make(count: str) -> Example:
        made.append(Example(count, make_postgres, make_store, pageservers, pagectl_binary, work_dir))
        return made[-1]

    yield make
    for example in made:
        example.computes.destroy_all()
        for server in example.servers:
            server.allow(POSTGRES_IS_GONE)
            if server.is_running():
                server.stop()
        example.fleet.followed.postgres.stop()


@pytest.mark.slow
@pytest.mark.parametrize("count", [pytest.param("two", marks=pytest.mark.daily), "three"])
def test_a_fleet_of_the_example_s_files_loses_its_owner(count, make_example):
    """With tokens and TLS everywhere, and an S3 server."""
    example = make_example(count)
    fleet, (first, *others) = example.fleet, example.servers
    for server in others:
        example.pagectl("--server", f"https://localhost:{server.http_port}", "tenant", "standby", fleet.tenant)
        fleet.make_standby(server)
    quorum = {"two": "1", "three": "2"}[count]
    compute = example.computes.start("dev", "--branch", "dev", "--wait-for-pageserver", "--quorum", quorum)
    assert compute.sql("SHOW synchronous_standby_names").startswith(f"ANY {quorum} (pageserver, pageserver_a, ")
    for server in others:
        fleet.wait_for_standby(server, compute, compute.timeline)
    with Writer(compute, "acknowledged") as writer:
        writer.wait_for_rows(20)
        killed = time.monotonic()
        first.kill()
        meanwhile = writer.acknowledged_after(killed) - killed
        owner = fleet.wait_for_owner(*others)
        took = time.monotonic() - killed
        writer.acknowledged_after(time.monotonic())
    print(f"a commit after {meanwhile:.2f} s, an owner after {took:.2f} s, takeover_after is {TAKEOVER} s")
    assert meanwhile < TAKEOVER / 2 < took < TAKEOVER + 10
    writer.check()
    seen = example.pagectl("--server", f"https://localhost:{owner.http_port}", "fleet", "status")
    assert all(f"localhost:{http}" in seen for name, (_, http) in example.ports.items() if name != "a"), seen
    compute.stop()
    compute.start()
    writer.check()
    compute.stop()
