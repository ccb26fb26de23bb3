"""The console in a real browser: each page is opened, a branch is made at a moment by clicking and its data checked by
SQL, wrong tokens see nothing, and pages of other sites change nothing."""

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from fixtures.browser import settle
from fixtures.followed import follow_new
from fixtures.http import HttpClient
from fixtures.pageserver import POSTGRES_IS_GONE, new_id
from fixtures.tokens import Signer
from fixtures.wait import wait_until

SOURCES = Path(__file__).resolve().parents[2] / "console" / "src"
VIEWS = {
    "": ["WAL", "Sizes", "Debt", "History kept", "Uploads", "Behind the server"],
    "layers": ["sorted delta", "read just now"],
    "history": ["Window", "What pins history", "Holds and leases", "Branches of it"],
    "slow": ["Where the time went", "fetch: disk and bucket"],
    "computes": ["Computes that write", "pagectl compute start"],
}
WIDE, NARROW = (1280, 900), (400, 800)
SERVE_TOKEN = "a token of the computes"
# How many seconds a token is accepted after its end, for clocks that differ.
LEEWAY = 60
# Rows are written this many seconds apart.
BEAT = 0.15


def url(server) -> str:
    return f"http://127.0.0.1:{server.http_port}/"


@pytest.fixture(scope="module")
def followed(make_postgres, make_pageserver, pagectl_binary):
    """A cluster with some layers, a branch, slow reads and a hold."""
    settings = {"checkpoint_distance": 1 << 20, "compaction_target_size": 1 << 18, "slow_read_threshold": "1us",
                "gc_pause_after_attach": "1ms"}
    followed = follow_new(make_postgres, make_pageserver, "console", settings=settings)
    followed.pageserver.allow(POSTGRES_IS_GONE)
    followed.postgres.sql("CREATE TABLE beats (i int, at timestamptz)")
    followed.postgres.run("pgbench", "-n", "-t", "1500", *followed.postgres.connection())
    lsn = followed.catch_up()
    timeline = followed.timeline
    timeline.server.http.post(f"/v1/tenant/{timeline.tenant}/timeline", {
        "new_timeline_id": new_id(), "ancestor_timeline_id": timeline.id, "ancestor_start_lsn": lsn, "name": "dev"})
    timeline.server.http.put(f"{timeline.path}/holds/release", {"lsn": lsn})
    timeline.server.http.post(f"/v1/tenant/{timeline.tenant}/gc?dry_run=true")
    with timeline.stream():
        pass
    return followed


@pytest.fixture
def pictures(request):
    """Where pictures for the documentation go, if they are asked for."""
    place = request.config.getoption("--console-pictures")
    return lambda browser, name: bool(place) and browser.picture(Path(place) / name)


def branches(timeline) -> dict[str, dict]:
    listed = timeline.server.http.get(f"/v1/tenant/{timeline.tenant}/timeline")
    return {one["name"]: one for one in listed if one["name"]}


def test_each_page_opens_light_dark_and_narrow(followed, make_browser, pictures):
    timeline, browser = followed.timeline, make_browser()
    browser.open(url(followed.pageserver))
    browser.find("a", "dev")
    browser.find(f'.lane[data-timeline="{timeline.id}"]')
    base = f"#/t/{timeline.tenant}/{timeline.id}"
    pages = {"#/": ["Branches", "follows"], "#/computes": ["Computes that write"],
             "#/server": ["Local disk", "owner", "No other server is on this one's bucket"]}
    pages |= {f"{base}/{view}" if view else base: texts for view, texts in VIEWS.items()}
    for page, texts in pages.items():
        browser.go(page)
        for text in texts:
            browser.until(text)
        assert browser.nameless() == [], f"{page} has what has no name"
        for size in (NARROW, WIDE):
            browser.resize(*size)
            settle(0.1)
            assert browser.overflow() <= 0, f"{page} is too wide for {size}"
        if page == base:
            pictures(browser, "console-timeline.png")
    back = "return getComputedStyle(document.body).backgroundColor"
    light = browser.js(back)
    browser.dark(True)
    assert browser.js(back) != light
    assert browser.hosts() == {f"127.0.0.1:{followed.pageserver.http_port}"}
    assert browser.errors() == []


