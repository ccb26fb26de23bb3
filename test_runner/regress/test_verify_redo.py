"""The verification of redo finds differences; one that could not fail would prove nothing."""

import pytest

from fixtures import redo
from fixtures.workdir import copy_tree


@pytest.fixture(scope="module")
def history(make_postgres, module_dir):
    """A few transactions whose pages come from their files, because no image replaces them. Returns the server, its
    start, a table."""
    server = make_postgres("few", **{**redo.CHECK_IMAGES, "full_page_writes": "off"})
    with server.running():
        server.bench_init(1)
    start = server.copy_stopped(module_dir / "start")
    with server.running():
        server.bench(200)
        table = server.sql("SELECT pg_relation_filepath('pgbench_branches')")
    return server, start, table


def flip_last_tuple(file):
    """The last byte of a page is the end of its first tuple."""
    page = bytearray(file.read_bytes())
    page[8191] ^= 1
    file.write_bytes(page)


def test_a_page_that_was_different_before_its_record_is_found(history, pagectl, work_dir, verify_redo):
    server, start, table = history
    verify_redo("few", server, start)
    wrong = copy_tree(start, work_dir / "wrong")
    flip_last_tuple(wrong / table)
    args = ["--base", wrong, "--wal", server.data / "pg_wal", "--final", server.data]
    done = pagectl.refuse("verify-redo", *args, names=["Heap/HOT_UPDATE .* block 0.* bytes from", "redo differs"])
    assert done.number("different") > 0, done.text


def test_a_file_that_is_not_what_the_records_make_is_found(history, pagectl, work_dir):
    server, start, table = history
    last = copy_tree(server.data, work_dir / "last")
    flip_last_tuple(last / table)
    args = ["--base", start, "--wal", last / "pg_wal", "--final", last]
    pagectl.refuse("verify-redo", *args, names=["relation .* block 0", "redo differs"])
    pagectl.ok("verify-redo", *args[:4])


def test_files_of_another_moment_are_refused(history, pagectl):
    server, start, _ = history
    args = ["--base", start, "--wal", server.data / "pg_wal", "--final", start]
    pagectl.refuse("verify-redo", *args, names=["but the WAL ends at"])
