"""Tests that write what they want: each has the database as it was."""

import psycopg
import pytest


def balance(branch) -> int:
    with psycopg.connect(branch.url) as connection:
        return connection.execute("SELECT sum(balance) FROM accounts").fetchone()[0]


@pytest.mark.parametrize("lost", [1, 2])
def test_a_withdrawal_is_seen_here_only(branch, lost):
    before = balance(branch)
    with psycopg.connect(branch.url) as connection:
        connection.execute("UPDATE accounts SET balance = balance - %s WHERE id = 1", (lost,))
    assert balance(branch) == before - lost


def test_everything_may_be_dropped(branch):
    with psycopg.connect(branch.url) as connection:
        connection.execute("DROP TABLE accounts")


def test_nothing_is_dropped_elsewhere(module_branch, make_branch):
    assert balance(module_branch) == balance(make_branch("another"))
