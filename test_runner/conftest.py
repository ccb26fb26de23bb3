"""Registers the fixtures of fixtures/ for every test, and the options that scale the open-ended tests."""

from collections import Counter

from fixtures import servers

pytest_plugins = [
    "fixtures.skips", "fixtures.workdir", "fixtures.servers", "fixtures.postgres", "fixtures.pagectl", "fixtures.redo",
    "fixtures.pageserver", "fixtures.s3", "fixtures.computes", "fixtures.gateway", "fixtures.unprivileged",
    "fixtures.fleet", "fixtures.browser", "fixtures.collector",
]


def pytest_addoption(parser):
    parser.addoption("--pg-versions", default=servers.QUICK, help="of tests by version: 14,15,... or all; "
                     "with all, in full")
    parser.addoption("--redo-results", help="directory for what pagectl verify-redo found, one file per run")
    parser.addoption("--kills", type=int, default=30, help="SIGKILLs of the pageserver under load")
    parser.addoption("--compute-kills", type=int, default=6, help="SIGKILLs of a compute under load")
    parser.addoption("--fleet-kills", type=int, default=3, help="kills and partitions of a fleet, by quorum")
    parser.addoption("--fleet-seed", type=int, default=20261129, help="which ones")
    parser.addoption("--soak-minutes", type=float, default=0.3, help="mixed load before all pages are compared")
    parser.addoption("--garbage", type=int, default=10_000, help="connections that send garbage")
    parser.addoption("--api-examples", type=int, default=5, help="calls of each operation of the management interface "
                     "by a fuzzer, besides those at the edges of what is allowed")
    parser.addoption("--store-kills", type=int, default=10, help="SIGKILLs during uploads, deletions, downloads, each")
    parser.addoption("--both-stores", action="store_true", help="all that a directory shows is shown on an S3 "
                     "server, too, not just a share")
    parser.addoption("--store-operations", type=int, default=10, help="length of each run of faults over a real server")
    parser.addoption("--store-outage-seconds", type=float, default=20, help="how long it is away while the disk fills")
    parser.addoption("--daily", action="store_true", help="the tests with the mark daily as well")
    parser.addoption("--console-pictures", help="directory for the pictures of the console that README shows")
    parser.addoption("--store-away-seconds", type=float, default=8, help="how long the bucket is away under load")


def pytest_generate_tests(metafunc):
    servers.parametrize(metafunc)


def pytest_collection_modifyitems(config, items):
    servers.deselect(config, items)
    leave_daily_out(config, items)
    slow_files_first(items)


def leave_daily_out(config, items):
    """What a change rarely breaks, and takes long, is not run after each change, unless it is asked for by name."""
    if config.getoption("--daily") or any("::" in arg for arg in config.args):
        return
    daily = [item for item in items if item.get_closest_marker("daily")]
    if daily:
        config.hook.pytest_deselected(items=daily)
        items[:] = [item for item in items if item not in daily]


def slow_files_first(items):
    """Files that take longest begin first, so that no worker is left alone with them in the end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])
