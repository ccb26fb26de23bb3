"""Traces of requests: what a collector gets of a read, from who asks for it to the layers, and that nobody waits for a
collector that is away."""

import re
import time

import psycopg
import pytest

from fixtures.followed import follow_new
from fixtures.gateway import follow_with_password
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.pagestream import PageStream, Rel, get_page
from fixtures.wait import wait_until

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
GETPAGE = "GET /v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/getpage"
LOST, SENT = "pageserver_traces_lost_spans_total", "pageserver_traces_sent_spans_total"
# pg_attribute of the database postgres.
REL = Rel(1663, 5, 1249)
# An LSN that does not arrive.
NEVER = 0xFFFF_0000_0000


@pytest.fixture
def traced(make_postgres, make_pageserver, make_collector, request):
    """A followed server whose pageserver sends traces; `settings` of the test's mark `traced` say more."""
    collector = make_collector()

    def make(**settings):
        settings = {"traces_to": collector.url, "traces_one_in": 0, "traces_slow": "1h", "wait_lsn_timeout": "400ms",
                    **settings}
        name = re.sub(r"\W", "-", request.node.name.removeprefix("test_"))[-24:]
        followed = follow_new(make_postgres, make_pageserver, name, settings=settings)
        followed.pageserver.allow(POSTGRES_IS_GONE)
        return followed.timeline, collector

    return make


def read(timeline, **params):
    """One page, over a connection of its own."""
    with PageStream.start(timeline.server.connect(**params), timeline.tenant, timeline.id) as stream:
        return stream.ask(get_page(REL, 0))


def test_a_read_is_seen_down_to_its_layers(traced):
    timeline, collector = traced()
    read(timeline, traceparent=SAMPLED)
    read(timeline, options=f"-ctraceparent={SAMPLED}")
    wait_until(lambda: len(collector.find("page service: getpage")) == 2, 20, what="both requests")
    for asked in collector.find("page service: getpage"):
        assert (asked.trace, asked.parent, asked.service) == (TRACE, SPAN, "pageserver") and not asked.error
        assert asked.about["timeline"] == timeline.id and asked.about["reqid"] == 1 and asked.about["block"] == 0
        parts = collector.parts(asked)
        layers = parts["layers: read"]
        assert set(parts) == {"wait for WAL", "layers: read"} and layers.about["timeline"] == timeline.id
        stages = collector.parts(layers)
        assert set(stages) == {"layers: search", "layers: redo"} and stages["layers: search"].about["layers"] >= 0
        for part in (*parts.values(), *stages.values()):
            assert part.is_within(asked) and part.took >= 0, (part, asked)
        assert sum(stage.took for stage in stages.values()) <= layers.took + 0.001
        assert 0 < asked.took < 20
    # The same over HTTP, where the header says what it is part of.
    key = next(one["key_start"] for one in timeline.server.http.get(f"{timeline.path}/layer")["historic_layers"]
               if one["kind"] == "Image")
    path = f"{timeline.path}/getpage?key={key}"
    status, headers, _ = timeline.server.http.raw("GET", path, traceparent=SAMPLED, **{"X-Request-Id": "mine/7"})
    asked = collector.wait_for(GETPAGE)
    assert (asked.trace, asked.parent, asked.about["request.id"]) == (TRACE, SPAN, "mine/7")
    assert asked.about["http.response.status_code"] == status
    assert collector.parts(asked)["layers: read"].is_within(asked)
    # What is part of a trace that is not sent is not sent either.
    count = len(collector.spans)
    timeline.server.http.raw("GET", path, traceparent=NOT_SAMPLED)
    read(timeline, traceparent=NOT_SAMPLED)
    read(timeline, traceparent="nonsense")
    time.sleep(1)
    assert len(collector.spans) == count
    assert timeline.server.http.metrics()[SENT] == count


def test_what_is_slow_is_traced_anyway(traced):
    timeline, collector = traced(traces_slow="300ms")
    read(timeline)
    with PageStream.start(timeline.server.connect(), timeline.tenant, timeline.id) as stream:
        stream.refusal(get_page(REL, 0, since=NEVER))
    slow = collector.wait_for("page service: getpage")
    assert slow.took >= 0.4 and "WAL" in slow.error and slow.parent == ""
    waited = collector.parts(slow)["wait for WAL"]
    assert waited.took >= 0.35 and waited.is_within(slow)
    assert len(collector.find("page service: getpage")) == 1, "the quick one is not"


def test_a_session_of_a_gateway_and_what_it_causes_are_one_trace(make_postgres, make_pageserver, make_computes,
                                                                make_gateway, make_collector):
    collector = make_collector()
    followed = follow_with_password(make_postgres, make_pageserver, "gate-traces",
                                    settings={"traces_to": collector.url, "traces_one_in": 0, "traces_slow": "1h"})
    computes = make_computes(followed.pageserver)
    done = computes.pagectl("branch", "create", "dev")
    assert done.code == 0, done.text
    gateway = make_gateway(computes, "--traces-to", collector.url)
    with psycopg.connect(gateway.connstr("dev")) as connection:
        connection.execute("SELECT 1")
        session = collector.wait_for("gateway: session")
        woken = collector.parts(session)["gateway: wake"]
        assert session.service == "pageserver-gateway" and session.parent == "" and session.about == {"branch": "dev"}
        assert woken.is_within(session) and woken.took > 0.05
        # What the pageserver was asked for that.
        calls = wait_until(lambda: [span for span in collector.spans if span.service == "pageserver"
                                    and span.trace == session.trace], 20, what="calls of the pageserver")
        assert all(call.parent == session.id and call.is_within(session) for call in calls), calls
        assert any(call.name.startswith(("PUT ", "POST ")) for call in calls), [call.name for call in calls]
    # Of one that is awake nobody has to be asked.
    count = len(collector.find("gateway: session"))
    with psycopg.connect(gateway.connstr("dev")):
        wait_until(lambda: len(collector.find("gateway: session")) > count, 20, what="the second session")
    assert "gateway: wake" not in collector.parts(collector.find("gateway: session")[-1])
    assert 'branch "no" does not exist' in gateway.refusal("no")
    wait_until(lambda: any("does not exist" in one.error for one in collector.find("gateway: session")), 20,
               what="a session that was refused")


@pytest.mark.parametrize("how", ["away", "hanging"])
def test_nobody_waits_for_a_collector(traced, how):
    timeline, collector = traced(traces_one_in=1)
    server = timeline.server
    read(timeline)
    collector.wait_for("page service: getpage")
    if how == "away":
        collector.end()
    else:
        collector.hangs = True
    requests = 3000
    began = time.monotonic()
    with PageStream.start(server.connect(), timeline.tenant, timeline.id) as stream:
        for _ in range(requests):
            stream.ask(get_page(REL, 0))
    took = time.monotonic() - began
    assert took < requests * 0.005, f"{took:.1f} s for {requests} requests"
    lost = wait_until(lambda: server.http.metrics()[LOST], 20, what="lost spans")
    print(f"{requests} requests in {took:.2f} s, {lost:.0f} spans lost so far")
    if how == "away":
        told = "traces are lost: the collector at 127.0.0.1"
        wait_until(lambda: told in server.log.read_text(), 20, what="a word in the log")
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 10


def test_where_traces_go_has_to_be_an_address(make_pageserver):
    server = make_pageserver("nowhere", traces_to="collector:4318")
    assert "traces_to" in server.refuses_to_start() and "http://host:port" in server.log.read_text()
    quiet = make_pageserver("quiet").start()
    assert quiet.http.metrics()[LOST] == quiet.http.metrics()[SENT] == 0
