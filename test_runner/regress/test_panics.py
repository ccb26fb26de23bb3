"""A panic of a background task never goes unnoticed: its timeline takes no more writes and says why, or the process
ends. The programs under test are built with debug assertions, where `PLANT_PANIC` names a task."""

import signal

import pytest

from fixtures.followed import follow_new
from fixtures.pageserver import connection_string
from fixtures.stored import QUICK, all_stored
from fixtures.wait import wait_until

# What the panics leave in the log.
EXPECTED = (
    r"ERROR.*panic:",
    r"takes no more writes",
    r"WARN.*flush failed",
    r"(WARN|ERROR).*no more WAL is taken in",
    r"(WARN|ERROR).*panicked",
    r"WARN.*not uploaded to their end",
    r"WARN.*cannot be written",
    r"WARN.*WAL does not come",
)
OF_TIMELINES = [
    "flush of frozen layers", "upload", "note that it is in the bucket", "WAL receiver", "WAL decoding", "WAL ingest",
]
OF_THE_PROCESS = [
    "tend timelines", "local disk", "watch over a tenant's generation", "look again for timelines",
    "look after WAL receivers", "page service", "management interface",
]


@pytest.fixture
def followed(make_postgres, make_pageserver, make_store, request):
    name = request.node.name.removeprefix("test_")[:30]
    settings = {**QUICK, **make_store("directory").settings(name)}
    followed = follow_new(make_postgres, make_pageserver, name, settings=settings)
    followed.pageserver.allow(*EXPECTED)
    wait_until(lambda: followed.timeline.info()["remote_consistent_lsn"], 60, what="the import in the store")
    return followed


def start_with(server, task: str):
    """Starts the server such that the first task of this name panics."""
    server.process = server.spawn(PLANT_PANIC=task)
    wait_until(server.answers, 30, every=0.02, what="the pageserver's start")


def panics(server, task: str) -> int:
    wanted = f'pageserver_task_panics{{task="{task}"}} '
    lines = server.http.raw("GET", "/metrics")[2].decode().splitlines()
    return sum(int(line.removeprefix(wanted)) for line in lines if line.startswith(wanted))


def broken(timeline) -> str | None:
    state = timeline.info()["state"]
    return state["Broken"]["reason"] if "Broken" in state else None


def test_a_timeline_breaks_with_its_tasks_and_comes_back(followed):
    server, postgres, timeline = followed.pageserver, followed.postgres, followed.timeline
    server.stop()
    for task in OF_TIMELINES:
        start_with(server, task)
        postgres.bench(200)
        # Reads may continue, writes may not: a failure here shows in the timeline's state.
        server.http.raw("PUT", f"{timeline.path}/checkpoint")
        reason = wait_until(lambda: broken(timeline), 60, what=f"the end of {task}")
        assert "planted" in reason, reason
        assert panics(server, task) == 1, task
        assert 'pageserver_timeline_states{state="Broken"} 1' in server.http.raw("GET", "/metrics")[2].decode()
        server.stop()
        server.start()
        followed.catch_up()
        assert broken(timeline) is None, task
        server.stop()
    server.start()
    followed.assert_files_equal(all_stored(followed))


def test_the_process_ends_with_what_it_cannot_do_without(followed):
    server = followed.pageserver
    server.stop()
    for task in OF_THE_PROCESS:
        server.process = server.spawn(PLANT_PANIC=task)
        code = server.process.wait(60)
        assert code == -signal.SIGABRT, f"{task}: exit code {code}\n{server.log_tail()}"
        assert f"the task `{task}` panicked: planted; the process cannot go on without it" in server.log_text()
    server.start()
    followed.postgres.bench(200)
    followed.assert_files_equal(all_stored(followed))


def test_what_was_asked_for_says_that_it_has_failed(followed, make_pageserver):
    server, timeline = followed.pageserver, followed.timeline
    server.stop()
    start_with(server, "scrub")
    server.http.post(f"/v1/tenant/{timeline.tenant}/scrub", {})
    answer = wait_until(lambda: ended(server.http.get(f"/v1/tenant/{timeline.tenant}/scrub")), 30, what="the scrub")
    assert "the task `scrub` panicked: planted" in str(answer), answer
    server.stop()
    other = make_pageserver("panics-other").allow(*EXPECTED)
    start_with(other, "follow")
    begun = other.start_follow(connection_string(followed.postgres))
    status = wait_until(lambda: failed(other.follow_status(begun)), 30, what="the follow")
    assert "the task `follow` panicked: planted" in status["error"], status
    assert other.is_followed(other.start_follow(connection_string(followed.postgres))) in (True, False)


def ended(answer: dict):
    return answer if answer["state"] != "Running" else None


def failed(status: dict):
    return status if status["phase"] == "failed" else None