def test_a_branch_is_made_at_a_moment_by_clicking(followed, make_browser, make_computes, pictures):
    timeline, browser, computes = followed.timeline, make_browser(), make_computes(followed.pageserver)
    for beat in range(30):
        followed.postgres.sql(f"INSERT INTO beats VALUES ({beat}, clock_timestamp())")
        time.sleep(BEAT)
    followed.postgres.sql("DELETE FROM beats WHERE i < 0; CHECKPOINT")
    written = [line.split("|") for line in followed.postgres.sql(
        "SELECT i, extract(epoch FROM at) FROM beats ORDER BY i").splitlines()]
    followed.postgres.sql("DROP TABLE beats")
    followed.catch_up()
    browser.open(url(followed.pageserver))
    browser.click("option", "10 min")
    lane = browser.find(f'.lane[data-timeline="{timeline.id}"]')
    # As seen: all of ten minutes are as wide as the lane, and its right end is now.
    wanted = float(written[20][1])
    browser.point(lane, lane.size["width"] * (1 - (time.time() - wanted) / 600), lane.size["height"] / 2, click=True)
    moment = browser.find("input[aria-describedby=moment-hint]")
    # With keys it goes on from there.
    lane = browser.find(f'.lane[data-timeline="{timeline.id}"]')
    browser.js("arguments[0].focus()", lane)
    before = moment.get_attribute("value")
    browser.press(Keys.ARROW_LEFT, Keys.ARROW_RIGHT)
    wait_until(lambda: abs(seconds(moment.get_attribute("value")) - seconds(before)) < 0.5, what="there and back")
    # And exactly, by text.
    picked = float(written[20][1]) + BEAT / 2
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(picked)) + f".{int(picked % 1 * 1000):03}Z"
    browser.js("arguments[0].value = ''", moment)
    moment.send_keys(text + Keys.TAB)
    wait_until(lambda: moment.get_attribute("value") == text, what="the cursor at that moment")
    lsn = browser.find("b[data-lsn]").get_attribute("data-lsn")
    browser.click("button", "Branch from here")
    browser.until("Makes a new branch")
    browser.fill("dialog input[name=name]", "clicked")
    browser.click("dialog button[type=submit]")
    browser.until("Made clicked")
    made = wait_until(lambda: branches(timeline).get("clicked"), what="the branch")
    assert made["ancestor_timeline_id"] == timeline.id and made["ancestor_lsn"] == lsn
    browser.click("option", "everything")
    browser.find("a", "clicked")
    settle(2 if pictures(browser, "console.png") else 0)
    pictures(browser, "console.png")
    compute = computes.start("clicked", "--branch", "clicked")
    assert compute.sql("SELECT max(i), count(*) FROM beats") == "20|21", "what was written up to then"
    browser.go(f"#/t/{timeline.tenant}/{made['timeline_id']}/computes")
    browser.until("clicked")
    compute.stop()


def seconds(text: str) -> float:
    parsed = time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")
    return time.mktime(parsed) + float(f"0{text[19:].rstrip('Z')}" or 0)


