"""An ordinary server's work, followed from its WAL: every page equals the server's, now and at earlier moments."""

import pytest

from fixtures import workload
from fixtures.lsn import after_shutdown

TRANSACTIONS = 50_000
SCALE = 10


class Moment:
    """A copy of the stopped server's files, and the LSN that they correspond to."""

    def __init__(self, server, target):
        self.lsn = after_shutdown(server.checkpoint_lsn())
        self.data = server.copy_stopped(target)


@pytest.mark.slow
@pytest.mark.parametrize("full_page_writes", ["on", "off"])
def test_pages_equal_the_servers_at_four_moments(full_page_writes, pg_major, make_postgres, pagectl, work_dir):
    server = make_postgres(f"fpw-{full_page_writes}-{pg_major}", major=pg_major, full_page_writes=full_page_writes)
    with server.running():
        server.bench_init(SCALE)
    start = Moment(server, work_dir / "start")
    pagectl.import_pgdata(start.data)
    pagectl.verify(start.data)

    moments = []
    for at, stage in enumerate([stage_ddl, stage_places, stage_transactions, stage_last]):
        with server.running():
            server.bench(TRANSACTIONS // 4)
            stage(server)
        if stage is not stage_last:
            moments.append(Moment(server, work_dir / f"moment-{at}"))
    last = after_shutdown(server.checkpoint_lsn())

    pagectl.ingest(server.data / "pg_wal")
    pagectl.verify(server.data)
    for moment in moments:
        pagectl.verify(moment.data, moment.lsn)
    # The latest ingest did not change what the first image holds.
    pagectl.verify(start.data, start.lsn)
    # A verify that could not fail would prove nothing, so the files of one moment must not match another.
    wrong = pagectl.refuse("verify", "--pgdata", moments[0].data, "--lsn", last)
    assert wrong.number("different") > 0, wrong.text
    pagectl.layers()
    server.destroy()


def stage_ddl(server):
    workload.ddl(server)
    workload.vacuum(server)
    workload.truncate(server)


def stage_places(server):
    workload.databases(server)
    workload.tablespace(server)


def stage_transactions(server):
    workload.two_phase(server)
    workload.multixacts(server)
    workload.savepoints(server)


def stage_last(server):
    workload.end_two_phase(server)
    server.sql("VACUUM")
    server.sql("VACUUM FULL pgbench_branches")
    server.sql("TRUNCATE pgbench_history")


def test_a_base_backup_of_a_busy_server_is_a_start(make_postgres, make_pagectl, module_dir):
    server = make_postgres("busy")
    backup = server.own(module_dir / "pg" / "backup")
    with server.running():
        server.bench_init(1)
        workload.tablespace(server, "before")
        away = server.own(module_dir / "pg" / "backup-away")
        place = server.data.parent / f"{server.data.name}-before"
        with server.session() as session:
            session.sql("BEGIN; CREATE TABLE still_open AS SELECT generate_series(1, 20000) AS id")
            bench = server.start_bench(seconds=8)
            server.run("pg_basebackup", "-D", backup, "-c", "fast", "-X", "none", *server.address(),
                       "-T", f"{place}={away}")
            session.sql("COMMIT")
            bench.wait()
        workload.vacuum(server)
    pagectl = make_pagectl("store-busy")
    pagectl.import_pgdata(backup)
    pagectl.ingest(server.data / "pg_wal")
    pagectl.verify(server.data)
