"""The fixtures `branch`, `module_branch` and `make_branch`."""

from collections.abc import Callable, Iterator

import pytest

from pytest_branches.branches import Branch, Branches

# Option, setting, default, help.
SETTINGS = (
    ("--branch-from", "branch_from", None, "the branch that new ones continue; by default the only root"),
    ("--branch-at", "branch_at", None, "where new branches begin: an LSN, a time, or '10 minutes ago'"),
    ("--branch-role", "branch_role", "postgres", "the role in connection strings of branches"),
    ("--branch-dbname", "branch_dbname", "postgres", "the database in connection strings of branches"),
    ("--pagectl", "branch_pagectl", "pagectl", "the program that makes branches"),
)
FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser):
    group = parser.getgroup("branches", "a fresh branch of a database for each test")
    for option, setting, default, about in SETTINGS:
        group.addoption(option, dest=setting, metavar="VALUE", help=about)
        parser.addini(setting, about, default=default)
    group.addoption("--keep-branches", action="store_true", help="leave branches of failed tests")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    if report.failed:
        for node in item.listchain():
            node.stash[FAILED] = True
    return report


def setting(config: pytest.Config, name: str) -> str | None:
    return config.getoption(name) or config.getini(name) or None


def branches_of(request: pytest.FixtureRequest) -> Iterator[Branches]:
    config = request.config
    branches = Branches(setting(config, "branch_pagectl"), setting(config, "branch_from"),
                        setting(config, "branch_at"), setting(config, "branch_role"),
                        setting(config, "branch_dbname"))
    yield branches
    if config.getoption("keep_branches") and request.node.stash.get(FAILED, False):
        for branch in branches.made:
            print(f"branch {branch.name} is left: {branch.url}")
        return
    branches.delete_all()


@pytest.fixture
def make_branch(request: pytest.FixtureRequest) -> Iterator[Callable[..., Branch]]:
    """Makes branches that are deleted after the test."""
    for branches in branches_of(request):
        yield lambda name=None, **where: branches.make(name or request.node.name, **where)


@pytest.fixture
def branch(make_branch) -> Branch:
    """A branch for this test."""
    return make_branch()


@pytest.fixture(scope="module")
def module_branch(request: pytest.FixtureRequest) -> Iterator[Branch]:
    """A branch for the tests of this file, deleted after the last one."""
    for branches in branches_of(request):
        yield branches.make(request.node.name)