@pytest.mark.daily
def test_the_layer_map_tells_what_is_where(followed, make_browser, pictures):
    timeline, browser = followed.timeline, make_browser()
    browser.open(f"{url(followed.pageserver)}#/t/{timeline.tenant}/{timeline.id}/layers")
    listed = timeline.server.http.get(f"{timeline.path}/layer")
    names = {one["layer_file_name"] for one in listed["historic_layers"]}
    canvas = browser.find("canvas")
    wait_until(lambda: int(canvas.get_attribute("data-layers") or 0) >= len(names), what="all layers")
    middle = canvas.size["width"] / 2, canvas.size["height"] / 2
    browser.point(canvas, *middle)
    tip = browser.find(".tip")
    assert re.search(r"(sorted delta|L0 delta|image).*(B|KiB|MiB)", tip.text) and "Reads" in tip.text, tip.text
    settle(8 if pictures(browser, "console-layers.png") else 0)
    pictures(browser, "console-layers.png")
    browser.point(canvas, *middle, click=True)
    browser.until("The picked layer")
    told = re.search(r"[0-9A-F]{36}-[0-9A-F]{36}__\S+", browser.text()).group()
    assert told in names | {one["layer_file_name"] for one in
                            timeline.server.http.get(f"{timeline.path}/layer")["historic_layers"]}
    view = "return JSON.stringify(arguments[0].map.target)"
    whole = browser.js(view, canvas)
    browser.js("arguments[0].focus()", canvas)
    browser.press("+", "+", Keys.ARROW_LEFT)
    closer = json.loads(browser.js(view, canvas))
    assert closer["w"] < 1 and closer["h"] < 1
    browser.press("0")
    assert browser.js(view, canvas) == whole
    browser.click("summary", "The same as a table")
    browser.find(".layers td code")
    # A read warms what it visits, and the picture moves.
    frames = browser.js("return arguments[0].map.frames", canvas)
    key = next(one["key_start"] for one in listed["historic_layers"] if one["kind"] == "Image")
    warm = "return arguments[0].map.layers.list.some((one, at) => arguments[0].map.layers.warmth[at] > 0)"
    wait_until(lambda: timeline.server.http.raw("GET", f"{timeline.path}/getpage?key={key}")
               and browser.js(warm, canvas), what="a warm layer")
    wait_until(lambda: browser.js("return arguments[0].map.frames", canvas) > frames + 3, what="frames")


@pytest.mark.daily
def test_slow_reads_tell_their_stages(followed, make_browser):
    timeline, browser = followed.timeline, make_browser()
    (first, *_) = (one["key_start"] for one in timeline.server.http.get(f"{timeline.path}/layer")["historic_layers"]
                   if one["kind"] == "Image" and int(one["key_start"], 16))
    time.sleep(1.1)
    timeline.server.http.raw("GET", f"{timeline.path}/getpage?key={first}")
    told = timeline.server.http.get(f"{timeline.path}/slow_reads")
    assert told["threshold_micros"] == 1 and told["reads"]
    newest = told["reads"][0]
    stages = sum(newest[f"{name}_micros"] for name in ("wait", "plan", "fetch", "redo"))
    assert abs(stages - newest["micros"]) < 10 + newest["micros"] / 5, newest
    browser.open(f"{url(followed.pageserver)}#/t/{timeline.tenant}/{timeline.id}/slow")
    browser.find(".stages")
    assert "longer than 1 us" in browser.text()


@pytest.mark.daily
def test_dangerous_things_ask_first(followed, make_browser):
    timeline, browser = followed.timeline, make_browser()
    victim = timeline.branch()
    timeline.server.http.put(f"{timeline.path}/holds/doomed", {})
    browser.open(f"{url(followed.pageserver)}#/t/{timeline.tenant}/{timeline.id}/history")
    browser.click("button[aria-label='delete the hold doomed']")
    browser.until("does not come back")
    browser.press(Keys.ESCAPE)
    browser.until_gone("dialog")
    names = lambda: [one["name"] for one in timeline.server.http.get(f"{timeline.path}/holds")["holds"]]  # noqa: E731
    assert "doomed" in names()
    browser.click("button[aria-label='delete the hold doomed']")
    browser.click("dialog button[type=submit]")
    wait_until(lambda: "doomed" not in names(), what="no such hold")
    browser.go(f"#/t/{timeline.tenant}/{victim.id}")
    browser.click("button", "Delete")
    browser.until("for good")
    submit = browser.find("dialog button[type=submit]")
    assert not submit.is_enabled(), "its name has to be typed"
    browser.fill("dialog input[name=typed]", victim.id)
    assert submit.is_enabled()
    submit.click()
    timelines = lambda: [one["timeline_id"] for one in timeline.server.http.get(  # noqa: E731
        f"/v1/tenant/{timeline.tenant}/timeline")]
    wait_until(lambda: victim.id not in timelines(), what="the end of the branch")
    # What the server refuses is told, and the dialog stays.
    browser.go(f"#/t/{timeline.tenant}/{timeline.id}")
    browser.click("button", "Delete")
    browser.fill("dialog input[name=typed]", timeline.id)
    browser.click("dialog button[type=submit]")
    assert "branch" in browser.find("dialog .problem").text
    assert timeline.id in timelines()


