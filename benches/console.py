#!/usr/bin/env python3
"""What the console costs: its first paint, its weight, and how smoothly it draws many layers, in a headless Chromium.

A database is followed by a pageserver whose layers are small, and changed until there are as many of them as asked for.
Then, with a new browser each time: the page is opened, from the command to its first paint and to the branches, and
what was transferred and from whom is counted. The layer map is moved for some seconds with all layers in view, then
closer, with the pointer over it; frames are those that were drawn. Its layers are compared with the server's list, and
what it tells of places with the layers that are there. Nothing is left behind but console.json.
"""

import argparse
import json
import os
import time
from pathlib import Path

import artifact
from compute_figures import MIB_PER_SCALE, Bench, with_place

from fixtures.browser import Browser
from fixtures.wait import wait_until

SMALL = {"checkpoint_distance": 1 << 20, "compaction_target_size": 1 << 16, "pitr_interval": "7days"}
# Moves the map each time that the browser draws, for some seconds; `depth` is the part that is seen at most.
MOVE = """
const [canvas, seconds, depth, done] = arguments;
const map = canvas.map, drawn = [], gaps = [], draw = map.draw.bind(map);
map.draw = (now) => { const began = performance.now(); draw(now); drawn.push(performance.now() - began); };
map.fit();
const box = canvas.getBoundingClientRect(), first = map.frames, began = performance.now();
let last = began, turn = 0;
const step = (now) => {
  gaps.push(now - last);
  last = now;
  turn += 1;
  const size = depth * (0.95 + 0.05 * Math.sin(turn / 9));
  map.send((1 - size) * (0.5 + 0.5 * Math.sin(turn / 40)), (1 - size) * (0.5 + 0.5 * Math.cos(turn / 50)), size, size);
  const clientX = box.left + 100 + (turn * 7) % (box.width - 120);
  const clientY = box.top + 20 + (turn * 3) % (box.height - 60);
  canvas.dispatchEvent(new PointerEvent('pointermove', { bubbles: true, clientX, clientY }));
  if (now - began < seconds * 1000) return requestAnimationFrame(step);
  map.draw = draw;
  done({ seconds: (now - began) / 1000, frames: map.frames - first, gaps: gaps.slice(1), drawn });
};
requestAnimationFrame(step);
"""
# Whether the layer that is told at the middle of each is one that is there, and none is drawn over it.
PLACES = """
const { layers, view } = arguments[0].map;
let wrong = 0;
layers.list.forEach((one, at) => {
  const x = (layers.x0[at] + layers.x1[at]) / 2, y = (layers.y0[at] + layers.y1[at]) / 2, told = layers.at(x, y, 0);
  const inside = told >= at && layers.x0[told] <= x && x < layers.x1[told];
  if (!inside || y < layers.y0[told] || y >= layers.y1[told]) wrong += 1;
});
return { count: layers.list.length, wrong };
"""


class ConsoleFigures(Bench):
    """A pageserver with many layers, and browsers."""

    def run(self) -> dict:
        scale = max(1, round(self.args.mib / MIB_PER_SCALE))
        server = self.make_database("origin", scale)
        followed = self.follow(server, keep=True, **SMALL)
        timeline = followed.timeline
        count = self.grow(server, followed)
        found = {"layers": count, "opened": [self.opened(timeline) for _ in range(self.args.rounds)]}
        return {**found, "map": self.drawn(timeline)}

    def count(self, timeline) -> int:
        return timeline.info()["layer_count"]

    def grow(self, server, followed) -> int:
        """Changes until there are enough layers. Compaction may go on: the map shows layers as they come and go."""
        timeline, end = followed.timeline, time.monotonic() + self.args.grow_seconds
        while self.count(timeline) < self.args.layers:
            assert time.monotonic() < end, f"only {self.count(timeline)} layers"
            server.run("pgbench", "-n", "-c", 4, "-T", 10, *server.connection(), timeout=300)
            followed.catch_up(600)
            self.say(f"{self.count(timeline)} layers")
        return self.count(timeline)

    def opened(self, timeline) -> dict:
        """The page in a new browser, which has nothing of it yet."""
        browser = Browser()
        try:
            began = time.monotonic()
            browser.open(f"http://127.0.0.1:{self.pageserver.http_port}/")
            browser.find(f'.lane[data-timeline="{timeline.id}"]')
            tree = time.monotonic() - began
            paint = browser.first_paint_ms()
            sizes = browser.transferred()
            page = {url: size for url, size in sizes.items() if "/v1/" not in url}
            self.validity.equal(len(page) > 10, True)
            hosts = browser.hosts() - {f"127.0.0.1:{self.pageserver.http_port}"}
            found = {"first_paint_ms": round(paint, 1), "branches_ms": round(tree * 1000), "requests": len(page),
                     "page_bytes": sum(page.values()), "other_hosts": sorted(hosts)}
            self.version = browser.driver.capabilities["browserVersion"]
        finally:
            browser.end()
        self.say(json.dumps(found))
        return found

    def drawn(self, timeline) -> dict:
        """The layer map in motion."""
        browser = Browser()
        try:
            browser.driver.set_script_timeout(120)
            browser.open(f"http://127.0.0.1:{self.pageserver.http_port}/#/t/{timeline.tenant}/{timeline.id}/layers")
            canvas = browser.find("canvas")
            shown = lambda: int(canvas.get_attribute("data-layers") or 0) >= self.args.layers  # noqa: E731
            wait_until(shown, 60, what="all layers")
            places = browser.js(PLACES, canvas)
            self.validity.add(expected=places["count"], seen=places["count"], different=places["wrong"])
            moves = {}
            for name, depth in (("all", 1), ("closer", 0.3)):
                moves[name] = [self.moved(browser, canvas, depth) for _ in range(self.args.rounds)]
            return {"shown": places["count"], "moves": moves}
        finally:
            browser.end()

    def moved(self, browser, canvas, depth: float) -> dict:
        found = browser.driver.execute_async_script(MOVE, canvas, self.args.seconds, depth)
        gaps, drawn = sorted(found["gaps"]), sorted(found["drawn"])
        at = lambda values, part: round(values[min(len(values) - 1, int(len(values) * part))], 2)  # noqa: E731
        result = {"frames_per_s": round(found["frames"] / found["seconds"], 1), "gap_p99_ms": at(gaps, 0.99),
                  "gap_max_ms": at(gaps, 1), "draw_p50_ms": at(drawn, 0.5), "draw_p99_ms": at(drawn, 0.99)}
        self.say(json.dumps(result))
        return result


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=450, help="size of the database")
    parser.add_argument("--layers", type=int, default=10_000, help="as many layers at least")
    parser.add_argument("--grow-seconds", type=int, default=900, help="how long these may take to come")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5, help="of each movement of the map")
    return with_place(parser)


def main():
    args = parse_args()
    bench = ConsoleFigures(args)
    bench.validity = artifact.Validity("layers")
    topology = artifact.topology(args.dir, profile=os.environ.get("TEST_PROFILE", "release"))
    results = {"pg_major": args.pg_major}
    try:
        results.update(bench.run())
        results["browser"] = bench.version
    finally:
        bench.clean()
    print(json.dumps(results))
    if args.out:
        artifact.refusing(lambda: artifact.write(Path(args.out) / "console.json", topology, bench.validity, results))


if __name__ == "__main__":
    main()
