"""Figures of `bench_ingest` and of another program that uses the same ids, from alternating rounds: A B B A."""

import json
import re
from pathlib import Path
from statistics import mean

VOLUME_MIB = 128
# The common prefix of every id; another program's may continue after it.
ID = re.compile(r"io_mode=(?P<mode>\S+) volume_mib=(?P<volume>\d+) key_size_bytes=(?P<bytes>\d+)"
                r" key_layout=(?P<layout>\S+) write_delta=(?P<delta>\S+)(?P<rest>( \S+=\S+)*)$")


class Ambiguous(Exception):
    """Several of the other program's cases correspond to one of ours."""


def parse(text: str):
    """(mode, bytes, layout, delta) of an id, and the rest; None for the id of something else."""
    found = ID.match(text)
    if not found or int(found["volume"]) != VOLUME_MIB:
        return None
    return (found["mode"], found["bytes"], found["layout"], found["delta"]), found["rest"].strip()


def medians(home: Path) -> dict:
    """MiB/s by case, from criterion's own files below `home`."""
    rates, rests = {}, {}
    for path in sorted(home.glob("ingest/*/new/benchmark.json")):
        parsed = parse(json.loads(path.read_text())["value_str"] or "")
        if parsed is None:
            continue
        case, rest = parsed
        if case in rates:
            raise Ambiguous(f"{home}: both '{rests[case]}' and '{rest}' of case {' '.join(case)}: have the program run "
                            "one of them, for instance by a script that passes criterion a filter")
        seconds = json.loads(path.with_name("estimates.json").read_text())["median"]["point_estimate"] / 1e9
        rates[case], rests[case] = VOLUME_MIB / seconds, rest
    return rates


def rounds(target: Path, who: str) -> list[dict]:
    """The medians of each round of ours (`ours`) or the other's (`baseline`), in order."""
    return [medians(home) for home in sorted((target / "rounds").glob(f"*-{who}"))]


def joined(rounds: list[dict]) -> dict:
    """MiB/s by case: the mean of the rounds that have it."""
    cases = {case for one in rounds for case in one}
    return {case: mean(one[case] for one in rounds if case in one) for case in cases}
