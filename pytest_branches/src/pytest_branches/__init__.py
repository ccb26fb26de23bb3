"""A fresh branch of a Postgres database for each test."""

from pytest_branches.branches import Branch, Branches, PagectlFailed

__all__ = ["Branch", "Branches", "PagectlFailed"]
