"""What the tests of upgrades share."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def earlier(pageserver_binary) -> Path:
    """Where the programs of the earlier commit are."""
    directory = Path(os.environ["UPGRADE_FROM"])
    for name in ("pageserver", "pagectl", "compute-fs"):
        assert (directory / name).is_file(), f"{directory / name} is not built: run make test-upgrade BASE=COMMIT"
    same = (directory / "pageserver").read_bytes() == pageserver_binary.read_bytes()
    assert not same, "both are the same program"
    return directory
