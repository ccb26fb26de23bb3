"""The tools of the other tests detect what they are meant to detect."""

import struct

import pytest

from fixtures import hints, lsn, masks
from fixtures.compare import raced_hints
from fixtures.followed import rel_of
from fixtures.pageserver import Pageserver
from fixtures.pagestream import Refused, Rel, exists, get_page, parse, slru_segment


def heap_page(tuples=20) -> bytearray:
    """A page of a table: line pointers, and tuples of 32 bytes from its end."""
    page = bytearray(8192)
    lower, upper = 24 + 4 * tuples, 8192 - 32 * tuples
    struct.pack_into("<IIHHHHHH", page, 0, 0, 0x1234, 77, 0, lower, upper, 8192, 8196)
    for number in range(tuples):
        offset = 8192 - 32 * (number + 1)
        struct.pack_into("<I", page, 24 + 4 * number, offset | 1 << 15 | 32 << 17)
        struct.pack_into("<IIIIHHHB", page, offset, 700, 0, 3, 0, number + 1, 2, 0x0100, 24)
        page[offset + 24 : offset + 32] = b"rowrowro"
    return page


def test_a_page_differs_by_any_byte_that_is_logged():
    page = bytes(heap_page())
    found = set()
    for at in range(8192):
        other = bytearray(page)
        other[at] ^= 0x40 if at != 8190 else 1
        where = masks.differs(masks.MAIN, page, bytes(other))
        if where is not None:
            found.add(at)
    hole = set(range(24 + 80, 8192 - 640))
    # Checksum, pd_prune_xid, the hole, and the command id of each tuple.
    ignored = {8, 9, 20, 21, 22, 23} | hole
    for number in range(20):
        offset = 8192 - 32 * (number + 1)
        ignored |= set(range(offset + 8, offset + 12))
    # Without the bytes that identify the kind of page the rest cannot be masked: no byte of the header is ignored then.
    assert set(range(8192)) - found == ignored


# Flipped bits, and whether they may be ignored. The tuples have xmin committed: together with 0x0200 that means frozen,
# which is logged.
HINTS = {0x0100: True, 0x0400: True, 0x0800: True, 0x0020: True, 0x0200: False, 0x0001: False, 0x2000: False}


@pytest.mark.parametrize("bits, hidden", HINTS.items())
def test_of_a_tuples_bits_only_hints_are_passed_over(bits, hidden):
    page, other = heap_page(), heap_page()
    at = 8192 - 32 + 20
    struct.pack_into("<H", other, at, masks.u16(page, at) ^ bits)
    assert (masks.differs(masks.MAIN, bytes(page), bytes(other)) is None) == hidden


def test_only_pages_that_were_never_used_are_taken_for_zeros():
    zeros = bytes(8192)
    empty = bytearray(8192)
    struct.pack_into("<HHHHH", empty, 10, 0, 24, 8192, 8192, 8196)
    assert masks.differs(masks.MAIN, zeros, bytes(empty)) is None
    masks.set_lsn(empty, 8)
    assert masks.differs(masks.MAIN, zeros, bytes(empty)) is not None
    assert masks.differs(masks.VM, zeros, bytes(heap_page())) is not None


def test_a_map_may_lack_bits_and_have_no_others():
    few, many = bytearray(8192), bytearray(8192)
    few[30], many[30] = 0x01, 0x05
    assert masks.lacks_bits_only(few, many) and not masks.lacks_bits_only(many, few)


