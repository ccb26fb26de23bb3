"""The text of /metrics: in the requested format, valid, and with names that Prometheus' own tools accept."""

import subprocess

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from fixtures.followed import follow_new, rel_of
from fixtures.metric_names import complaints
from fixtures.pagestream import get_page
from fixtures.promtool import promtool

# The Accept header that Prometheus sends when it scrapes.
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.fixture(scope="module")
def followed(make_postgres, make_pageserver):
    """Provides tenants, timelines, layers, and reads to be counted."""
    followed = follow_new(make_postgres, make_pageserver, "measured")
    followed.postgres.bench(500)
    followed.catch_up()
    with followed.timeline.stream() as stream:
        stream.ask(get_page(rel_of(followed.postgres, "pgbench_accounts"), 0))
    return followed


def scrape(followed, **headers) -> tuple[str, str]:
    status, answered, body = followed.pageserver.http.raw("GET", "/metrics", **headers)
    assert status == 200
    return answered["content-type"], body.decode()


def test_each_gets_the_text_that_he_asks_for(followed):
    for accept in (None, "*/*", "text/plain", "text/plain;version=0.0.4", "text/html, */*;q=0.1"):
        kind, text = scrape(followed, **({"Accept": accept} if accept else {}))
        assert kind == "text/plain; version=0.0.4; charset=utf-8", accept
        assert "# UNIT" not in text and text.endswith("# EOF\n"), "a comment, by which one sees that all is there"
    for accept in (PROMETHEUS, "application/openmetrics-text", "application/openmetrics-text; version=1.0.0"):
        kind, text = scrape(followed, Accept=accept)
        assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8", accept
        assert text.endswith("# EOF\n")


def test_both_texts_are_valid_and_say_the_same(followed):
    plain = {family.name: family for family in parse_text(scrape(followed)[1])}
    # The parser is strict: it rejects names that could be another family's sample, wrong suffixes, a missing end.
    open_metrics = {family.name: family for family in parse_openmetrics(scrape(followed, Accept=PROMETHEUS)[1])}
    assert len(plain) > 60

    def samples(families) -> set:
        return {(sample.name, frozenset(sample.labels.items())) for one in families for sample in one.samples}

    assert samples(plain.values()) == samples(open_metrics.values())
    assert "pageserver_last_record_lsn" in plain and "pageserver_layers" in plain


def test_names_are_such_as_prometheus_demands(followed):
    text = scrape(followed)[1]
    wrong = []
    for family in parse_text(text):
        # The parser names counters as OpenMetrics does.
        declared = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"# TYPE {declared} {family.type}" in text
        wrong += complaints(family, declared)
    assert not wrong, "\n".join(wrong)


def test_promtool_has_nothing_to_say(followed):
    command = [promtool(), "check", "metrics"]
    checked = subprocess.run(command, input=scrape(followed)[1], text=True, capture_output=True)
    assert checked.returncode == 0 and not checked.stdout and not checked.stderr, checked.stdout + checked.stderr
