"""The stepper in a real browser: what it shows at a moment is what the trace says, all over.

Every page here is watched (``browser.py``): an error in the console or a request that leaves the
page fails the test.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page, expect

from minisched.checks.overlap import forwards
from minisched.devices.cost import SIM_COST
from minisched.devices.sim import SimDevice
from minisched.export.html import to_html
from minisched.export.recipes import recipes
from minisched.models.hash import HashModel
from minisched.trace import Trace

from .browser import browser
from .laws import LOOP_OPTIONS, play
from .stepper_page import (
    events,
    expected,
    large_trace,
    press,
    settle,
    shown,
    stepper,
    time_of,
)
from .workloads import VOCAB, Workload, workloads

__all__ = ["browser"]
LANE = 30  # pixels from lane to lane, as in stepper_scale.js


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """The trace of a small random run."""
    loop, relay, options = draw(st.sampled_from(LOOP_OPTIONS))
    workload: Workload = draw(workloads(max_requests=4))
    device = SimDevice()
    play(
        workload, loop, relay, options, device, HashModel(VOCAB, eos_ids=workload.eos_ids), SIM_COST
    )
    return device.recorder.trace(loop, "sim", "hash", "virtual")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stepper")


@cache
def golden(topic: str) -> Trace:
    return recipes()[topic].run()


def check(page: Page, trace: Trace, run: int = 0) -> None:
    """The page shows the state that the trace has at the page's moment."""
    assert shown(page, run) == expected(trace, time_of(page))


@settings(max_examples=7, deadline=None)
@given(traces(), st.lists(st.integers(0, 10**9), min_size=3, max_size=3))
def test_at_any_moment_it_shows_the_state_of_any_run(
    browser: Browser, folder: Path, trace: Trace, places: list[int]
) -> None:
    with stepper(browser, folder, [trace]) as page:
        check(page, trace)
        for place in places:
            page.evaluate("(time) => goTo(time)", place % (trace.end + 1))
            assert time_of(page) == place % (trace.end + 1)
            check(page, trace)
            press(page, *["ArrowRight"] * (1 + place % 3))
            check(page, trace)
            press(page, "Shift+ArrowLeft" if place % 2 else "ArrowLeft")
            check(page, trace)


@pytest.mark.parametrize("topic", ["radix_cache", "retraction", "pd"])
def test_it_shows_the_state_of_a_golden_run(browser: Browser, folder: Path, topic: str) -> None:
    trace = golden(topic)
    with stepper(browser, folder, [trace]) as page:
        for share in (0.1, 0.35, 0.6, 0.85):
            page.evaluate("(time) => goTo(time)", share * trace.end)
            check(page, trace)


def test_keys_and_buttons_go_through_every_event_and_step(browser: Browser, folder: Path) -> None:
    trace = golden("future_map")
    times, starts = events(trace), sorted({item.start for item in forwards(trace)})
    with stepper(browser, folder, [trace]) as page:
        assert press(page, "Home") == 0
        assert [press(page, "ArrowRight") for _ in times[1:20]] == times[1:20]
        assert [press(page, "ArrowLeft") for _ in times[1:20]] == times[18::-1]
        assert [press(page, "Shift+ArrowRight") for _ in starts] == starts
        assert press(page, "Shift+ArrowLeft") == starts[-2]
        assert press(page, "End") == trace.end == press(page, "ArrowRight")
        for name, key in (("back", "ArrowLeft"), ("step-back", "Shift+ArrowLeft")):
            before = press(page, "End")
            page.click(f'[data-do="{name}"]')
            assert time_of(page) < before and (clicked := time_of(page))
            press(page, "End")
            assert press(page, key) == clicked
        check(page, trace)


def test_it_begins_in_a_settled_step(browser: Browser, folder: Path) -> None:
    serial, overlap = golden("serial"), golden("overlap")
    with stepper(browser, folder, [serial, overlap]) as page:
        time = time_of(page)
        running = [item for item in overlap.slices if item.start <= time < item.end]
        assert {"process", "forward"} <= {item.name for item in running}
        assert shown(page, 1)["set"] and shown(page, 1)["pages"] and shown(page, 1)["tree"]
        assert "ring" in shown(page, 1) and "ring" not in shown(page, 0)
        check(page, serial, 0)
        check(page, overlap, 1)


