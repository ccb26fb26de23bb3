"""Computes of a user without any privilege: through the set-uid `fusermount3`, and in a user namespace."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from fixtures import unprivileged
from fixtures.followed import Followed, follow_new
from fixtures.computes import Compute, Computes
from fixtures.copies import checksums
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.small_disk import fill, small_disk
from fixtures.unprivileged import DEVICE, IN_NAMESPACE, WITHOUT_CAPABILITIES, assert_nothing_left
from fixtures.wait import wait_until


@pytest.fixture(scope="module")
def followed(make_postgres, make_pageserver) -> Followed:
    made = follow_new(make_postgres, make_pageserver, "unprivileged", checksums=True)
    made.pageserver.allow(POSTGRES_IS_GONE)
    made.catch_up()
    return made


def assert_branch_is_whole(followed: Followed, computes: Computes, compute: Compute):
    """Another compute finds on the branch exactly what the first one wrote, page by page."""
    written = checksums(compute)
    compute.stop()
    heir = computes.start("heir", "--branch", compute.name, "--copy")
    assert checksums(heir) == written
    print(followed.assert_files_equal(heir.stop(), heir.timeline, heir.data))
    computes.ok("destroy", "heir")


def test_a_compute_of_a_user_without_capabilities(followed, make_unprivileged):
    computes = make_unprivileged(followed.pageserver)
    expected, moment = checksums(followed.postgres), followed.catch_up()
    followed.postgres.bench(100)
    followed.catch_up()
    compute = computes.start("plain", "--branch", "plain", "--at", moment)
    assert checksums(compute) == expected
    assert unprivileged.mounts(computes.dir) == [str(compute.data)]
    for pid in (compute.supervisor(), compute.daemon(), compute.pid()):
        assert unprivileged.capabilities(pid) == {"0" * 16}
        assert os.stat(f"/proc/{pid}").st_uid == computes.dir.stat().st_uid != 0
    compute.bench(200)
    compute.kill()
    compute.start()
    compute.bench(100)
    written = checksums(compute)
    assert compute.stop() == compute.timeline.last_record_lsn()
    assert unprivileged.mounts(computes.dir) == [] and compute.state() == "stopped"
    compute.start()
    assert checksums(compute) == written
    assert "ready to accept connections" in computes.ok("logs", "plain").stdout
    assert_branch_is_whole(followed, computes, compute)
    computes.ok("destroy", "plain")
    assert_nothing_left(computes.dir)


def test_what_serves_it_is_killed(followed, make_unprivileged, work_dir):
    computes = make_unprivileged(followed.pageserver)
    compute = computes.start("killed", "--branch", "killed", "--set", "shared_buffers=1MB")
    bench = compute.start_bench_on()
    for _ in range(3):
        time.sleep(0.3)
        compute.kill_daemon()
        assert room_for_descriptors(compute.daemon()) >= 1024
    time.sleep(0.3)
    # The pageserver may have requested the slot at the same time as pagectl.
    errors = [line for line in compute.log.read_text().splitlines() if "ERROR" in line]
    assert bench.poll() is None and all("replication slot" in error for error in errors), errors
    kill_postgres_before_mounting(compute, work_dir, bench)
    compute.start()
    compute.bench(100)
    # Without its supervisor it continues, and can be stopped.
    os.kill(compute.supervisor(), signal.SIGKILL)
    wait_until(lambda: "supervisor is gone" in (computes.about("killed")["trouble"] or ""), 5)
    compute.bench(100)
    compute.stop()
    assert unprivileged.mounts(computes.dir) == []
    # The next start copes with the leftovers, too.
    compute.start()
    os.kill(compute.supervisor(), signal.SIGKILL)
    compute.kill()
    compute.start()
    assert_branch_is_whole(followed, computes, compute)
    computes.ok("destroy", "killed")
    assert_nothing_left(computes.dir)


def test_what_cannot_be_handed_over_is_mounted_anew(followed, make_unprivileged):
    computes = make_unprivileged(followed.pageserver)
    compute = computes.start("torn", "--branch", "torn")
    compute.sql("CREATE TABLE t AS SELECT 1")
    old = compute.children()
    # Without this file the next daemon does not know what to serve.
    config, elsewhere = compute.dir / "origin.json", compute.dir / "elsewhere"
    config.rename(elsewhere)
    os.kill(compute.daemon(), signal.SIGKILL)
    wait_until(lambda: not unprivileged.mounts(computes.dir), 20, what="the end of the mount")
    assert not any(map(is_alive, old))
    elsewhere.rename(config)
    assert compute.start().sql("SELECT count(*) FROM t") == "1"
    # A leftover mount without a supervisor is not mistaken for files to be removed.
    os.kill(compute.supervisor(), signal.SIGKILL)
    compute.kill()
    assert unprivileged.mounts(computes.dir)
    computes.ok("destroy", "torn")
    assert_nothing_left(computes.dir)


def kill_postgres_before_mounting(compute: Compute, work_dir, bench: subprocess.Popen):
    """The connection is lost under load: nothing is mounted again while any process of the old server exists."""
    with unprivileged.pinned(compute.data, work_dir / "pin") as before:
        old = compute.children()
        assert compute.pid() in old and len(old) > 5
        # It can be aborted only by unmounting it, or by killing everything that holds it.
        unprivileged.LIBC.umount2(os.fsencode(compute.data), 1)
        looks, end = 0, time.monotonic() + 20
        while unprivileged.device(compute.data) in (None, before):
            assert time.monotonic() < end, (compute.dir / "fs.log").read_text()
            looks += 1
        assert not any(map(is_alive, old))
    print(f"{len(old)} processes were gone before the new mount ({looks} looks)")
    assert bench.wait(20) != 0
    wait_until(lambda: compute.state() == "crashed", 5)


def room_for_descriptors(pid: int) -> int:
    """Without asking for more, a process begins with 64."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("FDSize:"))


