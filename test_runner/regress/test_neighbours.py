"""An ordinary user of the same machine can do nothing to the computes and stores of others."""

import fcntl
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.followed import follow_new
from fixtures.computes import Compute
from fixtures.copies import boot, fetch
from fixtures.programs import program

NEIGHBOUR = "nobody"

# A user with an account here, and nothing else.
AS_NEIGHBOUR = [
    "setpriv", f"--reuid={NEIGHBOUR}", f"--regid={pwd.getpwnam(NEIGHBOUR).pw_gid}", "--clear-groups", "--inh-caps=-all",
    "env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin",
]

# Tries every operation on the paths it is given; prints what has succeeded.
TRY_ALL = """
import os, socket, sys
def tried(what, act):
    try:
        act()
    except OSError:
        return
    print(what)
def connect(path):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
for path in sys.argv[1:]:
    tried(f"list {path}", lambda: os.listdir(path))
    tried(f"read {path}", lambda: open(path, "rb").read(1))
    tried(f"write {path}", lambda: open(path, "r+b"))
    tried(f"connect {path}", lambda: connect(path))
    tried(f"make in {path}", lambda: os.mkdir(os.path.join(path, "planted")))
    tried(f"replace {path}", lambda: os.rename(path, path + ".away"))
"""


@pytest.fixture(scope="module", autouse=True)
def can_be_a_neighbour():
    if os.getuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("NOT TESTED: root becomes another user by setpriv")


def by_neighbour(*command) -> subprocess.CompletedProcess:
    return subprocess.run([*AS_NEIGHBOUR, *map(str, command)], capture_output=True, text=True, timeout=60, cwd="/")


def all_below(root: Path) -> list[Path]:
    found = [root]
    for place, dirs, files in os.walk(root):
        found += [Path(place) / name for name in (*dirs, *files)]
    return found


def assert_closed(root: Path):
    """Nobody else may access anything there, by its permissions and in practice."""
    paths = all_below(root)
    assert len(paths) > 5
    # A link has no permissions of its own.
    open_to_others = [f"{path} {path.lstat().st_mode:o}" for path in paths
                      if not path.is_symlink() and stat.S_IMODE(path.lstat().st_mode) & 0o077]
    assert not open_to_others, open_to_others
    assert_nothing_works(paths)


def assert_nothing_works(paths: list[Path]):
    done = by_neighbour(sys.executable if shared(sys.executable) else "python3", "-c", TRY_ALL, *paths)
    assert done.returncode == 0 and not done.stdout, done.stdout + done.stderr


def shared(path: str) -> bool:
    """Whether everybody may run it."""
    return by_neighbour("test", "-x", path).returncode == 0


def psql(compute: Compute, *args, role="postgres", wrapped=(), host=None, **env) -> subprocess.CompletedProcess:
    """psql as the user that the command prefix `wrapped` switches to."""
    command = ["psql", "-XAtw", "-h", str(host or compute.dir), "-p", str(compute.port), "-U", role, "-d", "postgres"]
    return subprocess.run([*wrapped, *command, *args], capture_output=True, text=True, timeout=60, cwd="/",
                          env={**os.environ, **env})


def assert_no_superuser(compute: Compute, proof: Path):
    """The former security hole: a program, run as the user that runs Postgres."""
    done = psql(compute, "-c", f"COPY (SELECT 1) TO PROGRAM 'id > {proof}'", wrapped=AS_NEIGHBOUR)
    assert done.returncode != 0 and not proof.exists(), done.stdout
    assert "ermission denied" in done.stderr or "Peer authentication failed" in done.stderr, done.stderr


@pytest.mark.parametrize("mode", [[], ["--copy"]], ids=["lazy", "copy"])
def test_a_neighbour_gets_nowhere_in_a_compute(make_postgres, make_pageserver, make_computes, mode):
    followed = follow_new(make_postgres, make_pageserver, f"closed{len(mode)}")
    computes = make_computes(followed.pageserver)
    os.umask(0)
    try:
        compute = computes.start("c", "--branch", "c", *mode)
        # Files of all kinds: written, removed while open, and in the middle of being written.
        compute.sql("CREATE TABLE t AS SELECT generate_series(1, 1000) AS i; DROP TABLE pgbench_history; CHECKPOINT")
        assert_no_superuser(compute, computes.dir / "proof")
        assert_closed(compute.dir)
        compute.stop()
        compute.start()
        assert_closed(compute.dir)
    finally:
        os.umask(0o022)


