"""Computes when something around them fails: their server, their disk, the network, their branch, the kernel's
FUSE."""

import os
import random
import shutil
import socket
import subprocess
import time

import pytest

from fixtures.followed import Followed, follow_new
from fixtures.computes import Compute, amcheck, stay_where_it_is
from fixtures.copies import checksums
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.programs import program
from fixtures.slow_link import SlowLink
from fixtures.small_disk import fill, free_mib, small_disk
from fixtures.wait import wait_until

# Delay of the network in seconds, each way.
DELAY = 0.05
# A compute may be killed before the first transaction.
BALANCED = """SELECT (SELECT sum(abalance) FROM pgbench_accounts)
        = (SELECT COALESCE(sum(delta), 0) FROM pgbench_history)
    AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(bbalance) FROM pgbench_branches)"""


def assert_acknowledged(compute: Compute, said: int):
    """All acknowledged rows are there, each once; at most one more was committed without its acknowledgment
    arriving."""
    count, least, last = map(int, compute.sql("SELECT count(*), min(i), max(i) FROM acknowledged").split("|"))
    assert (count, least) == (last, 1) and said <= last <= said + 1, (said, count, least, last)


def first_row(compute: Compute) -> int:
    compute.sql("CREATE TABLE acknowledged (i int PRIMARY KEY); INSERT INTO acknowledged VALUES (1)")
    return 1


def insert_until_killed(compute: Compute, said: int) -> int:
    """Kills it at a random moment while it takes rows; returns how many it has acknowledged in total."""
    killer = compute.kill_in(random.uniform(0.05, 1.5))
    while inserts(compute, said + 1):
        said += 1
    killer.join()
    compute.await_crash()
    return said


def inserts(compute: Compute, row: int) -> bool:
    """Whether a row is acknowledged soon."""
    process = compute.popen("psql", "-Xq", *compute.connection(), "-c", f"INSERT INTO acknowledged VALUES ({row})")
    try:
        return process.wait(10) == 0
    except subprocess.TimeoutExpired:
        # It may still be acknowledged, but nobody receives that.
        process.kill()
        process.wait(10)
        return False


def assert_branch_is_whole(followed: Followed, computes, compute: Compute, said: int):
    """Another compute finds on the branch exactly what the first one wrote, page by page, and it is consistent."""
    written = checksums(compute)
    compute.stop()
    heir = computes.start("heir", "--branch", compute.name, "--copy")
    assert checksums(heir) == written
    assert heir.sql(BALANCED) == "t"
    assert_acknowledged(heir, said)
    amcheck(heir)
    print(followed.assert_files_equal(heir.stop(), heir.timeline, heir.data))


def test_killed_computes_lose_nothing_that_was_acknowledged(make_postgres, make_pageserver, make_computes, request):
    kills = request.config.getoption("--compute-kills")
    followed = follow_new(make_postgres, make_pageserver, "killed")
    followed.pageserver.allow(POSTGRES_IS_GONE)
    stay_where_it_is(followed.pageserver)
    computes = make_computes(followed.pageserver)
    compute = computes.start("killed", "--branch", "killed", "--wait-for-pageserver", "--set", "shared_buffers=16MB")
    assert compute.sql("SHOW synchronous_standby_names") == "pageserver"
    said = first_row(compute)
    for attempt in range(kills):
        bench = compute.start_bench_on()
        said = insert_until_killed(compute, said)
        bench.wait(60)
        if attempt % 3 == 2:
            followed.pageserver.restart()
        compute.start("--wait-for-pageserver")
        assert_acknowledged(compute, said)
        said = int(compute.sql("SELECT count(*) FROM acknowledged"))
        assert compute.sql(BALANCED) == "t"
    print(f"{said} acknowledged rows over {kills} kills")
    assert_branch_is_whole(followed, computes, compute, said)


def test_a_killed_compute_whose_host_is_lost_loses_nothing_acknowledged(make_postgres, make_pageserver, make_computes):
    followed = follow_new(make_postgres, make_pageserver, "lost")
    followed.pageserver.allow(POSTGRES_IS_GONE)
    for number in range(3):
        computes = make_computes(followed.pageserver, f"host{number}")
        more = ["--replace"] if number else []
        compute = computes.start("one", "--branch", "lost", "--wait-for-pageserver", *more)
        if number == 0:
            said = first_row(compute)
        else:
            assert_acknowledged(compute, said)
        said = int(compute.sql("SELECT count(*) FROM acknowledged"))
        bench = compute.start_bench_on()
        # Nothing of its disk is reused.
        said = insert_until_killed(compute, said)
        bench.wait(60)
    compute.start("--wait-for-pageserver")
    said = int(compute.sql("SELECT count(*) FROM acknowledged"))
    assert compute.sql(BALANCED) == "t"
    amcheck(compute)
    compute.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_slow_network_costs_time_only(make_postgres, make_pageserver, make_computes):
    followed = follow_new(make_postgres, make_pageserver, "slow", checksums=True)
    followed.pageserver.allow(POSTGRES_IS_GONE)
    expected = checksums(followed.postgres)
    followed.catch_up()
    computes, port = make_computes(followed.pageserver), free_port()
    to_socket = computes.dir / "slow" / f".s.PGSQL.{port}"
    with (
        SlowLink.to_port(followed.pageserver.pg_port, DELAY).open() as pages,
        SlowLink.to_socket(to_socket, DELAY).open() as wal,
    ):
        computes.page_port = pages.port
        reached = ["--connstr", f"host=127.0.0.1 port={wal.port} user=postgres", "--wait-for-pageserver"]
        compute = computes.start("slow", "--branch", "slow", "--port", port, *reached)
        assert checksums(compute) == expected
        first_row(compute)
        started = time.monotonic()
        compute.sql("INSERT INTO acknowledged VALUES (2)")
        assert time.monotonic() - started > 2 * DELAY, "the commit has not waited"
        compute.bench(50)
        compute.kill()
        compute.start(*reached)
        assert_acknowledged(compute, 2)
        compute.bench(20)
        assert pages.connections > 0 and wal.connections > 0
        assert_branch_is_whole(followed, computes, compute, 2)