def test_playing_advances_and_stops_at_the_end(browser: Browser, folder: Path) -> None:
    trace = golden("future_map")
    with stepper(browser, folder, [trace]) as page:
        page.select_option("#speed", "16")
        page.locator("#speed").blur()
        before = press(page, "Home", " ")
        page.wait_for_function("page.time > 20e6")
        assert before < press(page, " ") < trace.end
        paused = time_of(page)
        page.wait_for_timeout(100)
        assert time_of(page) == paused
        check(page, trace)
        page.evaluate("goTo(runs[0].end - 3e6)")
        page.click('[data-do="play"]')
        page.wait_for_function("!playing")
        assert time_of(page) == trace.end
        assert page.inner_text('[data-do="play"]') == "▶ play"


def test_who_wants_little_motion_gets_events_only(browser: Browser, folder: Path) -> None:
    trace = golden("future_map")
    with stepper(browser, folder, [trace], reduced_motion="reduce") as page:
        seen = page.evaluate("""async () => {
            const seen = [];
            goTo(0);
            togglePlay();
            while (page.time < 25e6) {
              seen.push(page.time);
              await new Promise(requestAnimationFrame);
            }
            pause();
            return seen;
        }""")
        assert len(set(seen)) > 3 and set(seen) <= set(events(trace))


def middle_of(page: Page, selector: str) -> tuple[float, float]:
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
    return float(page.evaluate("(page.view.end - page.view.start) / (axis.clientWidth - LEFT)"))


def test_the_cursor_is_dragged(browser: Browser, folder: Path) -> None:
    trace = golden("overlap")
    with stepper(browser, folder, [trace]) as page:
        time, (_, y) = time_of(page), middle_of(page, "canvas.run")
        page.mouse.move(x_of(page, time) + 2, y)
        page.mouse.down()
        page.mouse.move(x_of(page, time) + 60, y)
        page.mouse.move(x_of(page, time) + 121, y)
        page.mouse.up()
        moved = time_of(page)
        view = page.evaluate("[page.view.start, page.view.end]")
        assert abs(moved - time - 121 * per_pixel(page)) < 3 * per_pixel(page)
        check(page, trace)
        page.mouse.move(x_of(page, moved) + 200, y)  # elsewhere a drag moves the picture
        page.mouse.down()
        page.mouse.move(x_of(page, moved) + 150, y)
        page.mouse.up()
        settle(page)
        assert time_of(page) == moved and page.evaluate("page.view.start") > view[0]
        x, y = middle_of(page, "#position")
        page.mouse.click(x, y)
        assert abs(time_of(page) - trace.end / 2) < trace.end / 500
        page.mouse.down()
        page.mouse.move(x + 100, y)
        page.mouse.up()
        width = page.evaluate("position.clientWidth")
        assert abs(time_of(page) - trace.end * (0.5 + 100 / width)) < trace.end / 500
        assert page.evaluate("isSeen(page.time)")
        check(page, trace)
        page.mouse.click(*middle_of(page, "canvas.axis"))
        assert abs(x_of(page, time_of(page)) - middle_of(page, "canvas.axis")[0]) < 1.1


def test_a_link_leads_to_a_moment(browser: Browser, folder: Path) -> None:
    both = [golden("serial"), golden("overlap")]
    state = "[page.time, page.view.start, page.view.end, page.run, [...page.chosen].join()]"
    with stepper(browser, folder, both, "#t=12.5&view=0-60&run=0&rid=a,c") as page:
        assert page.evaluate(state) == [12_500_000, 0, 60_000_000, 0, "a,c"]
        check(page, both[0], 0)
        press(page, "ArrowRight", "ArrowRight")
        now = page.evaluate(state)
        page.wait_for_function("location.hash === addressOf(page)")
        link = page.evaluate("location.hash")
    with stepper(browser, folder, both, link) as page:
        assert page.evaluate(state) == now
        page.evaluate("location.hash = '#t=99.25'")
        page.wait_for_function("page.time === 99.25e6")
        page.evaluate("location.hash = '#20-60'")  # the first form: a view alone
        page.wait_for_function("page.view.start === 20e6 && page.view.end === 60e6")
        assert page.evaluate("isSeen(page.time)")
    with stepper(browser, folder, both, "#t=soon&view=9&run=7&rid=%,nobody&%%") as page:
        assert page.evaluate("[page.run, page.chosen.size]") == [1, 0]
        check(page, both[1], 1)


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