def test_a_compute_of_a_version_before_is_closed(make_postgres, make_pageserver, make_computes):
    followed = follow_new(make_postgres, make_pageserver, "before")
    computes = make_computes(followed.pageserver)
    compute = computes.start("c", "--branch", "c")
    compute.sql("DROP TABLE pgbench_history")
    compute.stop()
    compute.dir.chmod(0o755)
    for name in ("staging", "orphans"):
        (compute.dir / name).chmod(0o777)
    for name in ("removed", "daemon.lock"):
        (compute.dir / name).chmod(0o666)
    (compute.dir / "origin.json").unlink()
    compute.start()
    assert_closed(compute.dir)
    assert compute.sql("SELECT count(*) FROM pgbench_branches") == "1"


def test_what_a_neighbour_has_put_there_is_not_believed(make_postgres, make_pageserver, make_computes):
    followed = follow_new(make_postgres, make_pageserver, "forged")
    computes = make_computes(followed.pageserver)
    compute = computes.start("c", "--branch", "c")
    compute.sql("DROP TABLE pgbench_history")
    compute.stop()
    neighbour, owner = pwd.getpwnam(NEIGHBOUR).pw_uid, compute.dir.stat().st_uid
    said = f"user {neighbour}"
    names = ("removed", "manifest", "catalog/blocks", "daemon.lock", "origin.json", "upper/PG_VERSION", "upper/base")
    for name in names:
        path, before = compute.dir / name, len((compute.dir / "fs.log").read_text())
        os.chown(path, neighbour, -1)
        refused = computes.pagectl("compute", "start", "c")
        log = (compute.dir / "fs.log").read_text()[before:]
        # Files that pagectl itself rewrites are not read at all.
        assert refused.code == 0 if name == "origin.json" else refused.code != 0, (name, refused.text)
        if name == "origin.json":
            assert path.stat().st_uid == owner
            compute.stop()
            continue
        assert said in refused.stderr, (name, refused.stderr, log)
        os.chown(path, owner, -1)
    # If root manages the compute, the user of Postgres must not be able to give root orders, either.
    os.chown(compute.dir / "compute.json", owner, -1)
    computes.refuse("start", "c", names="managed by the user who made it")
    os.chown(compute.dir / "compute.json", 0, -1)
    (compute.dir / "compute.json").rename(compute.dir / "kept.json")
    (compute.dir / "compute.json").symlink_to("kept.json")
    computes.refuse("start", "c", names="symbolic link")
    (compute.dir / "kept.json").rename(compute.dir / "compute.json")
    # Links are not followed where root writes, or mounts.
    (compute.dir / "postgres.log").unlink()
    target = computes.dir / "target"
    (compute.dir / "postgres.log").symlink_to(target)
    computes.refuse("start", "c", names="symbolic link")
    assert not target.exists()
    (compute.dir / "postgres.log").unlink()
    target.mkdir()
    (compute.dir / "data").rename(compute.dir / "data.away")
    (compute.dir / "data").symlink_to(target)
    computes.refuse("start", "c", names="file system did not start")
    assert str(target) not in Path("/proc/self/mountinfo").read_text()
    (compute.dir / "data").unlink()
    (compute.dir / "data.away").rename(compute.dir / "data")
    compute.start()
    assert compute.sql("SELECT count(*) FROM pgbench_branches") == "1"
    # A compute under another name is not trusted.
    (computes.dir / "d").mkdir()
    shutil.copy(compute.dir / "compute.json", computes.dir / "d")
    computes.refuse("stop", "d", names="under another name")
    shutil.rmtree(computes.dir / "d")


