"""The stepper in a real browser: what it shows at a moment is what the trace says, all over.

Every page is watched (``support.py:watch``): an error in the console or a request that leaves the
page fails the test.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from playwright.sync_api import Browser, Frame, Page, expect

from minisched.checks.overlap import forwards
from minisched.export.html import FLAGS, to_html
from minisched.export.notebook import show
from minisched.export.pictures.compare import DESIGNS
from minisched.export.state import panels
from minisched.recipes import RECIPES, run_of
from minisched.trace import Mark, Slice, Trace
from tests.support import browser, watch

__all__ = ["browser"]
READY = "document.getElementById('time').textContent !== ''"
LANE = 30  # pixels from lane to lane, as in stepper_draw.js

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
    } else {
      found[key] = [...panel.querySelectorAll("[data-place]")]
        .map((e) => [e.dataset.place, e.dataset.kind, e.textContent]);
    }
  }
  return found;
}"""


@contextmanager
def stepper(
    browser: Browser, folder: Path, traces: Sequence[Trace], link: str = ""
) -> Iterator[Page]:
    """The page of these runs, 1400 pixels wide; at the end it must have been clean."""
    path = folder / "stepper.html"
    path.write_text(to_html(traces), encoding="utf-8")
    with watch(browser, viewport={"width": 1400, "height": 900}) as page:
        page.goto(path.as_uri() + link)
        page.wait_for_function(READY)
        settle(page)
        yield page
        settle(page)


def settle(page: Page) -> None:
    """Wait until what has changed is drawn."""
    page.evaluate("new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")


def go_to(page: Page, time: float) -> None:
    page.evaluate("(time) => goTo(time)", time)
    settle(page)


def time_of(page: Page) -> int:
    """Where the cursor is, in nanoseconds."""
    settle(page)
    return int(page.get_attribute("#cursor", "data-time") or "")


def press(page: Page, *keys: str) -> int:
    """Press keys; gives the time of the cursor after them."""
    for key in keys:
        page.keyboard.press(key)
    return time_of(page)


@cache
def golden(topic: str) -> Trace:
    return RECIPES[topic].run()


def expected(trace: Trace, time: int) -> dict[str, Any]:
    """What the page should say, from the trace."""
    found: dict[str, Any] = {}
    for panel in (one for one in panels(trace) if one.stays):
        now = panel.at(time)
        number = {"ring": "slot ", "rows": "row ", "tree": "node "}.get(panel.name, "")
        found[f"{panel.side} {panel.name}".strip()] = [
            [
                stay.place,
                stay.kind,
                (stay.place.removeprefix(number) if number else "")
                + stay.label
                + (stay.about if panel.name == "tree" else ""),
            ]
            for stay in (now[place] for place in panel.places if place in now)
            if stay.kind != "stale" or panel.name != "ring"
        ]
    for lane in {item.lane for item in trace.slices if "line" in item.attrs}:
        before = [s for s in trace.on(lane) if "line" in s.attrs and s.start <= time]
        found[f"line of {lane}"] = before[-1].attrs["line"] if before else None
    return found


def check(page: Page, trace: Trace, run: int = 0) -> None:
    """The page shows the state that the trace has at the page's moment, or had at its end."""
    time = min(time_of(page), trace.end)
    assert page.evaluate(READ, run) == expected(trace, time)


def events(trace: Trace) -> list[int]:
    """Every moment at which something begins, ends or changes."""
    times = {0, trace.end}
    times |= {time for item in trace.slices for time in (item.start, item.end)}
    times |= {time for p in panels(trace) for stay in p.stays for time in (stay.start, stay.end)}
    return sorted(times | {mark.time for mark in trace.marks if mark.name in FLAGS})


def x_of(page: Page, time: int) -> float:
    """Where a moment is on the screen."""
    script = "(time) => scaleOf(axis, page.view).x(time) + axis.getBoundingClientRect().x"
    return float(page.evaluate(script, time))


