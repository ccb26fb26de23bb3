"""Alerts and dashboard in docs/deploy: Prometheus accepts them, alerts come when they should, and every metric and
label that they name is one that a server has."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parse_text

from fixtures.followed import follow_new
from fixtures.promtool import promtool
from fixtures.retention import SMALL, pagectl

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy"
OPERATIONS = DEPLOY.parent / "operations.md"
# A metric with its selector, if it has one.
NAMED = re.compile(r"\b((?:pageserver|process)_[a-z0-9_]+)\b(?:\{([^}]*)\})?")
LABEL = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)")
GROUPED = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
SHOWN = re.compile(r"\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}")
# What Prometheus itself adds to a sample, and `le`, which belongs to a bucket.
ADDED = {"instance", "job", "le"}
# What a server has only after a bug has shown itself.
SELDOM = {"pageserver_task_panics": {"task"}}


def alerts() -> list[dict]:
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict]:
    found = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def expressions() -> list[tuple[str, str, str]]:
    """Where each is, the expression, and the text that is shown with it."""
    rules = [(rule["alert"], rule["expr"], rule["annotations"]["summary"]) for rule in alerts()]
    drawn = [(panel["title"], target["expr"], target["legendFormat"])
             for panel in panels() for target in panel["targets"]]
    return rules + drawn


@pytest.fixture(scope="module")
def labels(make_postgres, make_pageserver, pagectl_binary) -> dict[str, set[str]]:
    """For the name of each sample that a server has, its labels. It follows a Postgres, and layers have been sorted."""
    followed = follow_new(make_postgres, make_pageserver, "dashboards", settings=SMALL)
    followed.postgres.bench(200)
    followed.catch_up()
    pagectl(pagectl_binary, followed.timeline, "compact", "--now")
    text = followed.pageserver.http.raw("GET", "/metrics", Accept="text/plain")[2].decode()
    found = dict(SELDOM)
    for family in parse_text(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
        # The parser takes the suffix of a counter away, and a family without a sample yet has only its name.
        found.setdefault(f"{family.name}_total" if family.type == "counter" else family.name, set())
    return found


def test_every_metric_and_label_that_is_named_exists(labels):
    wrong, seen = [], set()
    for where, expression, text in expressions():
        named = NAMED.findall(expression)
        assert named or "up{" in expression, where
        known = set(ADDED)
        for name, selector in named:
            seen.add(name)
            if name not in labels:
                wrong.append(f"{where}: there is no {name}")
                continue
            known |= labels[name]
            wrong += [f"{where}: {name} has no label {label}" for label in LABEL.findall(selector)
                      if labels[name] and label not in labels[name] | ADDED]
        grouped = [label.strip() for group in GROUPED.findall(expression) for label in group.split(",")]
        if any(labels.get(name) for name, _ in named):
            wrong += [f"{where}: nothing has the label {label}" for label in [*grouped, *SHOWN.findall(text)]
                      if label not in known]
    assert not wrong, "\n".join(wrong)
    assert len(seen) > 40


def test_prometheus_accepts_the_alerts_and_they_come_when_they_should():
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run([promtool(), *command], cwd=DEPLOY, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    tested = yaml.safe_load((DEPLOY / "alerts_test.yml").read_text())["tests"]
    come = {one["alertname"] for test in tested for one in test["alert_rule_test"] if one.get("exp_alerts")}
    stay = {one["alertname"] for test in tested for one in test["alert_rule_test"] if not one.get("exp_alerts")}
    assert len(come) >= 8 and come & stay >= {"PageserverReceivesNoWal", "PageserverUploadsFail"}


def test_every_alert_is_explained_where_operators_look():
    text = OPERATIONS.read_text()
    missing = [rule["alert"] for rule in alerts() if f"`{rule['alert']}`" not in text]
    assert not missing, missing
    assert all(rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["action"] for rule in alerts())


def test_the_dashboard_asks_only_for_what_its_variables_select():
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    names = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)\}?", json.dumps(dashboard["panels"])))
    assert used == names
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids)) and len(panels()) >= 25
    assert all('instance=~"$instance"' in target["expr"] for panel in panels() for target in panel["targets"])