def test_pointing_at_a_slice_shows_its_arrows(browser: Browser, folder: Path) -> None:
    trace = golden("overlap")
    with stepper(browser, folder, [trace]) as page:
        press(page, "0")  # so small that no arrow is shown unless it is pointed at
        page.evaluate("""() => {
            const draw = arrow;
            window.drawn = [];
            arrow = (pen, edge, ...more) => {
              window.drawn.push([edge.src.id, edge.dst.id]);
              draw(pen, edge, ...more);
            };
        }""")
        item = forwards(trace)[20]
        settle(page)
        assert page.evaluate("drawn") == []
        page.mouse.move(*point_at(page, trace, item.id))
        settle(page)
        wanted = [[e.src, e.dst] for e in trace.edges if item.id in (e.src, e.dst)]
        assert sorted(page.evaluate("drawn")) == sorted(wanted) != []
        assert f"forward, step {item.step}" in page.inner_text("#tip")
        page.mouse.move(5, 5)
        expect(page.locator("#tip")).to_be_hidden()


def test_a_slice_leads_to_its_requests_whole_life(browser: Browser, folder: Path) -> None:
    trace = golden("retraction")
    item = next(s for s in forwards(trace) if s.rids == ("c",) and s.duration)
    with stepper(browser, folder, [trace], f"#t={item.start / 1e6}") as page:
        page.mouse.click(*point_at(page, trace, item.id))
        settle(page)
        assert page.evaluate("[...page.chosen]") == ["c"]
        life = page.locator("#life a").evaluate_all(
            "(all) => all.map((a) => [+a.dataset.time, a.text])"
        )
        assert life == sorted(life, key=lambda moment: moment[0])
        steps = [[s.start, str(s.step)] for s in forwards(trace) if "c" in s.rids]
        assert [moment for moment in life if moment[1].isdecimal()] == steps
        told = " ".join(text for _, text in life)
        for word in ("arrives", "admitted", "retracted (memory)", "finishes"):
            assert word in told
        marks = [m for m in trace.marks if m.name == "retraction" and m.attrs["rid"] == "c"]
        assert told.count("retracted") == len(marks) > 0
        chosen = {place for place, *_ in shown(page)["set"] if place == "c"}
        assert {e.get_attribute("data-place") for e in page.query_selector_all(
            '[data-panel="set"] .chosen')} == chosen  # fmt: skip
        page.locator("#life a", has_text="finishes").click()
        assert time_of(page) == next(time for time, text in life if "finishes" in text)
        check(page, trace)
        press(page, "Escape")
        expect(page.locator("#life")).to_be_hidden()


def test_a_selection_dims_the_others(browser: Browser, folder: Path) -> None:
    trace = golden("retraction")
    with stepper(browser, folder, [trace]) as page:
        alone = [s for s in forwards(trace) if len(s.rids) == 1]
        mine, other = alone[0], next(s for s in alone if s.rids != alone[0].rids)
        page.evaluate("show(0, longest)")

        def colour(item: Any) -> Any:
            settle(page)
            x, y = point_at(page, trace, item.id)
            return page.evaluate(
                """([x, y]) => {
                  const c = document.querySelector("canvas.run"), box = c.getBoundingClientRect();
                  const pen = c.getContext("2d");
                  return [...pen.getImageData(x - box.x, y - box.y - 8, 1, 1).data];
                }""",
                [x, y],
            )

        before = colour(mine), colour(other)
        page.evaluate("(rid) => choose([rid])", mine.rids[0])
        assert colour(mine) == before[0] and colour(other) != before[1]
        page.evaluate("choose([])")
        assert (colour(mine), colour(other)) == before


def test_panels_lead_to_a_life_too(browser: Browser, folder: Path) -> None:
    trace = golden("overlap")
    with stepper(browser, folder, [trace]) as page:
        for panel, selector in (("set", '[data-place="b"]'), ("rows", '[data-place="row 4"]')):
            page.click(f'[data-panel="{panel}"] {selector}')
            rid = next(text for place, _, text in shown(page)[panel] if f'"{place}"' in selector)
            assert page.evaluate("[...page.chosen]") == [rid.lstrip("0123456789")]
        x, y, rid = page.evaluate("""() => {
          const canvas = document.querySelector('[data-panel="pages"] canvas');
          const stay = canvas.state.stays.find((stay) => stay.kind === "admitted");
          const [x, y] = corner(canvas.grid, pageNumber(stay.place) - 1);
          const box = canvas.getBoundingClientRect();
          return [box.x + x + 3, box.y + y + 3, stay.label];
        }""")
        page.mouse.click(x, y)
        assert page.evaluate("[...page.chosen]") == [rid]


