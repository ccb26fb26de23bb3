"""Single pages: as of any LSN, and as a person would ask for them."""

import pytest

from fixtures.lsn import after_shutdown, parse, show

BLOCK_BYTES = 8192


class Case:
    """A table whose only page changed three times, with an LSN after each change."""

    def __init__(self, server, pagectl, target):
        self.server, self.pagectl = server, pagectl
        with server.running():
            server.sql("CREATE TABLE before_import AS SELECT g AS id FROM generate_series(1, 5000) g")
        pagectl.import_pgdata(server.copy_stopped(target))
        self.lsns, self.pages = [], []
        for text in ("first", "second", "third"):
            with server.running():
                if text == "first":
                    server.sql("CREATE TABLE t (v text)")
                    path = server.sql("SELECT pg_relation_filepath('t')")
                server.sql(f"INSERT INTO t VALUES ('{text} value')")
            # Nothing has read the table since, so the server has set no hint bit: the file has what its WAL says.
            self.lsns.append(after_shutdown(server.checkpoint_lsn()))
            self.pages.append((server.data / path).read_bytes()[:BLOCK_BYTES])
        database, relation = path.split("/")[1:]
        self.rel = f"1663/{database}/{relation}"
        self.database = database
        pagectl.ingest(server.data / "pg_wal")


@pytest.fixture(scope="module")
def case(make_postgres, make_pagectl, module_dir):
    return Case(make_postgres(), make_pagectl("store"), module_dir / "start")


def test_each_version_is_the_servers_byte_for_byte(case, work_dir):
    assert len(set(case.pages)) == 3
    for lsn, expected in zip(case.lsns, case.pages):
        assert case.pagectl.page(case.rel, 0, lsn, work_dir / "page") == expected, f"page at {lsn}"


def test_a_page_does_not_change_between_two_of_its_records(case, work_dir):
    page_lsn = int.from_bytes(case.pages[1][0:4], "little") << 32 | int.from_bytes(case.pages[1][4:8], "little")
    assert case.pagectl.page(case.rel, 0, show(page_lsn), work_dir / "at") == case.pages[1]
    assert case.pagectl.page(case.rel, 0, show(page_lsn - 8), work_dir / "below") == case.pages[0]


def test_an_imported_page_is_there_at_every_lsn(case, work_dir):
    path = case.server.data / "base" / case.database
    large = [file.name for file in sorted(path.iterdir()) if file.name.isdigit() and file.stat().st_size >= 81920]
    relation = large[0]
    rel = f"1663/{case.database}/{relation}"
    pages = {case.pagectl.page(rel, 3, lsn, work_dir / "page") for lsn in case.lsns}
    assert len(pages) == 1
    assert len(pages.pop()) == BLOCK_BYTES


def test_show_names_the_header_and_every_line_pointer(case, work_dir):
    done = case.pagectl.ok("page", "show", "--rel", case.rel, "--block", 0, "--lsn", case.lsns[2])
    lower = int.from_bytes(case.pages[2][12:14], "little")
    upper = int.from_bytes(case.pages[2][14:16], "little")
    assert str(lower) in done.stdout and str(upper) in done.stdout, done.text
    file = work_dir / "page"
    file.write_bytes(case.pages[2])
    from_file = case.pagectl.ok("page", "show", "--file", file)
    pointers = [line for line in done.stdout.splitlines() if "8160" in line or "8128" in line or "8152" in line]
    assert pointers, done.text
    for line in pointers:
        assert line in from_file.stdout, f"{done.text}\n{from_file.text}"


def test_status_names_the_last_lsn(case):
    done = case.pagectl.ok("status")
    assert case.lsns[2] in done.stdout, done.text


@pytest.mark.parametrize(
    "rel, block, lsn, message",
    [
        ("1663/1/99999999", 0, None, "99999999"),
        ("1663/99999999/1259", 0, None, "99999999|relation"),
        ("rel", 1 << 20, None, r"1048576|block"),
        ("nonsense", 0, None, "nonsense"),
        ("1663/1", 0, None, "1663/1"),
        ("1663/1/2/3", 0, None, "1663/1/2/3"),
        ("1663/1/1259_nofork", 0, None, "nofork"),
        ("99999999999999999999/1/1259", 0, None, "99999999999999999999"),
        ("rel", -1, None, "block|-1"),
        ("rel", "12x", None, "12x"),
        ("rel", 0, "nonsense", "nonsense"),
        ("rel", 0, "FFFFFFFFF/0", "FFFFFFFFF"),
        ("rel", 0, "0/0", "0/0|LSN|lsn"),
        ("rel", 0, "0/8", "0/8|LSN|lsn"),
    ],
)
def test_a_page_that_is_not_there_is_refused(case, rel, block, lsn, message):
    rel = case.rel if rel == "rel" else rel
    lsn = lsn or case.lsns[2]
    case.pagectl.refuse("getpage", f"--rel={rel}", f"--block={block}", f"--lsn={lsn}", names=[message])


def test_a_page_of_the_future_is_refused(case):
    future = show(parse(case.lsns[2]) + 0x1000000)
    case.pagectl.refuse("getpage", "--rel", case.rel, "--block", 0, "--lsn", future, names=[future])
