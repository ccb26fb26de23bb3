"""The container image, without a container engine: what its file puts there runs on what its file names and nothing
else, as its user, on a file system that cannot be written to."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from fixtures.programs import REPOSITORY, program
from fixtures.tokens import write_certificate
from fixtures.wait import wait_until

FILE = (REPOSITORY / "docs" / "deploy" / "Containerfile").read_text()
# What the base image has, of all that programs may be linked with.
BASE = {"libc6", "libgcc-s1"}
UID = int(re.search(r"--uid (\d+)", FILE)[1])

# $1 the root, which becomes read-only; $2 what is mounted at /data; then the command.
IN_IMAGE = """
set -e
root=$1 data=$2
shift 2
mount --bind "$root" "$root"
mount --bind "$data" "$root/data"
mount -t proc proc "$root/proc"
for device in null zero urandom; do mount --bind "/dev/$device" "$root/dev/$device"; done
mount -o remount,bind,ro "$root"
exec chroot --userspec "$IMAGE_UID:$IMAGE_UID" "$root" "$@"
"""


def libraries(binary: Path) -> set[str]:
    linked = subprocess.run(["ldd", binary], check=True, capture_output=True, text=True).stdout
    assert "not found" not in linked, linked
    return set(re.findall(r"(/lib\S+)", linked))


def packages(files: set[str]) -> set[str]:
    """That these files belong to, which may be named by where they are or by a link."""
    found = set()
    for file in files:
        names = {file, str(Path(file).resolve()), f"/usr{file}"}
        done = subprocess.run(["dpkg", "-S", *names], capture_output=True, text=True)
        owners = {line.split(":")[0] for line in done.stdout.splitlines()}
        assert owners, f"nobody owns {file}"
        found |= owners
    return found


@pytest.fixture(scope="module")
def installed() -> list[str]:
    """The programs that the file copies into the image."""
    (copied,) = re.findall(r"^COPY --from=build (.*) /usr/local/bin/$", FILE, re.MULTILINE)
    return [Path(path).name for path in copied.split()]


class Image:
    """A root with nothing in it but the programs and their libraries."""

    def __init__(self, place: Path, installed: list[str]):
        self.root, self.data, self.process = place / "root", place / "data", None
        for name in ("usr/local/bin", "data", "proc", "dev", "etc/ssl/certs"):
            (self.root / name).mkdir(parents=True)
        for name in ("null", "zero", "urandom"):
            (self.root / "dev" / name).touch()
        for name in installed:
            # Not a copy of its symbols.
            target = self.root / "usr/local/bin" / name
            subprocess.run(["strip", "--strip-debug", "-o", target, program(name)], check=True)
            target.chmod(0o755)
            for library in libraries(program(name)):
                (self.root / library.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(library, self.root / library.lstrip("/"))
        self.data.mkdir(mode=0o700)
        os.chown(self.data, UID, UID)

    def command(self, *args) -> list[str]:
        return ["unshare", "--mount", "--propagation", "private", "bash", "-c", IN_IMAGE, "bash", str(self.root),
                str(self.data), *args]

    def run(self, *args, **env) -> subprocess.CompletedProcess:
        env = {"PATH": os.environ["PATH"], "IMAGE_UID": str(UID), **env}
        return subprocess.run(self.command(*args), env=env, capture_output=True, text=True, timeout=60)

    def start(self, entrypoint: list[str]):
        env = {"PATH": os.environ["PATH"], "IMAGE_UID": str(UID)}
        self.process = subprocess.Popen(self.command(*entrypoint), env=env, stderr=subprocess.PIPE, text=True)
        addresses = self.data / "pageserver.addr"
        wait_until(lambda: self.process.poll() is not None or addresses.exists(), 30, what="the start")
        assert self.process.poll() is None, self.process.stderr.read()
        self.url = "http://" + json.loads(addresses.read_text())["listen_http_addr"]

    def end(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)


@pytest.fixture
def image(work_dir, installed):
    if os.getuid() != 0:
        pytest.skip("only root makes another root")
    made = Image(work_dir, installed)
    yield made
    made.end()


def test_the_programs_need_nothing_that_the_image_does_not_have(installed):
    assert installed == ["pageserver", "pagectl"]
    for name in installed:
        assert packages(libraries(program(name))) <= BASE
    # The chart's tests and docs have the same user and ports.
    assert "EXPOSE 64000 9898" in FILE and UID == 10001


def test_it_runs_as_its_user_on_a_root_that_is_only_read(image):
    (entrypoint,) = re.findall(r"^ENTRYPOINT (\[.*\])$", FILE, re.MULTILINE)
    entrypoint = json.loads(entrypoint)
    said = image.run(entrypoint[0], "init", "--workdir", "/data", "-c", "listen_pg_addr=127.0.0.1:0",
                     "-c", "listen_http_addr=127.0.0.1:0")
    assert said.returncode == 0, said.stderr
    refused = image.run(entrypoint[0], "init", "--workdir", "/elsewhere")
    assert refused.returncode != 0 and "Read-only file system" in refused.stderr, refused.stderr
    image.start(entrypoint)
    assert os.stat(image.data / "pageserver.addr").st_uid == UID
    host = image.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=10)
    connection.request("GET", "/v1/status")
    assert connection.getresponse().status == 200
    listed = image.run("/usr/local/bin/pagectl", "--server", image.url, "--json", "tenant", "list")
    assert listed.returncode == 0 and '"tenants":[]' in re.sub(r"\s", "", listed.stdout), listed.stderr
    image.process.send_signal({"SIGTERM": signal.SIGTERM}[re.search(r"^STOPSIGNAL (\w+)$", FILE, re.MULTILINE)[1]])
    assert image.process.wait(20) == 0, image.process.stderr.read()


class TlsServer:
    """Counts who trusts its certificate; it has nothing to say."""

    def __init__(self, place: Path):
        certificate, key, _ = write_certificate(place)
        self.certificate, self.trusted = certificate.read_bytes(), 0
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(certificate, key)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                raw, _ = self.listener.accept()
            except OSError:
                return
            try:
                with self.context.wrap_socket(raw, server_side=True) as client:
                    # Only who trusts sends something.
                    self.trusted += bool(client.recv(1))
            except (ssl.SSLError, OSError):
                pass


def test_buckets_by_https_are_those_that_the_image_trusts(image, work_dir):
    """By the package that the file installs, whose bundle is where this puts one."""
    assert re.search(r"apt-get install --yes --no-install-recommends ca-certificates", FILE)
    server = TlsServer(work_dir)
    settings = [f"remote_storage_endpoint=https://localhost:{server.port}", "remote_storage=s3://pages/x",
                "remote_storage_region=us-east-1", "remote_storage_start_timeout=2s",
                "remote_storage_retry_deadline=1s"]
    overrides = [word for setting in settings for word in ("-c", setting)]
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    (image.root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    assert image.run("/usr/local/bin/pageserver", "init", "--workdir", "/data").returncode == 0
    start = lambda: image.run("/usr/local/bin/pageserver", "--workdir", "/data", *overrides, **keys)
    assert start().returncode != 0 and server.trusted == 0
    (image.root / "etc/ssl/certs/ca-certificates.crt").write_bytes(server.certificate)
    assert start().returncode != 0 and server.trusted > 0
    server.listener.close()
