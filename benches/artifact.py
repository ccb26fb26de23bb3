"""The artifacts of benchmarks: results, with where they were measured (topology) and what was checked (validity).

`benches/common/artifact.rs` writes the same form. A report reads artifacts through `read`, which refuses those that
prove nothing: without topology, with nothing compared, with an answer missing or different. The header of a report
also comes from here, so that nobody has to write it by hand, or could.
"""

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

FORMAT = 1
REPOSITORY = Path(__file__).resolve().parent.parent
TOPOLOGY = ("date", "commit", "dirty", "cores", "cpu", "memory_gib", "kernel", "file_system", "engine", "io_mode",
            "allocator", "profile", "store", "delay_ms", "client_on_same_cores", "load_before")
VALIDITY = ("unit", "expected", "seen", "compared", "different")
# The code that the figures measure; changes elsewhere in the repository do not make them out of date.
MEASURED = ("pageserver", "pageserver_api", "pageserver_client", "engine", "redo", "pgdata", "datadir", "compute",
            "gateway", "remote_storage", "virtual_file", "wal_decoder", "libs", "Cargo.lock")
NOT_MEASURED = (":!libs/xtask", ":!*/tests/*", ":!*/fuzz/*", ":!*.md")


class Refused(Exception):
    """An artifact that proves nothing."""


def _git(*arguments) -> str:
    return subprocess.run(["git", "-C", REPOSITORY, *arguments], capture_output=True, text=True).stdout.strip()


def topology(place, *, engine="tokio-epoll-uring", io_mode="DirectRw", allocator="jemalloc", profile="release",
             store="local disk", delay_ms=(0,), client_on_same_cores=True) -> dict:
    """Where a run takes place. Call it at the beginning, because it records the machine's load before the run."""
    names = (line for line in open("/proc/cpuinfo") if line.startswith("model name"))
    memory = int(open("/proc/meminfo").readline().split()[1])
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benches/results")
    mounted = subprocess.run(["findmnt", "-no", "FSTYPE", "-T", place], capture_output=True, text=True).stdout.strip()
    return {
        "date": datetime.now(UTC).date().isoformat(), "commit": _git("rev-parse", "--short", "HEAD") or "unknown",
        "dirty": bool(changed), "cores": os.cpu_count(),
        "cpu": next((line.split(": ", 1)[1].strip() for line in names), platform.machine()),
        "memory_gib": -(-memory // (1 << 20)), "kernel": platform.release(), "file_system": mounted or "unknown",
        "engine": engine, "io_mode": io_mode, "allocator": allocator, "profile": profile, "store": store,
        "delay_ms": list(delay_ms), "client_on_same_cores": client_on_same_cores, "load_before": os.getloadavg()[0],
    }


class Validity:
    """Counts what was checked."""

    def __init__(self, unit: str):
        self.unit, self.expected, self.seen, self.compared, self.different = unit, 0, 0, 0, 0

    def add(self, expected: int, seen: int, different: int, compared: int | None = None):
        self.expected += expected
        self.seen += seen
        self.compared += seen if compared is None else compared
        self.different += different

    def equal(self, found, wanted):
        """Checks one answer against the expected one."""
        self.add(1, 1, int(found != wanted))
        if found != wanted:
            print(f"asked for {wanted!r}, got {found!r}", file=sys.stderr)


def check(artifact, name="artifact") -> dict:
    """Returns the artifact if it proves something."""
    if not isinstance(artifact, dict) or artifact.get("format") != FORMAT:
        raise Refused(f"{name}: not of format {FORMAT}: measure again")
    for part, fields in (("topology", TOPOLOGY), ("validity", VALIDITY)):
        lacks = [field for field in fields if field not in artifact.get(part, {})]
        if lacks:
            raise Refused(f"{name}: its {part} lacks {', '.join(lacks)}")
    valid = artifact["validity"]
    if not valid["expected"] or not valid["compared"]:
        raise Refused(f"{name}: no {valid['unit']} were compared")
    if valid["seen"] != valid["expected"]:
        raise Refused(f"{name}: {valid['seen']} {valid['unit']} came of {valid['expected']} that were asked for")
    if valid["different"]:
        raise Refused(f"{name}: {valid['different']} of {valid['compared']} {valid['unit']} are different")
    if not artifact.get("results"):
        raise Refused(f"{name}: it has no results")
    return artifact


def read(path) -> dict:
    try:
        return check(json.loads(Path(path).read_text()), Path(path).name)
    except (OSError, json.JSONDecodeError) as error:
        raise Refused(f"{path}: {error}") from error


def write(path, topology: dict, validity: Validity, results):
    """Writes the artifact, unless it proves nothing."""
    path = Path(path)
    artifact = {"format": FORMAT, "bench": path.stem, "topology": topology, "validity": vars(validity),
                "results": results}
    path.write_text(json.dumps(check(artifact, path.name), indent=1) + "\n")


def newer_code(commit: str) -> list[str]:
    """Measured files that have changed since; a single explanation if the commit is unknown."""
    if not commit or commit == "unknown" or not _git("cat-file", "-t", commit):
        return ["(its commit is not in this history)"]
    return _git("diff", "--name-only", commit, "--", *MEASURED, *NOT_MEASURED).splitlines()


def _where(told: dict):
    delays = ", ".join(str(delay) for delay in told["delay_ms"])
    shared = "share the cores" if told["client_on_same_cores"] else "have cores of their own"
    yield f"* machine: {told['cores']} cores, {told['cpu']}, {told['memory_gib']} GiB; kernel {told['kernel']}"
    yield f"* files: {told['file_system']}, {told['engine']}, {told['io_mode']}; allocator {told['allocator']}"
    yield f"* store: {told['store']}; {delays} ms added to each request; client and server {shared}"


def header(title: str, command: str, artifacts: dict[str, dict], *more: str):
    """The lines above the tables of a report, from all artifacts that it uses."""
    yield from (f"# {title}", "", f"* command: {command}")
    wheres = {}
    for name, one in artifacts.items():
        wheres.setdefault(tuple(_where(one["topology"])), []).append(name)
    for where, names in wheres.items():
        yield from (where if len(wheres) == 1 else [f"* of {', '.join(names)}:", *(f"  {line}" for line in where)])
    for name, one in artifacts.items():
        told, valid = one["topology"], one["validity"]
        state = "with changes that are not committed" if told["dirty"] else "as committed"
        changed = newer_code(told["commit"])
        old = f"; **older than the code: {len(changed)} files have changed since**" if changed else ""
        yield (f"* {name}: {told['date']}, commit {told['commit']} {state}, profile {told['profile']}, load average "
               f"before {told['load_before']:.1f}; {valid['compared']:,} {valid['unit']} compared, "
               f"{valid['different']} different{old}")
    yield from (*more, "")


def verdict(reached: bool) -> str:
    """The text beside a figure that has a target."""
    return "yes" if reached else "**missed**"


def report(path, lines):
    """Writes a page."""
    Path(path).write_text("\n".join(lines))
    print(path)


def refusing(make):
    """Runs `make`; a refusal is reported, and nothing is written."""
    try:
        make()
    except Refused as refused:
        raise SystemExit(f"no report: {refused}") from refused