@pytest.mark.daily
def test_computes_are_started_and_stopped(followed, make_browser, make_computes, make_pageserver):
    timeline, browser, computes = followed.timeline, make_browser(), make_computes(followed.pageserver)
    serving = computes.serve(SERVE_TOKEN)
    # Its port is only known now.
    server = followed.pageserver
    server.configure(console_computes=f"127.0.0.1:{serving.port}", listen_http_addr=f"127.0.0.1:{server.http_port}",
                     listen_pg_addr=f"127.0.0.1:{server.pg_port}")
    server.restart()
    computes.start("worker", "--branch", "dev")
    browser.open(f"{url(server)}#/computes")
    browser.fill("input[name=compute-token]", "something else that is wrong")
    browser.click("button", "Show them")
    browser.until("the bearer token is missing or wrong")
    assert "worker" not in browser.find(".card").text
    browser.click("button", "Give another token")
    browser.fill("input[name=compute-token]", SERVE_TOKEN)
    browser.click("button", "Show them")
    browser.find("[data-compute=worker]", "running")
    browser.click("[data-compute=worker] button", "Log")
    assert "ready to accept connections" in browser.find(".log").text
    browser.click("[data-compute=worker] button", "Stop")
    browser.until("is cut off")
    browser.click("dialog button[type=submit]")
    browser.find("[data-compute=worker]", "stopped", timeout=60)
    assert computes.about("worker")["state"] == "stopped"
    browser.click("[data-compute=worker] button", "Start")
    browser.find("[data-compute=worker]", "running", timeout=60)
    # A moment is opened, read-only.
    browser.go("#/")
    lane = browser.find(f'.lane[data-timeline="{timeline.id}"]')
    browser.point(lane, lane.size["width"] - 2, lane.size["height"] / 2, click=True)
    browser.find("b[data-lsn]")
    browser.click("button", "Open this moment")
    browser.fill("dialog input[name=name]", "then")
    browser.click("dialog button[type=submit]")
    browser.until("then is ready", timeout=60)
    assert computes.about("then")["mode"] == "read-only"
    serving.end()
    browser.go("#/computes")
    browser.until("does not answer at 127.0.0.1")


@pytest.fixture(scope="module")
def guarded(make_pageserver, make_postgres, module_dir):
    signer = Signer()
    place = module_dir / "console-key.pem"
    signer.write_public(place)
    followed = follow_new(make_postgres, make_pageserver, "guarded")
    server = followed.pageserver
    server.allow(POSTGRES_IS_GONE)
    server.configure(http_auth_type="JWT", auth_validation_public_key_path=str(place))
    server.token = signer.admin()
    server.stop()
    server.start()
    return followed, signer


def sign_in(browser, token: str):
    browser.fill("input[name=token]", token)
    browser.click("button", "Sign in")


