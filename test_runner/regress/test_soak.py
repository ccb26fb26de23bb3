"""Mixed work for as long as requested, with everything a server can do at once, while history goes after a while; then
every page is compared. Over longer runs neither the space for each byte of the database nor what reads search grows."""

import itertools
import random
import time
from statistics import median

import pytest

from fixtures import lsn as lsns
from fixtures import workload
from fixtures.followed import follow_new, rel_of
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.pagestream import LATEST, get_page
from fixtures.postgres import Postgres
from fixtures.redo import run_script

SEED = 20261121

# Everything happens within minutes: layers are compacted, and history goes.
QUICK = {"checkpoint_distance": 8 << 20, "compaction_target_size": 4 << 20, "pitr_interval": "30s",
         "gc_horizon": 32 << 20, "gc_period": "10s", "gc_pause_after_attach": "1ms"}
# From so many minutes on, the last quarter is compared with the second: by then history goes.
MINUTES_MIN = 5
READS = 200

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
        make_postgres, make_pageserver, f"soak-{kind}", scale=2, settings=QUICK,
        allow_in_place_tablespaces="on", synchronous_commit="off", **KINDS[kind],
    )
    followed.pageserver.allow(POSTGRES_IS_GONE)
    pg = followed.postgres
    everything(pg)
    bench = pg.start_bench(seconds=int(minutes * 60) + 1)
    health = Health(followed)
    rounds, branches = churn(followed, minutes, health)
    bench.wait(60)
    followed.catch_up(timeout=300)
    mib = lsns.parse(followed.timeline.last_record_lsn()) >> 20
    print(f"{rounds} rounds in {minutes} minutes, WAL up to {mib} MiB, {len(branches)} branches, seed {SEED}")
    health.check(minutes)
    followed.stop_and_verify(pagectl_binary)


def everything(pg: Postgres):
    """Every record type that SQL can reach, before the rest begins."""
    variables = ["-v", "ON_ERROR_STOP=1", "-v", f"conn=host={pg.sockets} user=postgres", "-v", "heavy=0"]
    run_script(pg, "psql", "all_record_types.sql", "-X", "-q", *variables, "-v", "skip_gist_delete=0")


class Health:
    """What the server is like while it works, once a round."""

    def __init__(self, followed):
        self.timeline, self.chance = followed.timeline, random.Random(SEED)
        self.accounts = rel_of(followed.postgres, "pgbench_accounts")
        # Of each round: what is stored for each byte of newest images, layers, height, L0 layers, ms of reads.
        self.samples: list[dict] = []

    def note(self):
        info, took = self.timeline.info(), []
        with self.timeline.stream(timeout=60) as stream:
            # Its first read opens what it needs.
            for block in [0, *(self.chance.randrange(3000) for _ in range(READS))]:
                began = time.monotonic()
                stream.ask(get_page(self.accounts, block, LATEST))
                took.append((time.monotonic() - began) * 1000)
        took = sorted(took[1:])
        self.samples.append({"space": info["condition"]["space_ratio"] or 0.0, "layers": info["layer_count"],
                             "height": info["height"], "l0": info["l0_layer_count"],
                             "p50": took[len(took) // 2], "p99": took[len(took) * 99 // 100]})

    def check(self, minutes: float):
        """Prints each quarter's medians. In a long run the last quarter is like the second; the first has no history
        that could go."""
        size = max(1, len(self.samples) // 4)
        quarters = [self.samples[at:at + size] for at in range(0, size * 4, size)]
        medians = [{name: median(each[name] for each in quarter) for name in quarter[0]} for quarter in quarters
                   if quarter]
        for number, found in enumerate(medians):
            print(f"quarter {number + 1}: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()))
        assert max(each["l0"] for each in self.samples) <= 12, self.samples
        if minutes >= MINUTES_MIN:
            second, last = medians[1], medians[3]
            # Times depend on the machine as well, and are printed only.
            for name in ("space", "layers", "height"):
                assert last[name] <= 1.5 * second[name] + 1, f"{name} grows: {medians}"


def churn(followed, minutes: float, health: Health) -> tuple[int, list]:
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
        health.note()
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