def test_answers_are_read_to_the_last_byte():
    request = exists(Rel(1663, 5, 9), 7, 3, reqid=11)
    head = struct.pack(">BQQQ", 100, 11, 7, 3) + request.body
    assert parse(head + b"\1", request, 3) is True
    assert parse(b"\x64\0", request, 2) is False
    other = exists(Rel(1663, 5, 10), 7, 3, reqid=11)
    for bad in (head, head + b"\2", head + b"\1\0", head.replace(b"\x0b", b"\x0c", 1) + b"\1"):
        with pytest.raises(AssertionError):
            parse(bad, request, 3)
    with pytest.raises(AssertionError):
        parse(head + b"\1", other, 3)
    with pytest.raises(AssertionError):
        parse(b"\x66" + bytes(8191), get_page(Rel(1, 2, 3), 0), 2)
    with pytest.raises(AssertionError):
        parse(b"\x69" + struct.pack(">I", 2) + bytes(8192), slru_segment("pg_xact", 0), 2)
    with pytest.raises(Refused, match="why"):
        parse(b"\x67why\0", request, 2)


def test_the_lsn_of_an_older_hint_is_explained_by_history():
    older, newer, changed = bytearray(heap_page()), bytearray(heap_page()), bytearray(heap_page())
    masks.set_lsn(older, 80)
    masks.set_lsn(newer, 160)
    masks.set_lsn(changed, 80)
    changed[8190] ^= 1

    class History:
        def __init__(self, then):
            self.then = then

        def ask(self, _):
            return bytes(self.then)

    raced = lambda then, theirs: raced_hints(History(then), Rel(1663, 5, 1249, 0), 64, bytes(newer), bytes(theirs))
    assert raced(older, older)
    assert not raced(changed, older) and not raced(older, changed) and not raced(newer, newer)


def test_the_lsn_of_an_older_hint_is_explained_by_the_servers_wal(make_postgres):
    pg = make_postgres("hints", checksums=True).start()
    pg.sql("CREATE EXTENSION pageinspect; CREATE TABLE t (a int); CREATE TABLE u (a int)")
    for row in (1, 2):
        pg.sql(f"INSERT INTO t VALUES ({row}); INSERT INTO u VALUES ({row})")
    lsns_of_t = []
    hint = "SELECT * FROM t WHERE ctid = '(0,{})'"
    for change in (hint.format(1), hint.format(2), "UPDATE t SET a = 3"):
        pg.sql("CHECKPOINT")
        pg.sql(change)
        lsns_of_t.append(lsn.parse(pg.sql("SELECT lsn FROM page_header(get_raw_page('t', 0))")))
        # The next record about the table does not end where this one does.
        pg.sql("UPDATE u SET a = 4")
    rel, other = rel_of(pg, "t"), rel_of(pg, "u")
    pg.stop()

    def explains(here: int, there: int, rel=rel) -> bool:
        ours, theirs = heap_page(), heap_page()
        masks.set_lsn(ours, here)
        masks.set_lsn(theirs, there)
        return hints.follow(pg.data, rel, 0, ours, theirs)

    first, second, changed = lsns_of_t
    assert first < second < changed
    assert explains(second, first)
    assert not explains(second, first, other), "another page's"
    assert not explains(changed, first) and not explains(changed, second), "a change is no hint"
    assert not explains(second, first + 8) and not explains(second + 8, first), "no record ends there"
    assert not explains(second, first - 8), "no record ends there"


def test_lines_of_the_log_that_nobody_expects_are_found(work_dir):
    server = Pageserver(work_dir / "none", work_dir / "store")
    server.log.write_text("2026-11-21T17:00:00.000000Z  INFO pageserver: a WARN in the text\n")
    server.check_log()
    with open(server.log, "a") as log:
        log.write("2026-11-21T17:00:01.000000Z  WARN pageserver: expected\n")
    server.allow("WARN.*expected")
    server.check_log()
    for line in ("2026-11-21T17:00:02.000000Z ERROR pageserver: no", "thread 'main' panicked at x.rs", "x  WARN y"):
        with open(server.log, "a") as log:
            log.write(line + "\n")
        with pytest.raises(AssertionError, match="unexpected lines"):
            server.check_log()
        server.check_log()
    server.secret("hunter2")
    with open(server.log, "a") as log:
        log.write("2026-11-21T17:00:03.000000Z  INFO pageserver: password=hunter2\n")
    with pytest.raises(AssertionError, match="secrets"):
        server.check_log()
