"""The text of /metrics: in the requested format, valid, and with names that Prometheus' own tools accept."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from fixtures.attached import attach_new, rel_of
from fixtures.metric_names import complaints
from fixtures.pagestream import get_page

# The Accept header that Prometheus sends when it scrapes.
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.fixture(scope="module")
def attached(make_postgres, make_pageserver):
    """Provides tenants, timelines, layers, and reads to be counted."""
    attached = attach_new(make_postgres, make_pageserver, "measured")
    attached.postgres.bench(500)
    attached.catch_up()
    with attached.timeline.stream() as stream:
        stream.ask(get_page(rel_of(attached.postgres, "pgbench_accounts"), 0))
    return attached


def scrape(attached, **headers) -> tuple[str, str]:
    status, answered, body = attached.pageserver.http.raw("GET", "/metrics", **headers)
    assert status == 200
    return answered["content-type"], body.decode()


def test_each_gets_the_text_that_he_asks_for(attached):
    for accept in (None, "*/*", "text/plain", "text/plain;version=0.0.4", "text/html, */*;q=0.1"):
        kind, text = scrape(attached, **({"Accept": accept} if accept else {}))
        assert kind == "text/plain; version=0.0.4; charset=utf-8", accept
        assert "# UNIT" not in text and text.endswith("# EOF\n"), "a comment, by which one sees that all is there"
    for accept in (PROMETHEUS, "application/openmetrics-text", "application/openmetrics-text; version=1.0.0"):
        kind, text = scrape(attached, Accept=accept)
        assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8", accept
        assert text.endswith("# EOF\n")


def test_both_texts_are_valid_and_say_the_same(attached):
    plain = {family.name: family for family in parse_text(scrape(attached)[1])}
    # The parser is strict: it rejects names that could be another family's sample, wrong suffixes, a missing end.
    open_metrics = {family.name: family for family in parse_openmetrics(scrape(attached, Accept=PROMETHEUS)[1])}
    assert len(plain) > 60

    def samples(families) -> set:
        return {(sample.name, frozenset(sample.labels.items())) for one in families for sample in one.samples}

    assert samples(plain.values()) == samples(open_metrics.values())
    assert "pageserver_last_record_lsn" in plain and "pageserver_layers" in plain


def test_names_are_such_as_prometheus_demands(attached):
    text = scrape(attached)[1]
    wrong = []
    for family in parse_text(text):
        # The parser names counters as OpenMetrics does.
        declared = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"# TYPE {declared} {family.type}" in text
        wrong += complaints(family, declared)
    assert not wrong, "\n".join(wrong)


def promtool() -> str | None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = Path(os.environ.get("PROMTOOL_DIR") or cache / "pageserver-promtool") / "promtool"
    return shutil.which("promtool") or (str(kept) if kept.exists() else None)


@pytest.mark.skipif(promtool() is None, reason="no promtool: scripts/promtool.sh gets it")
def test_promtool_has_nothing_to_say(attached):
    command = [promtool(), "check", "metrics"]
    checked = subprocess.run(command, input=scrape(attached)[1], text=True, capture_output=True)
    assert checked.returncode == 0 and not checked.stdout and not checked.stderr, checked.stdout + checked.stderr
