"""A gateway's clients in other languages, each by the driver that people there use: node-postgres, pgx, JDBC."""

import os
import subprocess
from pathlib import Path

import pytest

from fixtures.gateway import PASSWORD, follow_with_password
from fixtures.programs import REPOSITORY

SOURCES = REPOSITORY / "test_runner/drivers"
# Ten and twenty rows; SQLSTATE of a command that was cancelled.
TOLD = "rows 30, long 3000000, cancelled 57014, after 1, user postgres\n"


@pytest.fixture(scope="module")
def drivers() -> Path:
    done = subprocess.run([REPOSITORY / "scripts/drivers.sh"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def followed(make_postgres, make_pageserver):
    return follow_with_password(make_postgres, make_pageserver, "languages",
                                "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS i")


def commands(drivers: Path) -> dict[str, list]:
    return {"node": ["node", SOURCES / "node/query.js"], "go": [drivers / "go/query"],
            "java": ["java", "-cp", drivers / "java/postgresql.jar", SOURCES / "java/Query.java"]}


@pytest.mark.parametrize("language", ["node", "go", "java"])
def test_a_driver_works_as_with_a_server(drivers, followed, make_computes, make_gateway, language):
    computes = make_computes(followed.pageserver)
    done = computes.pagectl("branch", "create", language)
    assert done.code == 0, done.text
    gateway = make_gateway(computes)
    environment = {**os.environ, "GATEWAY_PORT": str(gateway.port), "GATEWAY_BRANCH": language,
                   "GATEWAY_PASSWORD": PASSWORD, "NODE_PATH": str(drivers / "node/node_modules")}
    done = subprocess.run(commands(drivers)[language], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == TOLD, done.stderr
