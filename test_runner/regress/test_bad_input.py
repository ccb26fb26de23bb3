"""Damaged or foreign input: an error that names file and place, no panic, and what is stored stays intact."""

import random
import shutil

import pytest

from fixtures.lsn import SEGMENT, segment_name
from fixtures.pagectl import Pagectl
from fixtures.small_store import make_history
from fixtures.workdir import copy_tree

# A place inside a file, in any wording.
PLACE = r"(offset|byte|block|at|LSN|lsn)[ :=]*(0x)?[0-9A-Fa-f]+"


@pytest.fixture(scope="module")
def history(make_postgres, module_dir):
    return make_history(make_postgres(), module_dir / "start")


@pytest.fixture(scope="module")
def imported(history, make_pagectl):
    store = make_pagectl("imported")
    store.import_pgdata(history.start)
    return store


@pytest.fixture(scope="module")
def ingested(history, imported, make_pagectl):
    store = make_pagectl("ingested")
    copy_tree(imported.workdir, store.workdir)
    store.ingest(history.wal)
    return store


@pytest.fixture(scope="module")
def other(make_postgres):
    """An unrelated cluster."""
    server = make_postgres("other")
    with server.running():
        server.bench_init(1)
    return server


@pytest.fixture
def store(imported, work_dir) -> Pagectl:
    """A fresh copy of the store as imported."""
    copy_tree(imported.workdir, work_dir / "store")
    return Pagectl(imported.binary, work_dir / "store")


@pytest.fixture
def wal(history, work_dir):
    """A copy of the WAL, to be damaged."""
    directory = copy_tree(history.wal, work_dir / "wal")
    for entry in directory.iterdir():
        if not entry.is_file():
            shutil.rmtree(entry)
    return directory


def flip(file, at, bit=0):
    """Flips one bit."""
    with open(file, "r+b") as handle:
        handle.seek(at)
        byte = handle.read(1)[0]
        handle.seek(at)
        handle.write(bytes([byte ^ (1 << bit)]))


def segments(server, wal):
    """The segments from the one with the start of ingest on, without those that were only recycled for later."""
    found = server.wal_segments(wal)
    last = segment_name(server.checkpoint_lsn())
    return [segment for segment in found if segment.name <= last]