@pytest.mark.daily
def test_wrong_tokens_see_nothing(guarded, make_browser):
    followed, signer = guarded
    timeline, browser = followed.timeline, make_browser()
    secrets = (timeline.tenant, timeline.id, "postgres:", "follows")
    browser.open(url(followed.pageserver))
    browser.until("asks for a token")
    stranger = Signer()
    wrong = [stranger.admin(), signer.admin(exp=int(time.time()) - 600), signer.tenant(new_id()),
             signer.sign({"scope": "safekeeperdata"}), "nonsense", "a.b.c"]
    for token in wrong:
        followed.pageserver.secret(token) if len(token) > 20 else None
        sign_in(browser, token)
        browser.find("[role=alert]")
        settle(0.2)
        assert not any(secret in browser.html() for secret in secrets), token
        browser.js("sessionStorage.clear()")
        browser.open(url(followed.pageserver))
        browser.until("asks for a token")
    # A token for the tenant sees that.
    sign_in(browser, signer.tenant(timeline.tenant))
    browser.find(f'.lane[data-timeline="{timeline.id}"]')
    assert browser.js("return document.cookie") == "" and browser.js("return localStorage.length") == 0
    # One that ends takes with it what was shown.
    browser.click("button", "Sign out")
    browser.until("asks for a token")
    assert timeline.id not in browser.html()
    sign_in(browser, signer.admin(exp=int(time.time()) - LEEWAY + 12))
    browser.go(f"#/t/{timeline.tenant}/{timeline.id}")
    browser.until("Behind the server")
    browser.until("The token is not accepted (any more)")
    assert not any(secret in browser.html() for secret in secrets)
    assert browser.js("return sessionStorage.length") == 0


@pytest.mark.daily
def test_a_page_of_another_version_says_so(guarded, make_browser):
    followed, signer = guarded
    browser, server = make_browser(), followed.pageserver
    server.configure(listen_http_addr=f"127.0.0.1:{server.http_port}")
    browser.open(url(server))
    sign_in(browser, signer.admin())
    browser.find(".lanes a")
    browser.js("document.querySelector('meta[name=version]').content = 'older'")
    server.restart()
    assert "another version" in browser.find(".stale", timeout=40).text
    browser.click(".stale button")
    browser.find(".lanes a")
    browser.until_gone(".stale")


class Stranger(BaseHTTPRequestHandler):
    """A page of somebody else, which tries to change something at `target`."""

    def do_GET(self):
        body = self.server.page.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_pages_of_other_sites_change_nothing(followed, make_browser):
    timeline, browser = followed.timeline, make_browser()
    server = followed.pageserver
    body = {"new_timeline_id": new_id(), "ancestor_timeline_id": timeline.id, "name": "foreign"}
    made = f"{url(server)}v1/tenant/{timeline.tenant}/timeline"
    lease = f"{url(server)}v1/tenant/{timeline.tenant}/timeline/{timeline.id}/get_lsn_by_timestamp"
    stranger = ThreadingHTTPServer(("127.0.0.1", 0), Stranger)
    stranger.page = f"""<!DOCTYPE html><title>waiting</title><iframe src="{url(server)}"></iframe>
      <img src="{lease}?timestamp=1%20second%20ago&amp;with_lease=true"><script>
      const target = {json.dumps(made)}, body = {json.dumps(json.dumps(body))};
      Promise.allSettled([
        fetch(target, {{method: 'POST', mode: 'no-cors', body}}),
        fetch(target, {{method: 'POST', body, headers: {{'Content-Type': 'application/json'}}}}),
        fetch(target), fetch({json.dumps(f"{url(server)}v1/status")}).then((answer) => answer.text()),
      ]).then((all) => {{ document.title = all.map((one) => one.status).join(); }});</script>"""
    threading.Thread(target=stranger.serve_forever, daemon=True).start()
    try:
        leases = lambda: timeline.server.http.get(f"{timeline.path}/holds")["leases"]  # noqa: E731
        before = leases()
        # Other ports of a host are the same site; another name for it is another one.
        for host in ("127.0.0.1", "localhost"):
            browser.open(f"http://{host}:{stranger.server_port}/")
            ended = "return document.title !== 'waiting' && document.title"
            title = wait_until(lambda: browser.js(ended), what="its end")
            assert title.split(",")[1:] == ["rejected"] * 3, f"{host}: it could read something: {title}"
            assert browser.js("try { return frames[0].document.body.innerText } catch { return '' }") == ""
        settle(1)
        assert "foreign" not in branches(timeline) and leases() == before
    finally:
        stranger.shutdown()
    # It complains of what it was not given, which is the point.
    browser.errors()
    http = HttpClient(server.http_port)
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        path = made.removeprefix(url(server).rstrip("/"))
        status, _, said = http.raw("POST", path, json.dumps(body).encode(), **headers)
        assert status == 403 and b"refused" in said, (headers, status, said)
    own = json.dumps({"lsn": timeline.last_record_lsn()}).encode()
    status, *_ = http.raw("POST", f"{timeline.path}/lsn_lease", own, Origin=url(server).rstrip("/"))
    assert status == 200, "its own pages may"