def point_at(page: Page, item: Slice) -> tuple[float, float]:
    """The middle of a slice of the first run on the screen."""
    lane = page.evaluate(
        "(id) => runs[0].lanes.findIndex((l) => l.slices.some((s) => s.id === id))", item.id
    )
    box = page.locator("canvas.run").first.bounding_box()
    assert box
    return x_of(page, (item.start + item.end) // 2), box["y"] + LANE * (lane + 0.5)


# -- the state, and ways through it ----------------------------------------------------------------


@pytest.mark.parametrize("topic", ["radix_cache", "retraction", "pd"])
def test_at_any_moment_it_shows_the_state(browser: Browser, tmp_path: Path, topic: str) -> None:
    trace = golden(topic)
    with stepper(browser, tmp_path, [trace]) as page:
        check(page, trace)
        for share in (0.1, 0.35, 0.6, 0.85):
            go_to(page, int(share * trace.end))
            assert time_of(page) == int(share * trace.end)
            check(page, trace)
            press(page, "ArrowRight", "ArrowRight")
            check(page, trace)
            press(page, "Shift+ArrowLeft")
            check(page, trace)
        assert press(page, "Home", "End") == trace.end
        check(page, trace)


def test_keys_and_buttons_go_through_every_event_and_playing_stops_at_the_end(
    browser: Browser, tmp_path: Path
) -> None:
    run = golden("future_map")
    flag = Mark("flush cache", 17, {"done": True})  # a moment of its own
    trace = replace(run, marks=tuple(sorted([*run.marks, flag], key=lambda mark: mark.time)))
    times, starts = events(trace), sorted({item.start for item in forwards(trace)})
    with stepper(browser, tmp_path, [trace]) as page:
        assert press(page, "Home") == 0
        assert [press(page, "ArrowRight") for _ in times[1:20]] == times[1:20]
        assert [press(page, "ArrowLeft") for _ in times[1:20]] == times[18::-1]
        assert [press(page, "Shift+ArrowRight") for _ in starts] == starts
        assert press(page, "Shift+ArrowLeft") == starts[-2]
        assert press(page, "End") == trace.end == press(page, "ArrowRight")
        page.click('[data-do="back"]')
        assert time_of(page) == times[times.index(trace.end) - 1]
        page.select_option("#speed", "0.25")  # a minute and more: nobody is late for the end
        page.evaluate("document.activeElement.blur()")
        before = press(page, "Home", " ")
        page.wait_for_function("(before) => page.time > before", arg=before)
        assert before < press(page, " ") < trace.end
        check(page, trace)
        page.select_option("#speed", "16")
        page.evaluate("goTo(runs[0].end - 3e6)")
        page.click('[data-do="play"]')
        page.wait_for_function("!playing")
        assert time_of(page) == trace.end and page.inner_text('[data-do="play"]') == "▶ play"


def test_a_link_leads_to_a_moment(browser: Browser, tmp_path: Path) -> None:
    both = [golden("serial"), golden("overlap")]
    state = "[page.time, page.view.start, page.view.end, page.run, [...page.chosen].join()]"
    with stepper(browser, tmp_path, both, "#t=12.5&view=0-60&run=0&rid=a,c") as page:
        assert page.evaluate(state) == [12_500_000, 0, 60_000_000, 0, "a,c"]
        check(page, both[0], 0)
        press(page, "ArrowRight", "ArrowRight")
        now = page.evaluate(state)
        page.wait_for_function("location.hash === addressOf(page)")
        link = page.evaluate("location.hash")
    with stepper(browser, tmp_path, both, link) as page:
        assert page.evaluate(state) == now
        page.evaluate("location.hash = '#view=20-60'")
        page.wait_for_function("page.view.start === 20e6 && page.view.end === 60e6")
    with stepper(browser, tmp_path, both, "#t=soon&view=1-0&run=7&rid=%,nobody&%%") as page:
        before = page.evaluate("[data.now, page.view]")
        page.evaluate("show(...few)")
        assert [time_of(page), page.evaluate("page.view")] == before
        assert page.evaluate("[page.run, page.chosen.size]") == [1, 0]
        check(page, both[1], 1)


# -- under the pointer -----------------------------------------------------------------------------


def test_a_slice_leads_to_its_requests_life_and_the_cursor_is_dragged(
    browser: Browser, tmp_path: Path
) -> None:
    trace = golden("retraction")
    item = next(s for s in forwards(trace) if s.rids == ("c",) and s.duration)
    with stepper(browser, tmp_path, [trace], f"#t={item.start / 1e6}") as page:
        page.mouse.click(*point_at(page, item))
        settle(page)
        assert page.evaluate("[...page.chosen]") == ["c"]
        read = "(all) => all.map((a) => [+a.dataset.time, a.text])"
        life = page.locator("#life a").evaluate_all(read)
        assert life == sorted(life, key=lambda moment: moment[0])
        steps = [[s.start, str(s.step)] for s in forwards(trace) if "c" in s.rids]
        assert [moment for moment in life if moment[1].isdecimal()] == steps
        told = " ".join(text for _, text in life)
        assert all(word in told for word in ("arrives", "admitted", "retracted", "finishes"))
        page.locator("#life a", has_text="finishes").click()
        finish = next(time for time, text in life if "finishes" in text)
        expect(page.locator("#cursor")).to_have_attribute("data-time", str(finish))
        check(page, trace)
        pixel = "(page.view.end - page.view.start) / (axis.clientWidth - LEFT)"
        go_to(page, item.start)
        (x, per), y = (x_of(page, item.start), page.evaluate(pixel)), point_at(page, item)[1]
        page.mouse.move(x + 2, y)
        page.mouse.down()
        page.mouse.move(x + 121, y)
        page.mouse.up()
        assert abs(time_of(page) - item.start - 121 * per) < 3 * per
        check(page, trace)


# -- what is shown of it, and of which runs -------------------------------------------------------


def test_the_view_never_leaves_the_runs(browser: Browser, tmp_path: Path) -> None:
    rng = Random(7)
    with stepper(browser, tmp_path, [golden("serial"), golden("vllm_pp")]) as page:
        for _ in range(40):
            key = rng.choice([*"+-01,.", "Home", "End", "ArrowRight", "Shift+ArrowLeft"])
            press(page, key)
            start, end, longest = page.evaluate("[page.view.start, page.view.end, longest]")
            assert 0 <= start < end <= longest, key


def test_two_of_many_runs_are_shown_and_a_link_keeps_them(browser: Browser, tmp_path: Path) -> None:
    runs = [golden(topic) for topic in ("serial", "overlap", "mini_overlap", "vllm_batch_queue")]
    names = "[...document.querySelectorAll('section.run')].map((one) => one.hidden)"
    with stepper(browser, tmp_path, runs) as page:
        page.click('[data-toggle="0"]')
        page.click('[data-toggle="3"]')
        settle(page)
        assert page.evaluate(names) == [False, True, True, False]
        page.evaluate("activate(3)")
        page.wait_for_function("location.hash === addressOf(page)")
        link = page.evaluate("location.hash")
    with stepper(browser, tmp_path, runs, link) as page:
        assert page.evaluate(names) == [False, True, True, False]
        assert page.evaluate("page.run") == 3
        page.click('[data-do="all-runs"]')
        settle(page)
        assert page.evaluate(names) == [False] * 4


def test_a_lane_is_folded_at_its_name_and_what_is_below_moves_up(
    browser: Browser, tmp_path: Path
) -> None:
    trace = golden("overlap")
    item = next(s for s in trace.slices if s.name == "copy" and s.start > trace.end // 2)
    with stepper(browser, tmp_path, [trace], f"#t={item.start / 1e6}") as page:
        box, height = page.locator("canvas.run").bounding_box(), "canvases[0].clientHeight"
        before = page.evaluate(height)
        assert box
        page.mouse.click(box["x"] + 20, box["y"] + LANE / 2)
        settle(page)
        folded = page.evaluate("FOLDED")
        assert page.evaluate(height) == before - LANE + folded
        x, y = point_at(page, item)
        page.mouse.click(x, y - LANE + folded)
        settle(page)
        assert page.evaluate("[...page.chosen]") == [item.rids[0]]
        page.mouse.click(x, y - LANE + folded)
        settle(page)
        assert page.evaluate("[...page.chosen]") == [item.rids[1 % len(item.rids)]]
        page.keyboard.press("f")
        settle(page)
        assert page.evaluate(height) == before


@pytest.mark.parametrize("loops", [("serial", "overlap"), DESIGNS], ids=len)
def test_on_a_phone_nothing_is_cut_off(
    browser: Browser, tmp_path: Path, loops: Sequence[str]
) -> None:
    path = tmp_path / "stepper.html"
    path.write_text(to_html([run_of(loop) for loop in loops]), encoding="utf-8")
    with watch(browser, viewport={"width": 390, "height": 844}) as page:
        page.goto(path.as_uri())
        page.wait_for_function(READY)
        settle(page)
        wider = """[...document.querySelectorAll("body *")]
          .filter((one) => one.clientWidth && one.scrollWidth > one.clientWidth + 1)
          .map((one) => one.outerHTML.slice(0, 200))"""
        assert page.evaluate(wider) == []
        assert page.evaluate("document.documentElement.scrollWidth") == 390


# -- in a notebook ---------------------------------------------------------------------------------


def test_a_cell_of_a_notebook_shows_the_page_in_a_frame_that_stays_by_itself(
    browser: Browser, tmp_path: Path
) -> None:
    path, cell = tmp_path / "notebook.html", show(golden("overlap"), height=700)._repr_html_()
    path.write_text(f"<!doctype html><h1>a lesson</h1><div>{cell}</div>", encoding="utf-8")
    with watch(browser) as page:
        page.goto(path.as_uri())
        box = page.locator("iframe").bounding_box()
        assert box and box["height"] == 700
        frame: Frame = page.frames[1]
        frame.wait_for_function(READY)
        frame.click('[data-do="forward"]')
        frame.locator("body").press("Home")
        frame.wait_for_function("page.time === 0")
        frame.evaluate("choose(['a'])")
        frame.locator("#life a").last.click()
        frame.wait_for_function("page.time > 0 && page.chosen.has('a')")
        page.wait_for_timeout(400)  # longer than an address waits to be written
        assert page.url == path.as_uri() and page.frames[1] == frame
        assert frame.evaluate("page.chosen.size") == 1, "the frame has not gone elsewhere"
