"""Makes the fixtures of fixtures/ known to every test, and how much of the open-ended ones is wanted."""

pytest_plugins = ["fixtures.workdir", "fixtures.postgres", "fixtures.pagectl", "fixtures.pageserver"]


def pytest_addoption(parser):
    parser.addoption("--kills", type=int, default=30, help="SIGKILLs of the pageserver under load")
    parser.addoption("--soak-minutes", type=float, default=0.3, help="mixed load before all pages are compared")
    parser.addoption("--garbage", type=int, default=10_000, help="connections that send garbage")