def is_alive(pid: int) -> bool:
    """A process that has ended and waits to be reaped has no executable any more."""
    try:
        return os.readlink(f"/proc/{pid}/exe") != ""
    except OSError:
        return False


def test_a_file_system_that_does_not_answer(followed, make_unprivileged):
    computes = make_unprivileged(followed.pageserver)
    compute = computes.start("silent", "--branch", "silent")
    compute.sql("CREATE TABLE t AS SELECT 1")
    os.kill(compute.daemon(), signal.SIGSTOP)
    assert "is suspended: kill -CONT" in computes.ok("list").stdout
    begun = time.monotonic()
    computes.refuse("stop", "silent", "--timeout", "2s", names="is suspended: kill -CONT")
    assert time.monotonic() - begun < 5
    # It was ended nevertheless, and nothing is lost.
    assert compute.state() == "crashed"
    compute.start()
    assert compute.sql("SELECT count(*) FROM t") == "1"
    assert computes.json("stop", "silent")["end_lsn"] == compute.timeline.last_record_lsn()
    compute.start()
    assert computes.about("silent")["trouble"] is None
    # All wait for answers, and nobody is there to give them.
    waiting = compute.start_bench_on()
    time.sleep(0.5)
    os.kill(compute.daemon(), signal.SIGSTOP)
    os.kill(compute.supervisor(), signal.SIGSTOP)
    begun = time.monotonic()
    computes.refuse("start", "silent", names="runs already")
    computes.ok("destroy", "silent", "--force")
    assert time.monotonic() - begun < 10
    assert waiting.wait(5) != 0
    assert_nothing_left(computes.dir)


def test_a_compute_on_a_full_disk_is_destroyed(followed, make_unprivileged, work_dir):
    computes = make_unprivileged(followed.pageserver)
    with small_disk(work_dir, 200) as disk:
        elsewhere, computes.dir = computes.dir, unprivileged.own(disk / "computes")
        try:
            fill_and_destroy(computes, disk)
        finally:
            computes.destroy_all()
        assert_nothing_left(computes.dir)
        computes.dir = elsewhere


def fill_and_destroy(computes: Computes, disk):
    compute = computes.start("full", "--branch", "full", "--set", "shared_buffers=1MB")
    # WAL has room: it goes to a new segment at once.
    compute.sql("SELECT pg_switch_wal(); CREATE TABLE t ()")
    fill(disk / "ballast", leave_mib=0.2)
    waiting = compute.start_sql("UPDATE pgbench_accounts SET abalance = 1 WHERE aid <= 20000; CHECKPOINT")
    log = compute.dir / "fs.log"
    wait_until(lambda: "disk is full" in log.read_text(), 20, what="a write that waits for room")
    begun = time.monotonic()
    assert "is full" in computes.ok("list").stdout
    computes.refuse("stop", "full", "--timeout", "1s", names="is full")
    computes.ok("destroy", "full", "--force")
    print(f"destroyed after {time.monotonic() - begun:.1f} s")
    assert time.monotonic() - begun < 15
    waiting.wait(5)


def test_in_a_user_namespace(followed, make_unprivileged):
    computes = make_unprivileged(followed.pageserver, wrapped=IN_NAMESPACE)
    compute = computes.start("inside", "--branch", "inside")
    # Others do not see the mount.
    assert unprivileged.mounts(computes.dir) == []
    assert os.readlink(f"/proc/{compute.pid()}/ns/user") != os.readlink("/proc/self/ns/user")
    compute.bench(200)
    compute.stop()
    compute.start()
    compute.bench(100)
    # What is still mounted is in the supervisor's namespace.
    compute.kill()
    computes.refuse("start", "inside", names="nsenter")
    enter = ["nsenter", "--preserve-credentials", "--user", "--mount", "--target", str(compute.supervisor())]
    computes.wrapped = [*WITHOUT_CAPABILITIES, *enter]
    compute.start()
    computes.wrapped = IN_NAMESPACE
    compute.bench(100)
    # The next start cleans up what the supervisor has left.
    os.kill(compute.supervisor(), signal.SIGKILL)
    compute.kill()
    compute.start()
    computes.ok("destroy", "inside", "--force")
    assert_nothing_left(computes.dir)


def test_what_is_missing_is_said(followed, make_unprivileged):
    computes = make_unprivileged(followed.pageserver)
    as_root = [*WITHOUT_CAPABILITIES, "unshare", "--user", "--map-root-user", "--mount"]
    bound = ["setpriv", "--no-new-privs", *WITHOUT_CAPABILITIES]
    for number, (wrapped, mode, names) in enumerate([
        (bound, 0o666, ["may not mount", "no_new_privs", "--copy"]),
        (WITHOUT_CAPABILITIES, 0o600, ["may not open /dev/fuse", "read and write permission on /dev/fuse", "--copy"]),
        (IN_NAMESPACE, 0o600, ["may not open /dev/fuse", "--copy"]),
        (as_root, 0o666, ["this user namespace has no postgres", "--map-current-user --keep-caps"]),
    ]):
        DEVICE.chmod(mode)
        computes.wrapped = wrapped
        said = computes.refuse("start", "c", "--branch", f"missing{number}", names=names[0])
        assert all(name in said for name in names), said
        computes.wrapped = WITHOUT_CAPABILITIES
        assert_nothing_left(computes.dir)
