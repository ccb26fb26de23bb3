"""Makes the fixtures of fixtures/ known to every test."""

pytest_plugins = ["fixtures.workdir", "fixtures.postgres", "fixtures.pagectl"]
