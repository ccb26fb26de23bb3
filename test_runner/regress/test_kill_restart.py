"""Ingest that is killed at any moment and restarted ends in the same state as an uninterrupted one."""

import random
import shutil
import signal
import subprocess
import time

import pytest

from fixtures.small_store import make_history
from fixtures.workdir import copy_tree

KILLS = 100
# Small layers are written out throughout, the large one only at the end.
LAYER_MIB = [1, 1, 2, 8, 256]
SEED = 20261121


@pytest.mark.slow
def test_killed_ingest_ends_in_the_same_state(make_postgres, make_pagectl, module_dir):
    history = make_history(make_postgres(), module_dir / "start", transactions=15_000)
    imported = make_pagectl("imported")
    imported.import_pgdata(history.start)

    reference = make_pagectl("reference")
    copy_tree(imported.workdir, reference.workdir)
    began = time.monotonic()
    reference.ok("ingest", "--wal", history.wal, "--layer-mib", 1)
    seconds = time.monotonic() - began
    expected = reference.digest(history.last_lsn)
    assert expected != reference.digest(history.start_lsn), "the digest tells states apart"
    reference.verify(history.server.data)

    chance = random.Random(SEED)
    kills = rounds = 0
    while kills < KILLS:
        rounds += 1
        assert rounds <= 4 * KILLS, f"only {kills} kills met a running ingest"
        store = make_pagectl(f"killed-{rounds}")
        copy_tree(imported.workdir, store.workdir)
        # A round ends when a run completes; each run may be killed, more often early on.
        for _ in range(chance.randint(1, 12)):
            if not killed_at(store, history.wal, chance.choice(LAYER_MIB), seconds * chance.random() ** 2):
                break
            kills += 1
        store.ingest(history.wal)
        assert store.digest(history.last_lsn) == expected, f"round {rounds} of seed {SEED} ended in another state"
        if rounds % 10 == 1:
            store.layers()
            store.verify(history.server.data)
        shutil.rmtree(store.workdir)
    print(f"{kills} kills in {rounds} rounds, one ingest takes {seconds:.2f} s, seed {SEED}")


def killed_at(store, wal, layer_mib: int, delay: float) -> bool:
    """Kills an ingest after `delay` seconds; false if it had already ended."""
    process = store.start("ingest", "--wal", wal, "--layer-mib", layer_mib)
    try:
        process.wait(timeout=delay)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    assert b"panicked" not in errors, errors.decode(errors="replace")
    assert process.returncode in (0, -signal.SIGKILL), errors.decode(errors="replace")
    return process.returncode == -signal.SIGKILL


def test_a_second_ingest_of_the_same_wal_changes_nothing(make_postgres, pagectl, module_dir):
    history = make_history(make_postgres("again"), module_dir / "start-again", transactions=500)
    pagectl.import_pgdata(history.start)
    pagectl.ingest(history.wal)
    before = pagectl.digest(history.last_lsn)
    pagectl.ingest(history.wal)
    assert pagectl.digest(history.last_lsn) == before
    pagectl.verify(history.server.data)
