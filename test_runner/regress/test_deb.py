"""The Debian package: what is in it, and that it installs, runs, upgrades and goes without taking data along.

It is installed for real, into a copy of this machine's files that is thrown away: an overlay that only this test sees.
"""

import os
import subprocess
from pathlib import Path

import pytest

from fixtures.programs import REPOSITORY, program

# Runs $3 in a root of its own: the machine's files below, what is changed above, in $1, which is memory.
IN_OVERLAY = """
set -e
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount --rbind /dev "$1/root/dev"
mount -t proc proc "$1/root/proc"
# No services of this machine, if it has some.
mount -t tmpfs none "$1/root/run"
cp "$2" "$1/root/package.deb"
printf '%s' "$3" >"$1/root/script"
exec chroot "$1/root" /bin/bash -eu /script
"""
# A system that never had it, whatever this machine has.
INSTALL = """
export DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
rm -rf /var/lib/pageserver
dpkg --install --force-depends /package.deb
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """Made of the programs under test."""
    program("pageserver")
    done = subprocess.run([REPOSITORY / "scripts/deb.sh", tmp_path_factory.mktemp("deb")], text=True, timeout=300,
                          capture_output=True, env={**os.environ, "DEB_COMPRESS": "none"})
    assert done.returncode == 0, done.stderr
    made = Path(done.stdout.strip())
    assert made.is_file(), done.stdout
    return made


@pytest.fixture
def installed(package, tmp_path):
    """Runs a script where the package has just been installed; returns what it wrote."""
    if os.getuid() != 0:
        pytest.skip("only root installs packages")

    def run(script: str) -> str:
        place = tmp_path / "place"
        place.mkdir()
        done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", IN_OVERLAY,
                               "bash", place, package, INSTALL + script], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    return run


def deb(*args) -> str:
    return subprocess.run(["dpkg-deb", *map(str, args)], capture_output=True, text=True, check=True).stdout


def test_it_has_what_people_look_for(package):
    files = {line.split()[5]: line.split()[:2] for line in deb("--contents", package).splitlines()}
    for name in ("pageserver", "pagectl", "compute-fs"):
        assert files[f"./usr/bin/{name}"] == ["-rwxr-xr-x", "root/root"]
    for name in ("usr/lib/systemd/system/pageserver.service", "usr/lib/systemd/system/pageserver@.service",
                 "usr/lib/systemd/system/pageserver-gateway.service", "usr/share/doc/pageserver/deploy/fleet/c.toml",
                 "usr/share/man/man1/pageserver.1.gz",
                 "usr/share/man/man1/pagectl-branch-create.1.gz", "usr/share/bash-completion/completions/pagectl",
                 "usr/share/zsh/vendor-completions/_pagectl", "usr/share/fish/vendor_completions.d/pagectl.fish",
                 "usr/share/doc/pageserver/copyright", "usr/share/doc/pageserver/configuration.md"):
        assert files[f"./{name}"] == ["-rw-r--r--", "root/root"]
    fields = deb("--field", package, "Version", "Architecture", "Depends")
    assert "Version: 0." in fields and "libc6 (>= 2." in fields and "@" not in fields


def test_the_same_programs_make_the_same_package(package, tmp_path):
    done = subprocess.run([REPOSITORY / "scripts/deb.sh", tmp_path], text=True, capture_output=True, timeout=300,
                          env={**os.environ, "DEB_COMPRESS": "none"}, umask=0o077)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == package.read_bytes()


def test_the_unit_is_one_of_systemd(installed):
    told = installed("""
        for unit in pageserver.service pageserver@.service pageserver-gateway.service; do
            file=/usr/lib/systemd/system/$unit
            ! grep /usr/local "$file"
            ls "$(sed -n 's/^ExecStart=\\([^ ]*\\).*/\\1/p' "$file")" "$(sed -n 's/^Documentation=file://p' "$file")"
            systemd-analyze verify "$file" && echo verified
        done
    """)
    assert "/usr/bin/pageserver\n" in told and "/usr/share/doc/pageserver/configuration.md\n" in told
    assert "/usr/bin/pagectl\n" in told
    assert told.count("verified") == 3 and "service:" not in told, told


def test_it_installs_and_serves(installed):
    told = installed("""
        stat -c '%U:%G %a %n' /var/lib/pageserver /var/lib/pageserver/pageserver.toml
        pageserver --version && pagectl --version && compute-fs --version
        bash -c 'source /usr/share/bash-completion/completions/pagectl && complete -p pagectl'
        man -w pageserver >/dev/null 2>&1 || zcat /usr/share/man/man1/pageserver.1.gz | grep -q workdir
        runuser -u pageserver -- pageserver --workdir /var/lib/pageserver -c listen_pg_addr=127.0.0.1:0 \
            -c listen_http_addr=127.0.0.1:0 >/log 2>&1 &
        for _ in $(seq 100); do [ -e /var/lib/pageserver/pageserver.addr ] && break; sleep 0.1; done
        url=http://$(grep -o '"listen_http_addr": *"[^"]*' /var/lib/pageserver/pageserver.addr | cut -d'"' -f4)
        pagectl --server "$url" --json tenant list
        kill -TERM $(pgrep -x pageserver) && wait
    """)
    assert "systemctl enable --now pageserver" in told
    assert "pageserver:pageserver 700 /var/lib/pageserver\n" in told
    assert "pageserver:pageserver 600 /var/lib/pageserver/pageserver.toml" in told
    assert "-F _pagectl pagectl" in told and '"tenants":[]' in told.replace(" ", ""), told


def test_an_upgrade_keeps_settings_and_a_purge_keeps_data(installed):
    told = installed("""
        echo '# mine' >>/var/lib/pageserver/pageserver.toml
        dpkg --install --force-depends /package.deb
        tail -1 /var/lib/pageserver/pageserver.toml
        dpkg --remove pageserver
        [ ! -e /usr/bin/pageserver ] && [ ! -e /usr/share/doc/pageserver ]
        dpkg --purge pageserver
        tail -1 /var/lib/pageserver/pageserver.toml && getent passwd pageserver
        dpkg --install --force-depends /package.deb
        tail -1 /var/lib/pageserver/pageserver.toml
    """)
    assert told.count("# mine") == 3, told
    assert "/var/lib/pageserver is kept" in told and "/usr/sbin/nologin" in told
    assert told.count("systemctl enable --now pageserver") == 1, "only who begins is told how"
