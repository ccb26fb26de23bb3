"""A disk that writes a few times a second under the journal of the owner, or of its standby."""

import statistics

import pytest

from fixtures.fleet import Writer
from fixtures.slow_disk import slow_disk
from regress.test_quorum import begin, forget_files, lose, replace

pytestmark = pytest.mark.daily

WRITES_A_SECOND = 4


def pauses(writer: Writer, count: int) -> list[float]:
    """Between acknowledged rows, of which so many come from now on."""
    first = len(writer.rows)
    writer.wait_for_rows(first + count, timeout=120)
    at = [moment for _, moment in writer.rows[first:]]
    return [later - earlier for earlier, later in zip(at, at[1:])]


@pytest.mark.parametrize("quorum", [1, 2])
@pytest.mark.parametrize("who", ["owner", "standby"])
def test_a_slow_journal_disk(who, quorum, make_fleet, make_computes, work_dir):
    """Commits for which one server is enough do not wait for the slow one, those of two do. What one has acknowledged
    survives the loss of the slow one, what two have that of the other one, with its disk and the compute."""
    made = []
    with slow_disk(work_dir, 600) as (disk, slow):

        def prepare(server):
            made.append(server)
            if len(made) == (1 if who == "owner" else 2):
                server.workdir.mkdir(parents=True, exist_ok=True)
                (server.workdir / "journal").symlink_to(disk)

        settings = {"journal_size": 128 << 20, "takeover_after": "4s"}
        fleet, computes, compute = begin(make_fleet, make_computes, "--quorum", str(quorum), settings=settings,
                                         prepare=prepare)
        slow_one, other = fleet.servers if who == "owner" else fleet.servers[::-1]
        assert any(disk.glob("0*")), "its journal is elsewhere"
        with Writer(compute, "acknowledged") as writer:
            before = statistics.median(pauses(writer, 30))
            slow(slow_one.process.pid, WRITES_A_SECOND)
            # What was on its way.
            pauses(writer, 3)
            during = statistics.median(pauses(writer, 10))
            compute.kill()
        rows = len(writer.rows)
        print(f"{who}, ANY {quorum}: a row each {before * 1e3:.1f} ms, {during * 1e3:.1f} ms with the slow disk")
        assert (during > 0.5 / WRITES_A_SECOND) == (quorum == 2), f"{before} s, {during} s with the slow disk"
        forget_files(compute)
        lost, left = (slow_one, other) if quorum == 1 else (other, slow_one)
        if lost is slow_one:
            lost.kill()
            # It had been elsewhere.
            (lost.workdir / "journal").unlink()
            (lost.workdir / "journal").mkdir()
        lose(lost)
        fleet.wait_for_owner(left, timeout=60)
        heir = replace(fleet, left, make_computes)
        assert heir.sql(f"SELECT count(*) FROM acknowledged WHERE i <= {rows}") == str(rows) and rows > 40
        heir.stop()
        left.stop(60)
