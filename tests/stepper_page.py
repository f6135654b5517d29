"""The stepper as its tests see it: opened in a browser, moved, and read back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from playwright.sync_api import Browser, Page

from minisched.core import Request, SamplingParams
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.export.html import to_html
from minisched.export.recipes import recipes
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from tests.browser import watch
from tests.stepper_truth import expected
from tests.support import LOOP_OPTIONS, VOCAB, Workload, play, workloads

# So slow that the device waits for the host: then a token stays in its future slot for a while.
SLOW_HOST = CostModel(
    {"schedule": 9_000_000, "launch": 2_000_000, "process": 3}, 1_000_000, 9, 7, 5
)
LANE = 30  # pixels from lane to lane, as in stepper_scale.js

# What is on the page, in the terms of the trace: for each panel its entries in order, as texts.
READ = """(run) => {
  const frame = document.querySelectorAll(".moment")[run], found = {};
  for (const panel of frame.querySelectorAll("[data-panel]")) {
    const name = panel.dataset.panel, key = [panel.dataset.side, name].filter(Boolean).join(" ");
    if (name === "pages") {
      const { stays } = panel.querySelector("canvas").state;
      found[key] = stays.map((s) => [s.place, s.kind, s.label]);
    } else if (name === "source") {
      const line = panel.querySelector("code.now");
      found[`line of ${panel.dataset.lane}`] = line ? Number(line.dataset.line) : null;
    } else if (name === "counters") {
      found.counters = Object.fromEntries([...panel.querySelectorAll("tr")]
        .map((row) => [row.dataset.counter, row.cells[1].textContent]));
    } else {
      found[key] = [...panel.querySelectorAll("[data-place]")]
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


def large_trace() -> Trace:
    """A run of at least 10,000 slices."""
    params = SamplingParams(max_new_tokens=48)
    requests = [Request(f"r{i}", [i % 50, i % 7, *range(i % 31)], params) for i in range(48)]
    config = SchedulerConfig(kv_tokens=256, max_running_requests=2, chunked_prefill_size=64)
    return run_loop("overlap", SimDevice(), HashModel(64), requests, config, SIM_COST).trace


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """The trace of a small random run."""
    loop, relay, options = draw(st.sampled_from(LOOP_OPTIONS))
    workload: Workload = draw(workloads(max_requests=4))
    device = SimDevice()
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    cost = draw(st.sampled_from([SIM_COST, SLOW_HOST]))
    play(workload, loop, relay, options, device, model, cost)
    return device.recorder.trace(loop, "sim", "hash", "virtual")


@cache
def golden(topic: str) -> Trace:
    """The recorded run of a topic."""
    return recipes()[topic].run()


def check(page: Page, trace: Trace, run: int = 0) -> None:
    """The page shows the state that the trace has at the page's moment, or had at its end."""
    assert shown(page, run) == expected(trace, min(time_of(page), trace.end))


def middle_of(page: Page, selector: str) -> tuple[float, float]:
    """Where the pointer goes to press something."""
    box = page.locator(selector).first.bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def x_of(page: Page, time: int) -> float:
    """Where a moment is on the screen."""
    return float(
        page.evaluate(
            "(time) => scaleOf(axis, page.view).x(time) + axis.getBoundingClientRect().x", time
        )
    )


def per_pixel(page: Page) -> float:
    """Nanoseconds."""
    return float(page.evaluate("(page.view.end - page.view.start) / (axis.clientWidth - LEFT)"))


def point_at(page: Page, trace: Trace, slice_id: int, run: int = 0) -> tuple[float, float]:
    """The middle of a slice on the screen."""
    lane = page.evaluate(
        "([run, id]) => runs[run].lanes.findIndex((l) => l.slices.some((s) => s.id === id))",
        [run, slice_id],
    )
    item = next(item for item in trace.slices if item.id == slice_id)
    box = page.locator("canvas.run").nth(run).bounding_box()
    assert box
    return x_of(page, (item.start + item.end) // 2), box["y"] + LANE * (lane + 0.5)