def test_a_full_disk_of_a_compute_loses_nothing(make_postgres, make_pageserver, make_computes, work_dir):
    followed = follow_new(make_postgres, make_pageserver, "outgrown", scale=5)
    followed.pageserver.allow(POSTGRES_IS_GONE)
    followed.catch_up()
    with small_disk(work_dir, 400) as disk:
        computes = make_computes(followed.pageserver)
        elsewhere, computes.dir = computes.dir, disk / "computes"
        try:
            compute = computes.start("full", "--branch", "full", "--set", "shared_buffers=16MB")
            said = run_full(compute, disk)
            compute.stop()
        finally:
            computes.destroy_all()
        computes.dir = elsewhere
        heir = computes.start("heir", "--branch", "full", "--copy")
        assert heir.sql(BALANCED) == "t"
        assert_acknowledged(heir, said)
        amcheck(heir)
        print(followed.assert_files_equal(heir.stop(), heir.timeline, heir.data))


def run_full(compute: Compute, disk) -> int:
    said = first_row(compute)
    ballast = fill(disk / "ballast", leave_mib=12)
    # Fetched data is readable, and leaves the room to what is written.
    assert compute.sql("SELECT count(*), sum(abalance) FROM pgbench_accounts") == "500000|0"
    assert free_mib(disk) > 11
    bench = compute.start_bench_on()
    moment = time.monotonic() + 20
    while time.monotonic() < moment and inserts(compute, said + 1):
        said += 1
    assert said > 1
    free = free_mib(disk)
    ballast.unlink()
    print(f"{said} rows were acknowledged before the disk was full ({free:.1f} MiB left); then it is {compute.state()}")
    bench.terminate()
    bench.wait(60)
    # Where WAL had no room the server is gone; what waited for room continues.
    answers_alone(compute)
    assert_acknowledged(compute, said)
    assert compute.sql(BALANCED) == "t"
    compute.bench(500)
    amcheck(compute)
    return int(compute.sql("SELECT count(*) FROM acknowledged"))


def answers_alone(compute: Compute):
    """Waits until the server has room for everything it has to write, and nobody else writes; starts it if it is
    gone."""

    def is_there():
        if compute.state() != "running":
            compute.computes.pagectl("compute", "start", compute.name)
        clients = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        command = ["psql", "-XqAt", *compute.connection(), "-c", "CHECKPOINT", "-c", clients]
        return compute.run(*command, check=False, timeout=120).stdout.strip() == "1"

    wait_until(is_there, 120, every=0.5, what="an answer of the compute")


def test_a_reader_whose_branch_is_deleted_is_told_why(make_postgres, make_pageserver, make_computes):
    followed = follow_new(make_postgres, make_pageserver, "deleted")
    computes = make_computes(followed.pageserver)
    made = computes.pagectl("branch", "create", "short")
    assert made.code == 0, made.text
    reader = computes.start("reader", "--branch", "short", "--read-only")
    assert reader.sql("SELECT count(*) FROM pgbench_branches") == "1"
    gone = computes.pagectl("branch", "delete", "short")
    assert gone.code == 0, gone.text
    done = reader.run("psql", *reader.connection(), "-c", "SELECT sum(abalance) FROM pgbench_accounts", check=False)
    assert done.returncode != 0 and "could not read block" in done.stderr, done.stderr
    said = (reader.dir / "fs.log").read_text()
    assert "the branch that this compute was started from is deleted" in said, said
    reader.stop()


# Runs a command that may not mount. The directory given first is replaced by a device directory without FUSE.
LACKING = {
    "helper": """shift; exec setpriv --bounding-set -sys_admin --inh-caps -sys_admin "$@" """,
    "device": """mount -t tmpfs none "$1"
        for device in null urandom; do touch "$1/$device"; mount --bind "/dev/$device" "$1/$device"; done
        mount --rbind "$1" /dev; shift; exec "$@" """,
}


@pytest.mark.parametrize(
    ("lacking", "names"), [("helper", "may not mount, and fusermount3 "), ("device", "/dev/fuse is not there")]
)
def test_what_is_missing_for_the_file_system_is_said(
    make_postgres, make_pageserver, make_computes, work_dir, lacking, names
):
    if os.getuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("NOT TESTED: capabilities are taken away from root by setpriv")
    followed = follow_new(make_postgres, make_pageserver, f"lacking-{lacking}")
    computes = make_computes(followed.pageserver)
    command = [str(program("pagectl")), "compute", "start", "c", "--branch", "b"]
    wrapped = ["unshare", "--mount", "sh", "-ec", LACKING[lacking], "sh", str(work_dir), *command]
    refused = subprocess.run(wrapped, capture_output=True, text=True, timeout=60, env=computes.environment())
    assert refused.returncode != 0
    assert names in refused.stderr and "--copy" in refused.stderr, refused.stderr
    assert computes.names() == []
