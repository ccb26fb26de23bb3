#!/usr/bin/env python3
"""Makes commit.md from commit.json, with what is asked beside each figure."""

import os
import sys
from pathlib import Path
from statistics import median

import artifact

# With a journal, of a stock standby: times of transactions, their rate; syncs of 4 commits of many servers; processor
# time of the intake, of that without a journal.
TIME, RATE, SYNCS, CPU = 1.1, 0.95, 1.3, 1.1
WHO = {"nobody": "nobody", "standby": "the disk of a stock standby", "journal": "the pageserver's journal",
       "memory": "the pageserver's memory (`remote_write`)"}
ARGS = os.environ.get("BENCH_COMMIT_ARGS")
WITH = f"BENCH_COMMIT_ARGS='{ARGS}' " if ARGS else ""


def rounds_of(results, who, clients):
    return [one for one in results["waits"] if one["waits_for"] == who and one["clients"] == clients]


def middle(results, who, clients, name) -> float:
    return median(one[name] for one in rounds_of(results, who, clients))


def intake(results, journal, name) -> float:
    return median(one[name] for one in results["intake"] if one["journal"] == journal)


def clients_of(results):
    return sorted({one["clients"] for one in results["waits"]})


def asked(results):
    def ratio(clients, name):
        return middle(results, "journal", clients, name) / middle(results, "standby", clients, name)

    checks = []
    for clients in clients_of(results):
        of = f"{clients} clients: of a stock standby's"
        for name, what in (("p50_us", "median"), ("p99_us", "p99")):
            found = ratio(clients, name)
            checks.append((f"{of} {what} (at most {TIME})", f"{found:.2f}", found <= TIME))
        found = ratio(clients, "per_s")
        checks.append((f"{of} transactions per second (at least {RATE})", f"{found:.2f}", found >= RATE))
    group = results["group"]
    checks.append((f"{group['servers']} servers with {group['clients']} clients each: syncs of 4 commits "
                   f"(at most {SYNCS})", f"{group['syncs_per_4_commits']:.2f}",
                   group["syncs_per_4_commits"] <= SYNCS))
    cpu = intake(results, True, "cpu_ms_per_mib") / intake(results, False, "cpu_ms_per_mib")
    checks.append((f"processor time of the intake, of that without a journal (at most {CPU})", f"{cpu:.2f}",
                   cpu <= CPU))
    yield from ("| what | measured | reached |", "|---|---|---|")
    yield from (f"| {what} | {value} | {artifact.verdict(reached)} |" for what, value, reached in checks)


def waits(results):
    yield from ("| clients | a commit waits for | per second | rounds | median ms | p99 ms | ms of processor time per "
                "MiB of WAL, of who is waited for | commits per sync |", "|---|---|---|---|---|---|---|---|")
    for clients in clients_of(results):
        for who, name in WHO.items():
            rounds = rounds_of(results, who, clients)
            rates = [one["per_s"] for one in rounds]
            cpu = f"{middle(results, who, clients, 'cpu_ms_per_mib'):.1f}" if "cpu_ms_per_mib" in rounds[0] else ""
            shared = (f"{middle(results, who, clients, 'commits_per_sync'):.2f}"
                      if "commits_per_sync" in rounds[0] else "")
            yield (f"| {clients} | {name} | {median(rates):,.0f} | {min(rates):,.0f} to {max(rates):,.0f} | "
                   f"{middle(results, who, clients, 'p50_us') / 1000:.2f} | "
                   f"{middle(results, who, clients, 'p99_us') / 1000:.2f} | {cpu} | {shared} |")


def others(results):
    group = results["group"]
    yield (f"* {group['servers']} servers, {group['clients']} clients each, one pageserver: {group['commits']:,} "
           f"commits, {group['per_s']:,.0f} per second, {group['syncs']:,} syncs of the journal")
    for journal, name in ((False, "without a journal"), (True, "with one")):
        yield (f"* catching up with {results['intake'][0]['wal_mib']:,} MiB of WAL, {name}: "
               f"{intake(results, journal, 'mib_per_s'):,.0f} MiB/s, "
               f"{intake(results, journal, 'cpu_ms_per_mib'):.2f} ms of processor time per MiB")


def check(results):
    """Refuses results that have no pairs."""
    for clients in clients_of(results):
        counts = {len(rounds_of(results, who, clients)) for who in WHO}
        if len(counts) != 1 or 0 in counts:
            raise artifact.Refused(f"{clients} clients: not everybody was waited for as often")
    if not results["group"]["commits"] or not any(one["journal"] for one in results["intake"]):
        raise artifact.Refused("nothing was committed, or taken in")


def make():
    directory = Path(sys.argv[1])
    read = artifact.read(directory / "commit.json")
    results = read["results"]
    check(results)
    header = artifact.header("What a commit waits for", f"`{WITH}make bench-commit`", {"commit": read},
                             f"* pgbench's TPC-B, scale {results['scale']}, {results['seconds']} s a round; Postgres, "
                             "its follower and the clients share disk and cores")
    lines = ("## Asked", "", *asked(results), "", "## Who is waited for", "", "Medians of the rounds:", "",
             *waits(results), "", "## Many servers, and the intake", "", *others(results), "")
    artifact.report(directory / "commit.md", [*header, *lines])


if __name__ == "__main__":
    artifact.refusing(make)