def test_names_of_others_that_lead_here_are_refused(followed, make_browser, make_pageserver):
    """DNS rebinding: a page of somebody else whose name resolves to this machine by now is of this server's origin to
    the browser. What is asked by that name is refused, also what needs no permission."""
    server = followed.pageserver
    http, tenants = HttpClient(server.http_port), "/v1/tenant"
    for path in (tenants, "/", "/console/app.js", "/console/about", "/metrics", "/v1/status", "/no/such/path"):
        for host in ("evil.example", f"evil.example:{server.http_port}", "127.0.0.1.evil.example", "a b"):
            status, _, said = http.raw("GET", path, Host=host)
            assert status == 403 and b"allowed_hosts" in said, (path, host, status, said)
    for host in ("127.0.0.1", "localhost", f"LOCALHOST:{server.http_port}", "[::1]:1", "10.1.2.3", ""):
        assert http.raw("GET", tenants, Host=host)[0] == 200, host
    browser = make_browser(names=["rebound.test"])
    browser.open(f"http://rebound.test:{server.http_port}{tenants}")
    assert "allowed_hosts" in browser.text() and followed.timeline.tenant not in browser.html()
    browser.errors()
    # Where a name is meant to lead here, it is said so.
    named = make_pageserver("named", allowed_hosts="rebound.test, other.test").start()
    browser.open(f"http://rebound.test:{named.http_port}/")
    browser.until("There is nothing here yet")
    # It complains of headers that count on loopback or with TLS only.
    browser.errors()
    assert HttpClient(named.http_port).raw("GET", tenants, Host="third.test")[0] == 403


def test_the_console_is_careful_and_can_be_turned_off(followed, make_pageserver):
    http = HttpClient(followed.pageserver.http_port)
    status, headers, page = http.raw("GET", "/")
    headers = {name.lower(): value for name, value in headers.items()}
    assert status == 200 and b"pageserver console" in page
    assert "default-src 'none'" in headers["content-security-policy"] and headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in headers["content-security-policy"] and "set-cookie" not in headers
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
    status, _, rest = http.raw("GET", "/", **{"If-None-Match": headers["etag"]})
    assert status == 304 and not rest
    _, answered, packed = http.raw("GET", "/console/app.js", **{"Accept-Encoding": "gzip"})
    assert {name.lower(): value for name, value in answered.items()}["content-encoding"] == "gzip"
    assert packed[:2] == b"\x1f\x8b"
    for path in ("/console/../Cargo.toml", "/console/%2e%2e/Cargo.toml", "/console/vendor", "/console/LICENSES.txt"):
        assert http.raw("GET", path)[0] == 404, path
    plain = make_pageserver("plain", console=False).start()
    assert HttpClient(plain.http_port).raw("GET", "/")[0] == 404
    assert HttpClient(plain.http_port).raw("GET", "/console/app.js")[0] == 404


def test_texts_can_be_read_on_their_grounds():
    """Contrast of all colours of texts with what they are written on: 4.5 at least, as WCAG's AA asks."""
    style = (SOURCES / "style.css").read_text()
    for scheme in re.findall(r":root \{(.*?)\}", style, re.S):
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", scheme))
        for text in ("ink", "quiet", "accent", "good", "warn", "bad"):
            for ground in ("back", "ground", "soft"):
                ratio = contrast(colours[text], colours[ground])
                assert ratio >= 4.5, f"{text} {colours[text]} on {ground} {colours[ground]}: {ratio:.2f}"
        assert contrast(colours["on-accent"], colours["accent"]) >= 4.5


def contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, bright = sorted((light(one), light(other)))
    return (bright + 0.05) / (dark + 0.05)