def test_nobody_is_killed_by_a_forged_number(make_postgres, make_pageserver, make_computes):
    followed = follow_new(make_postgres, make_pageserver, "numbers")
    computes = make_computes(followed.pageserver)
    compute = computes.start("c", "--branch", "c")
    compute.stop()
    victim = subprocess.Popen(["sleep", "600"], cwd=compute.dir / "upper")
    try:
        for name in ("fs.lock", "daemon.lock"):
            with open(compute.dir / name, "r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                lock.write(f"{victim.pid}\n")
                lock.truncate()
                lock.flush()
                computes.refuse("destroy", "c", "--force", names="left alone")
                assert victim.poll() is None
        # The same with the process id of a server.
        (compute.dir / "upper" / "postmaster.pid").write_text(f"{victim.pid}\n")
        assert compute.state() == "crashed"
        (compute.dir / "upper" / "postmaster.pid").unlink()
        assert compute.state() == "stopped"
        computes.ok("destroy", "c", "--force")
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait(10)


def test_who_is_let_in_is_let_in_as_told(make_postgres, make_pageserver, make_computes, pg_major):
    followed = follow_new(make_postgres, make_pageserver, f"let-in{pg_major}", major=pg_major)
    computes = make_computes(followed.pageserver, f"let-in{pg_major}")
    compute = computes.start("c", "--branch", "c", "--listen", "127.0.0.1")
    compute.sql("CREATE ROLE reader LOGIN; CREATE ROLE worker LOGIN PASSWORD 'of worker'; CREATE TABLE t AS SELECT 7")
    refused = psql(compute, "-c", "SELECT 1", wrapped=AS_NEIGHBOUR, host="127.0.0.1")
    assert refused.returncode != 0 and "password" in refused.stderr, refused.stderr
    allowed = psql(compute, "-c", "SELECT 1", role="worker", host="127.0.0.1", PGPASSWORD="of worker")
    assert allowed.stdout.strip() == "1", allowed.stderr
    wrong = psql(compute, "-c", "SELECT 1", role="worker", host="127.0.0.1", PGPASSWORD="of nobody")
    assert wrong.returncode != 0
    compute.stop()
    computes.refuse("start", "c", "--listen-users", "/.*", names="nobody to let in")
    compute.start("--listen-users", f"{NEIGHBOUR}=reader")
    assert psql(compute, "-c", "SELECT 1", role="reader", wrapped=AS_NEIGHBOUR).stdout.strip() == "1"
    denied = psql(compute, "-c", "COPY (SELECT 1) TO PROGRAM 'id'", role="reader", wrapped=AS_NEIGHBOUR)
    assert denied.returncode != 0 and "to COPY to or from an external program" in denied.stderr, denied.stderr
    assert_no_superuser(compute, computes.dir / "proof")
    for role in ("worker", NEIGHBOUR):
        assert psql(compute, "-c", "SELECT 1", role=role, wrapped=AS_NEIGHBOUR).returncode != 0
    # Apart from the socket there is nothing for them.
    mine = [path for path in all_below(compute.dir) if path != compute.dir and not path.name.startswith(".s.PGSQL.")]
    assert_nothing_works(mine)
    assert stat.S_IMODE(compute.dir.stat().st_mode) == 0o711
    # Authorized users come and go as before, and the page server follows.
    assert compute.sql("SELECT * FROM t") == psql(compute, "-c", "SELECT * FROM t").stdout.strip() == "7"
    end = compute.stop()
    assert compute.timeline.last_record_lsn() == end
    # The setting persists until it is changed.
    compute.start()
    assert psql(compute, "-c", "SELECT 1", role="reader", wrapped=AS_NEIGHBOUR).stdout.strip() == "1"
    compute.stop()
    compute.start("--listen-users", "")
    assert_closed(compute.dir)


def test_a_long_path_opens_no_other_way(make_postgres, make_pageserver, make_computes):
    followed = follow_new(make_postgres, make_pageserver, "long")
    computes = make_computes(followed.pageserver, "l" * 90)
    compute = computes.start("c", "--branch", "c")
    sockets = Path(computes.about("c")["connstr"].split("'")[1])
    assert not sockets.is_relative_to(compute.dir) and list(sockets.glob(".s.PGSQL.*"))
    assert_nothing_works([sockets, *sockets.iterdir()])
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    computes.ok("stop", "c")
    # Somebody else has created one while it was away.
    shutil.rmtree(sockets)
    sockets.mkdir()
    os.chown(sockets, pwd.getpwnam(NEIGHBOUR).pw_uid, -1)
    computes.refuse("start", "c", names="belongs to user")
    sockets.rmdir()
    computes.ok("start", "c")
    computes.ok("destroy", "c", "--force")
    assert not sockets.exists()


def test_tokens_of_the_caller_stay_with_the_caller(make_postgres, make_pageserver, make_computes, monkeypatch):
    followed = follow_new(make_postgres, make_pageserver, "tokens")
    computes = make_computes(followed.pageserver)
    monkeypatch.setenv("PAGECTL_TOKEN", "a token of the operator")
    monkeypatch.setenv("SECRET_OF_ROOT", "of no use to others")
    compute = computes.start("c", "--branch", "c")
    for pid in (compute.pid(), compute.supervisor(), compute.daemon()):
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"PATH=" in environment and b"PAGECTL_" not in environment and b"of the operator" not in environment
        assert os.stat(f"/proc/{pid}").st_uid == 0 or b"SECRET" not in environment
    told = compute.sql("CREATE TEMP TABLE e (l text); COPY e FROM PROGRAM 'env'; SELECT string_agg(l, ' ') FROM e")
    assert "PATH=" in told and "of the operator" not in told and "of no use" not in told
    # The token for pages is known to the process that serves them.
    assert json.loads((compute.dir / "origin.json").read_text())["token"] == "a token of the operator"


def test_a_neighbour_gets_nowhere_in_a_store(make_postgres, make_pageserver, work_dir):
    store = work_dir / "new" / "store"
    made = subprocess.run([str(program("pageserver")), "init", "--workdir", str(store)], capture_output=True, umask=0)
    assert made.returncode == 0, made.stderr
    modes = {path.relative_to(store.parent).name: stat.S_IMODE(path.stat().st_mode) for path in all_below(store)}
    assert modes == {"store": 0o700, "pageserver.toml": 0o600}
    server = make_pageserver("closed", store)
    (store / "pageserver.toml").chmod(0o600)
    server.start()
    pg = make_postgres("closed-store", max_replication_slots=10).start()
    pg.bench_init(1)
    server.follow(pg)
    server.stop()
    layers = [path for path in all_below(store) if "__" in path.name]
    assert {path.is_relative_to(store / "objects") for path in layers} == {True, False}, layers
    assert_closed(store)
    # Files of an earlier version.
    for path in all_below(store):
        path.chmod(0o755 if path.is_dir() else 0o644)
    store.chmod(0o755)
    server.start()
    assert_nothing_works(layers)
    assert by_neighbour("ls", store / "tenants").returncode != 0


def test_what_pagectl_stores_is_closed(make_postgres, pagectl_binary, work_dir):
    pg = make_postgres("closed-import")
    with pg.running():
        pg.bench_init(1)
    workdir = work_dir / "import"
    command = [str(pagectl_binary), "--workdir", str(workdir), "import", "--pgdata", str(pg.data)]
    done = subprocess.run(command, capture_output=True, text=True, umask=0)
    assert done.returncode == 0, done.stderr
    assert_closed(workdir / "tenants")


def test_a_full_backup_is_open_to_its_user_alone(make_postgres, make_pageserver):
    followed = follow_new(make_postgres, make_pageserver, "copied")
    copy = boot(make_postgres, "copied-here", fetch(followed.timeline, "fullbackup", followed.catch_up()))
    copy.sockets.chmod(0o755)
    (found,) = copy.sockets.glob(".s.PGSQL.*[0-9]")
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    assert_nothing_works([found])
    assert copy.sql("SELECT count(*) FROM pgbench_branches") == "1"