def test_pages_have_their_owners_colours(browser: Browser, folder: Path) -> None:
    trace = golden("overlap")
    with stepper(browser, folder, [trace]) as page:
        wrong = page.evaluate("""() => {
          const canvas = document.querySelector('[data-panel="pages"] canvas'), wrong = [];
          const pen = canvas.getContext("2d");
          for (const stay of canvas.state.stays.filter((stay) => stay.kind === "admitted")) {
            const [x, y] = corner(canvas.grid, pageNumber(stay.place) - 1);
            const [r, g, b] = pen.getImageData(x + 1, y + 1, 1, 1).data;
            const hex = "#" + [r, g, b].map((n) => n.toString(16).padStart(2, "0")).join("");
            if (hex !== owners.get(stay.label)[0].toLowerCase()) wrong.push([stay, hex]);
          }
          return wrong;
        }""")
        assert wrong == []


@pytest.mark.parametrize("width", [700, 390])
def test_a_narrow_screen_has_tabs(browser: Browser, folder: Path, width: int) -> None:
    runs = [golden(name) for name in ("serial", "overlap", "mlx_async")]
    with stepper(browser, folder, runs, viewport={"width": width, "height": 900}) as page:
        expect(page.locator(".moment:visible")).to_have_count(1)
        page.get_by_role("tab", name="mlx_async").click()
        expect(page.locator(".moment:visible")).to_have_attribute("data-run", "2")
        check(page, runs[2], 2)
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(overflow) == 0
        page.set_viewport_size({"width": 1400, "height": 900})
        expect(page.locator(".moment:visible")).to_have_count(3)


def test_dark_paper_is_drawn_again(browser: Browser, folder: Path) -> None:
    corner = 'document.querySelector("canvas.run").getContext("2d").getImageData(300, 4, 1, 1).data'
    with stepper(browser, folder, [golden("overlap")]) as page:
        light = page.evaluate(f"[...{corner}]")
        page.emulate_media(color_scheme="dark")
        settle(page)
        assert sum(page.evaluate(f"[...{corner}]")[:3]) < sum(light[:3]) / 3


def test_every_button_says_what_it_does(browser: Browser, folder: Path) -> None:
    with stepper(browser, folder, [golden("overlap")]) as page:
        for button in page.locator("nav button").all():
            assert button.get_attribute("title") and button.get_attribute("aria-label")
        press(page, "?")
        assert "shift" in page.inner_text("#keys")
        page.keyboard.press("Escape")
        expect(page.locator("#keys")).to_be_hidden()
        page.keyboard.press("Tab")
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert page.evaluate(outline) == "solid"


@pytest.mark.parametrize("count", [1, 10])
def test_it_works_for_a_few_slices(browser: Browser, folder: Path, count: int) -> None:
    whole = golden("serial")
    kept = whole.slices[:count]
    ids, end = {item.id for item in kept}, max(item.end for item in kept)
    trace = Trace(
        "serial", "sim", "hash", "virtual", kept,
        tuple(e for e in whole.edges if e.src in ids and e.dst in ids),
        tuple(c for c in whole.counters if c.time <= end),
        tuple(m for m in whole.marks if m.time <= end and m.name != "future slots"),
    )  # fmt: skip
    with stepper(browser, folder, [trace]) as page:
        check(page, trace)
        assert press(page, "Home", "End") == end
        check(page, trace)


def test_it_works_for_ten_thousand_slices(browser: Browser, folder: Path) -> None:
    trace = large_trace()
    assert len(trace.slices) > 10_000
    assert len(to_html([trace])) < 6e6
    with stepper(browser, folder, [trace]) as page:
        page.evaluate("""() => {
          const draw = drawSlice;
          window.count = 0;
          drawSlice = (...all) => { count++; draw(...all); };
        }""")
        for keys in (
            ["ArrowRight"] * 5,
            ["Shift+ArrowRight"] * 5,
            ["End"],
            ["Shift+ArrowLeft"] * 3,
        ):
            press(page, *keys)
            check(page, trace)
        page.evaluate("count = 0; redraw('lanes')")
        settle(page)
        assert 0 < page.evaluate("count") < 200, "only what is visible is drawn"
        page.evaluate("count = 0")
        press(page, "0")
        lanes, width = page.evaluate("[runs[0].lanes.length, axis.clientWidth]")
        assert page.evaluate("count") < 2 * lanes * width, "not twice in one pixel"


def test_only_notable_marks_are_flags() -> None:
    found = re.search(
        r'<script id="data"[^>]*>(.*?)</script>', to_html([golden("retraction")]), re.S
    )
    assert found
    names = {text.split(" rid ")[0] for _, text in json.loads(found[1])["runs"][0]["marks"]}
    assert names == {"retraction", "finish", "wasted row"}