def torn(segment, _other):
    """The second half was never written: it has zeros, although later segments have data."""
    with open(segment, "r+b") as handle:
        handle.truncate(SEGMENT // 2)
        handle.truncate(SEGMENT)


def truncated(segment, _other):
    with open(segment, "r+b") as handle:
        handle.truncate(SEGMENT // 3 + 17)


def emptied(segment, _other):
    segment.write_bytes(b"")


def flipped_record(segment, _other):
    flip(segment, 5 * 8192 + 4000, 3)


def flipped_page_header(segment, _other):
    flip(segment, 7 * 8192 + 9, 5)


def flipped_first_header(segment, _other):
    flip(segment, 0, 1)


def foreign(segment, other):
    shutil.copyfile(other.wal_segments()[0], segment)


def garbage(segment, _other):
    segment.write_bytes(random.Random(1).randbytes(SEGMENT))


DAMAGES = [torn, truncated, emptied, flipped_record, flipped_page_header, flipped_first_header, foreign, garbage]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_wal_segment_is_named_and_harms_nothing(damage, history, store, wal, other):
    middle = segments(history.server, wal)[2]
    assert middle != segments(history.server, wal)[-1]
    damage(middle, other)
    store.refuse("ingest", "--wal", wal, names=[middle.name, PLACE])
    store.layers()
    # With the good segments it resumes where it stood, and nothing of the damaged one is left.
    store.ingest(history.wal)
    store.verify(history.server.data)


def test_a_missing_wal_segment_is_named(history, store, wal):
    middle = segments(history.server, wal)[2]
    middle.unlink()
    store.refuse("ingest", "--wal", wal, names=[middle.name])
    store.ingest(history.wal)
    store.verify(history.server.data)


def test_a_swapped_wal_segment_is_named(history, store, wal):
    one, two = segments(history.server, wal)[1:3]
    one.rename(wal / "aside")
    two.rename(one)
    (wal / "aside").rename(two)
    store.refuse("ingest", "--wal", wal, names=[f"{one.name}|{two.name}", PLACE])
    store.ingest(history.wal)
    store.verify(history.server.data)


def test_wal_of_another_cluster_is_refused(history, store, other):
    store.refuse("ingest", "--wal", other.data / "pg_wal", names=["system identifier|another cluster|[0-9A-F]{24}"])
    store.ingest(history.wal)
    store.verify(history.server.data)


@pytest.mark.parametrize("kind", ["absent", "empty", "file"])
def test_a_wal_directory_that_is_none_is_refused(kind, store, work_dir):
    place = work_dir / "no-wal"
    if kind == "empty":
        place.mkdir()
    elif kind == "file":
        place.write_bytes(b"not a directory")
    store.refuse("ingest", "--wal", place, names=["no-wal"])


def layer_copy(ingested, work_dir, at=0):
    """A copy of the store, and one of its layer files: the largest by default."""
    copy_tree(ingested.workdir, work_dir / "store")
    store = Pagectl(ingested.binary, work_dir / "store")
    files = sorted(store.layer_files(), key=lambda file: -file.stat().st_size)
    return store, files[at]


@pytest.mark.parametrize("which", [0, -1], ids=["largest", "smallest"])
def test_a_flipped_bit_in_a_layer_file_is_found_wherever_it_is(which, ingested, work_dir):
    store, layer = layer_copy(ingested, work_dir, which)
    chance = random.Random(layer.stat().st_size)
    size = layer.stat().st_size
    places = [0, 1, size - 1, size - 2, size // 2] + [chance.randrange(size) for _ in range(35)]
    good = layer.read_bytes()
    for at in places:
        flip(layer, at, chance.randrange(8))
        store.refuse("layer", "verify", layer, names=[layer.name, PLACE])
        layer.write_bytes(good)
    store.ok("layer", "verify", layer)


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.999])
def test_a_truncated_layer_file_is_refused(share, ingested, work_dir):
    store, layer = layer_copy(ingested, work_dir)
    with open(layer, "r+b") as handle:
        handle.truncate(int(layer.stat().st_size * share))
    store.refuse("layer", "verify", layer, names=[layer.name])
    store.refuse("layer", "dump", layer, names=[layer.name])


def test_damage_in_a_layer_is_never_read_as_a_page(history, ingested, work_dir):
    store, layer = layer_copy(ingested, work_dir)
    size = layer.stat().st_size
    for at in range(size // 5, size, size // 5):
        flip(layer, at)
    store.refuse("digest", "--lsn", history.last_lsn, names=[layer.name, PLACE])
    store.refuse("verify", "--pgdata", history.server.data, names=[layer.name, PLACE])


def test_a_layer_file_that_is_none_is_refused(ingested, work_dir):
    store = Pagectl(ingested.binary, work_dir / "store")
    for name, data in [("empty", b""), ("text", b"hello\n"), ("zeros", bytes(65536)),
                       ("random", random.Random(2).randbytes(65536))]:
        file = work_dir / name
        file.write_bytes(data)
        store.refuse("layer", "verify", file, names=[name])
        store.refuse("layer", "dump", file, names=[name])
    store.refuse("layer", "verify", work_dir / "absent", names=["absent"])


def test_a_missing_layer_file_is_named(history, ingested, work_dir):
    store, layer = layer_copy(ingested, work_dir)
    layer.unlink()
    store.refuse("digest", "--lsn", history.last_lsn, names=[layer.name])


def break_control(data, _server):
    flip(data / "global" / "pg_control", 40)


def remove_control(data, _server):
    (data / "global" / "pg_control").unlink()


def cut_control(data, _server):
    (data / "global" / "pg_control").write_bytes(b"short")


def other_version(data, _server):
    (data / "PG_VERSION").write_text("9.6\n")


def cut_relation(data, server):
    path = data / "base"
    database = next(entry for entry in sorted(path.iterdir()) if (entry / "1259").exists())
    with open(database / "1259", "r+b") as handle:
        handle.truncate(8192 * 2 + 100)


def break_relmap(data, _server):
    flip(data / "global" / "pg_filenode.map", 20)


@pytest.mark.parametrize(
    "damage, name",
    [
        (break_control, "pg_control"),
        (remove_control, "pg_control"),
        (cut_control, "pg_control"),
        (other_version, "PG_VERSION|9.6"),
        (cut_relation, "1259"),
        (break_relmap, "pg_filenode.map"),
    ],
    ids=lambda value: getattr(value, "__name__", "file"),
)
def test_a_damaged_data_directory_is_refused(damage, name, history, pagectl, work_dir):
    data = copy_tree(history.start, work_dir / "data")
    damage(data, history.server)
    pagectl.refuse("import", "--pgdata", data, names=[name])
    # Nothing half-done blocks the import of the good one.
    pagectl.import_pgdata(history.start)
    pagectl.verify(history.start)


def test_a_directory_of_a_running_or_crashed_server_is_refused(other, pagectl, work_dir):
    server = other
    server.start()
    try:
        copy = copy_tree(server.data, work_dir / "copy")
    finally:
        server.stop()
    (copy / "postmaster.pid").unlink()
    pagectl.refuse("import", "--pgdata", copy, names=["shut down|stopped|pg_control|state"])


@pytest.mark.parametrize("kind", ["absent", "empty", "file"])
def test_a_data_directory_that_is_none_is_refused(kind, pagectl, work_dir):
    place = work_dir / "no-data"
    if kind == "empty":
        place.mkdir()
    elif kind == "file":
        place.write_bytes(b"not a directory")
    pagectl.refuse("import", "--pgdata", place, names=["no-data"])


def test_a_second_import_is_refused_and_harms_nothing(history, store, other):
    store.refuse("import", "--pgdata", other.data)
    store.layers()
    store.verify(history.start)


def test_verify_finds_a_changed_file(history, ingested, work_dir):
    data = history.server.copy_stopped(work_dir / "data")
    files = sorted(path for path in (data / "base").rglob("*") if path.name == "1259")
    flip(files[-1], 8192 - 16)
    done = ingested.refuse("verify", "--pgdata", data, names=["1259"])
    assert done.number("different") == 1, done.text


def test_an_empty_store_answers_nothing(pagectl):
    pagectl.refuse("getpage", "--rel", "1663/1/1259", "--block", 0, "--lsn", "0/1000000")
    pagectl.refuse("digest", "--lsn", "0/1000000")


@pytest.mark.parametrize("args", [[], ["nonsense"], ["getpage"], ["layer", "verify"], ["ingest", "--wal"]])
def test_wrong_arguments_are_refused(args, pagectl):
    pagectl.refuse(*args)
