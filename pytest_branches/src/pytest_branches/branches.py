"""Branches, made and deleted by pagectl."""

import json
import re
import subprocess
import uuid
from dataclasses import dataclass, field

# Longest name of a compute, which a branch's compute takes from it.
NAME_MAX = 63


class PagectlFailed(Exception):
    """pagectl could not do what was asked; the message is its own."""


@dataclass(frozen=True)
class Branch:
    """A branch, and how to connect to it."""

    name: str
    timeline_id: str
    url: str


@dataclass
class Branches:
    """Makes branches, and deletes those that it has made."""

    pagectl: str = "pagectl"
    branch_from: str | None = None
    at: str | None = None
    role: str = "postgres"
    dbname: str = "postgres"
    made: list[Branch] = field(default_factory=list)

    def make(self, name: str | None = None, *, branch_from: str | None = None, at: str | None = None) -> Branch:
        """Makes a branch; its name begins with `name` and is new."""
        where = {"--from": branch_from or self.branch_from, "--at": at or self.at}
        options = [part for option, value in where.items() if value for part in (option, value)]
        answer = json.loads(self.run("--json", "branch", "create", unique(name or "test"), "--print-url",
                                     "--role", self.role, "--dbname", self.dbname, *options))
        made = answer["branch"]
        self.made.append(Branch(made["name"], made["timeline_id"], answer["url"]))
        return self.made[-1]

    def delete(self, branch: Branch):
        """Deletes a branch, whoever is still connected to it."""
        self.run("branch", "delete", branch.timeline_id, "--force")
        self.made.remove(branch)

    def delete_all(self):
        """Deletes all that are left. Each is tried; the first failure is raised then."""
        failed = None
        for branch in list(self.made):
            try:
                self.delete(branch)
            except PagectlFailed as error:
                failed = failed or error
        if failed:
            raise failed

    def run(self, *words: str) -> str:
        try:
            done = subprocess.run([self.pagectl, *words], capture_output=True, text=True)
        except OSError as error:
            raise PagectlFailed(f"cannot run {self.pagectl}: {error.strerror}. Where it is says --pagectl") from error
        if done.returncode:
            raise PagectlFailed(done.stderr.strip() or f"{self.pagectl} failed with {done.returncode}")
        return done.stdout


def unique(name: str) -> str:
    """A name that begins with `name`, as far as branches may be called so, and that nobody else has."""
    tail = uuid.uuid4().hex[:12]
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._") or "test"
    return f"{plain[:NAME_MAX - len(tail) - 1]}-{tail}"
