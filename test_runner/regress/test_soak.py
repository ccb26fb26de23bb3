"""Mixed work for as long as requested, with everything a server can do at once; then every page is compared."""

import itertools
import random
import time

import pytest

from fixtures import lsn as lsns
from fixtures import workload
from fixtures.followed import follow_new
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.postgres import Postgres
from fixtures.redo import run_script

SEED = 20261121

REWRITE = "CLUSTER pgbench_tellers USING pgbench_tellers_pkey"

# Work that only a server with, or without, logged hints does.
KINDS = {
    "plain": {"full_page_writes": "off", "autovacuum": "on", "autovacuum_naptime": "1s"},
    "logged-hints": {"wal_log_hints": "on", "wal_compression": "lz4", "autovacuum": "on", "autovacuum_naptime": "1s"},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_mixed_load_ends_in_equal_pages(kind, make_postgres, make_pageserver, pagectl_binary, request):
    minutes = request.config.getoption("--soak-minutes")
    followed = follow_new(
        make_postgres, make_pageserver, f"soak-{kind}", scale=2, settings={"checkpoint_distance": 8 << 20},
        allow_in_place_tablespaces="on", synchronous_commit="off", **KINDS[kind],
    )
    followed.pageserver.allow(POSTGRES_IS_GONE)
    pg = followed.postgres
    everything(pg)
    bench = pg.start_bench(seconds=int(minutes * 60) + 1)
    rounds, branches = churn(followed, minutes)
    bench.wait(60)
    followed.catch_up(timeout=300)
    mib = lsns.parse(followed.timeline.last_record_lsn()) >> 20
    print(f"{rounds} rounds in {minutes} minutes, WAL up to {mib} MiB, {len(branches)} branches, seed {SEED}")
    followed.stop_and_verify(pagectl_binary)


def everything(pg: Postgres):
    """Every record type that SQL can reach, before the rest begins."""
    variables = ["-v", "ON_ERROR_STOP=1", "-v", f"conn=host={pg.sockets} user=postgres", "-v", "heavy=0"]
    run_script(pg, "psql", "all_record_types.sql", "-X", "-q", *variables, "-v", "skip_gist_delete=0")


def churn(followed, minutes: float) -> tuple[int, list]:
    """Works in another database each round, so that rounds do not interfere, while branches come and go."""
    pg, chance = followed.postgres, random.Random(SEED)
    end, branches = time.monotonic() + minutes * 60, []
    for number in itertools.count():
        name = f"round_{number}"
        pg.sql(f"CREATE DATABASE {name} STRATEGY {chance.choice(['wal_log', 'file_copy'])}")
        works = [workload.ddl, workload.vacuum, workload.truncate]
        chance.shuffle(works)
        for work in works:
            work(pg, name)
        two_phase(pg, name, chance)
        pg.sql("VACUUM FULL pgbench_tellers; CHECKPOINT" if number % 3 else REWRITE)
        branches.append(followed.timeline.branch(followed.timeline.last_record_lsn()))
        if len(branches) > 3:
            branches.pop(0).delete()
        if number > 2:
            pg.sql(f"DROP DATABASE round_{number - 2}")
        if time.monotonic() > end:
            return number + 1, branches


def two_phase(pg: Postgres, db: str, chance: random.Random):
    pg.sql(
        f"BEGIN; CREATE TABLE prepared AS SELECT g AS id FROM generate_series(1, {chance.randint(1, 3000)}) g; "
        f"SAVEPOINT s; INSERT INTO prepared VALUES (1); PREPARE TRANSACTION '{db}'", db,
    )
    # Some stay, and keep their database.
    pg.sql(f"{chance.choice(['COMMIT', 'ROLLBACK'])} PREPARED '{db}'", db)
