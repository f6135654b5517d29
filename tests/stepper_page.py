"""The stepper as its tests see it: opened in a browser, moved, and read back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from minisched.core import Request, SamplingParams
from minisched.devices.cost import SIM_COST
from minisched.devices.sim import SimDevice
from minisched.export.html import to_html
from minisched.export.html_data import NOTABLE
from minisched.export.state import panels
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace

from .browser import watch

# What is on the page, in the terms of the trace: for each panel its entries in order, as texts.
READ = """(run) => {
  const frame = document.querySelectorAll(".moment")[run], found = {};
  for (const panel of frame.querySelectorAll("[data-panel]")) {
    const name = panel.dataset.panel;
    if (name === "pages") {
      const { stays } = panel.querySelector("canvas").state;
      found.pages = stays.map((s) => [s.place, s.kind, s.label]);
    } else if (name === "source") {
      const line = panel.querySelector("code.now");
      found[`line of ${panel.dataset.lane}`] = line ? Number(line.dataset.line) : null;
    } else if (name === "counters") {
      found.counters = Object.fromEntries([...panel.querySelectorAll("tr")]
        .map((row) => [row.cells[0].textContent, row.cells[1].textContent]));
    } else {
      found[name] = [...panel.querySelectorAll("[data-place]")]
        .map((e) => [e.dataset.place, e.dataset.kind, e.textContent]);
    }
  }
  return found;
}"""


@contextmanager
def stepper(
    browser: Browser, folder: Path, traces: Sequence[Trace], link: str = "", **options: Any
) -> Iterator[Page]:
    """The page of these runs, 1400 pixels wide; at the end it must have been clean."""
    path = folder / "stepper.html"
    path.write_text(to_html(traces), encoding="utf-8")
    with watch(browser, **{"viewport": {"width": 1400, "height": 900}, **options}) as watched:
        watched.page.goto(path.as_uri() + link)
        settle(watched.page)
        yield watched.page
        settle(watched.page)


def settle(page: Page) -> None:
    """Wait until what has changed is drawn."""
    page.evaluate("new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")


def press(page: Page, *keys: str) -> int:
    """Press keys; gives the time of the cursor after them."""
    for key in keys:
        page.keyboard.press(key)
    return time_of(page)


def time_of(page: Page) -> int:
    """Where the cursor is, in nanoseconds."""
    settle(page)
    return int(page.get_attribute("#cursor", "data-time") or "")


def shown(page: Page, run: int = 0) -> dict[str, Any]:
    """What the page says of a run at the cursor."""
    settle(page)
    found: dict[str, Any] = page.evaluate(READ, run)
    return found


def expected(trace: Trace, time: int) -> dict[str, Any]:
    """What it should say, from the trace."""
    found: dict[str, Any] = {}
    for panel in (one for one in panels(trace) if one.stays):
        now = panel.at(time)
        stays = [now[place] for place in panel.places if place in now]
        number = {"ring": "slot ", "rows": "row ", "tree": "node "}.get(panel.name, "")
        found[panel.name] = [
            [
                stay.place,
                stay.kind,
                (stay.place.removeprefix(number) if number and panel.name != "pages" else "")
                + stay.label
                + (stay.about if panel.name == "tree" else ""),
            ]
            for stay in stays
        ]
    for lane in {item.lane for item in trace.slices if "line" in item.attrs}:
        before = [s for s in trace.on(lane) if "line" in s.attrs and s.start <= time]
        found[f"line of {lane}"] = before[-1].attrs["line"] if before else None
    found["counters"] = {}
    for counter in trace.counters:
        value = counter.value / 1000 if counter.name.endswith("ratio") else counter.value
        if counter.time <= time:
            found["counters"][counter.name] = f"{value:g}"
        else:
            found["counters"].setdefault(counter.name, "–")
    return found


def events(trace: Trace) -> list[int]:
    """Every moment at which something begins, ends or changes."""
    times = {0, trace.end, *(counter.time for counter in trace.counters)}
    times |= {time for item in trace.slices for time in (item.start, item.end)}
    times |= {time for p in panels(trace) for stay in p.stays for time in (stay.start, stay.end)}
    return sorted(times | {mark.time for mark in trace.marks if mark.name in NOTABLE})


def large_trace() -> Trace:
    """A run of at least 10,000 slices."""
    params = SamplingParams(max_new_tokens=48)
    requests = [Request(f"r{i}", [i % 50, i % 7, *range(i % 31)], params) for i in range(60)]
    config = SchedulerConfig(kv_tokens=256, max_running_requests=2, chunked_prefill_size=64)
    return run_loop("overlap", SimDevice(), HashModel(64), requests, config, SIM_COST).trace
