"""The stepper in a real browser: what it shows at a moment is what the trace says, all over.

Every page is watched (``support.py:watch``): an error in the console or a request that leaves the
page fails the test.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Frame, Page, expect

from minisched.checks.draw.draw import designs_for, draw
from minisched.checks.judge import judge
from minisched.checks.overlap.overlap import forwards
from minisched.core import Request, SamplingParams
from minisched.devices.cost import SIM_COST
from minisched.devices.sim import SimDevice
from minisched.export.html import to_html
from minisched.export.html_data import NOTABLE
from minisched.export.layout import boxes_of
from minisched.export.notebook import show
from minisched.export.recipes import recipes
from minisched.export.state import Panel, panels
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Mark, Slice, Trace
from tests.support import browser, watch

__all__ = ["browser"]
LANE = 30  # pixels from lane to lane, as in stepper_scale.js
SMALL = {"width": 700, "height": 900}

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
    with watch(browser, **{"viewport": {"width": 1400, "height": 900}, **options}) as page:
        page.goto(path.as_uri() + link)
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
    """The recorded run of a topic."""
    return recipes()[topic].run()


made: dict[int, tuple[Trace, tuple[Panel, ...]]] = {}  # those of a long run take a second


def panels_of(trace: Trace) -> tuple[Panel, ...]:
    if id(trace) not in made:
        made[id(trace)] = trace, tuple(panels(trace))
    return made[id(trace)][1]


def expected(trace: Trace, time: int) -> dict[str, Any]:
    """What the page should say, from the trace."""
    found: dict[str, Any] = {}
    for panel in (one for one in panels_of(trace) if one.stays):
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


def check(page: Page, trace: Trace, run: int = 0) -> dict[str, Any]:
    """The page shows the state that the trace has at the page's moment, or had at its end."""
    time = min(time_of(page), trace.end)
    shown: dict[str, Any] = page.evaluate(READ, run)
    assert shown == expected(trace, time)
    return shown


def events(trace: Trace) -> list[int]:
    """Every moment at which something begins, ends or changes."""
    times = {0, trace.end, *(counter.time for counter in trace.counters)}
    times |= {time for item in trace.slices for time in (item.start, item.end)}
    times |= {time for p in panels_of(trace) for stay in p.stays for time in (stay.start, stay.end)}
    return sorted(times | {mark.time for mark in trace.marks if mark.name in NOTABLE})


def x_of(page: Page, time: int) -> float:
    """Where a moment is on the screen."""
    script = "(time) => scaleOf(axis, page.view).x(time) + axis.getBoundingClientRect().x"
    return float(page.evaluate(script, time))


def middle_of(page: Page, selector: str) -> tuple[float, float]:
    """Where the pointer goes to press something."""
    box = page.locator(selector).first.bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def point_at(page: Page, item: Slice) -> tuple[float, float]:
    """The middle of a slice of the first run on the screen."""
    lane = page.evaluate(
        "(id) => runs[0].lanes.findIndex((l) => l.slices.some((s) => s.id === id))", item.id
    )
    box = page.locator("canvas.run").first.bounding_box()
    assert box
    return x_of(page, (item.start + item.end) // 2), box["y"] + LANE * (lane + 0.5)


def few(count: int) -> Trace:
    """The first slices of a run."""
    whole = golden("serial")
    kept = whole.slices[:count]
    ids, end = {item.id for item in kept}, max(item.end for item in kept)
    return replace(
        whole,
        slices=kept,
        edges=tuple(e for e in whole.edges if e.src in ids and e.dst in ids),
        counters=tuple(c for c in whole.counters if c.time <= end),
        marks=tuple(m for m in whole.marks if m.time <= end and m.name != "future slots"),
    )


# -- the state, and ways through it ----------------------------------------------------------------


@pytest.mark.parametrize("source", ["radix_cache", "retraction", "pd", "1", "10", *"abcd"])
def test_at_any_moment_it_shows_the_state(browser: Browser, tmp_path: Path, source: str) -> None:
    """Of recorded runs, of their first slices, of drawn ones."""
    if source in "abcd":
        seed = "abcd".index(source)
        trace = judge(draw(seed, False).on(designs_for(draw(seed, False))[0], "sim")).trace
    else:
        trace = few(int(source)) if source.isdecimal() else golden(source)
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
        assert page.locator("h4.side").all_inner_texts() == (
            ["Prefill side", "Decode side"] if source == "pd" else []
        )
        for number, side in enumerate(("prefill", "decode") if source == "pd" else ()):
            column = page.locator(".groups > div", has=page.locator("h4.side")).nth(number)
            sides = "(all) => all.map((e) => e.dataset.side)"
            assert {*column.locator("[data-side]").evaluate_all(sides)} == {side}


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
        for name, key in (("back", "ArrowLeft"), ("step-back", "Shift+ArrowLeft")):
            before = press(page, "End")
            page.click(f'[data-do="{name}"]')
            clicked = time_of(page)
            press(page, "End")
            assert press(page, key) == clicked < before
        page.select_option("#speed", "0.25")  # a minute and more: nobody is late for the end
        page.evaluate("document.activeElement.blur()")
        before = press(page, "Home", " ")
        page.wait_for_function("(before) => page.time > before", arg=before)
        assert before < press(page, " ") < trace.end
        paused = time_of(page)
        page.wait_for_timeout(100)
        assert time_of(page) == paused
        check(page, trace)
        page.select_option("#speed", "16")
        page.evaluate("goTo(runs[0].end - 3e6)")
        page.click('[data-do="play"]')
        page.wait_for_function("!playing")
        assert time_of(page) == trace.end and page.inner_text('[data-do="play"]') == "▶ play"
    with stepper(browser, tmp_path, [trace], reduced_motion="reduce") as page:
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
        assert len(set(seen)) > 3 and set(seen) <= set(times), "events only, for less motion"


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
        page.evaluate("location.hash = '#t=99.25'")
        page.wait_for_function("page.time === 99.25e6")
        page.evaluate("location.hash = '#20-60'")  # the first form: a view alone
        page.wait_for_function("page.view.start === 20e6 && page.view.end === 60e6")
        assert page.evaluate("isSeen(page.time)")
        for wrong in ("#t=&view=5-5", "#view=1.2.3-4", "#t=Infinity&view=a-b", "#7-7", "#run=1.5"):
            assert page.evaluate("(hash) => fromAddress(hash)", wrong) == {}
    with stepper(browser, tmp_path, both, "#t=soon&view=1-0&run=7&rid=%,nobody&%%") as page:
        before = page.evaluate("[data.now, page.view]")
        page.evaluate("show(...few)")
        assert [time_of(page), page.evaluate("page.view")] == before
        assert page.evaluate("[page.run, page.chosen.size]") == [1, 0]
        check(page, both[1], 1)


def named_at(trace: Trace, time: int) -> set[tuple[str, ...]]:
    """Whom the slices at a moment name; none at all where a schedule would name its step's."""
    now = [item for item in trace.slices if item.start <= time < item.end]
    is_clear = all(item.name != "schedule" for item in now)
    return {item.rids for item in now if item.rids} if is_clear else set()


def test_two_runs_begin_in_a_settled_step_and_what_has_ended_keeps_its_last_moment(
    browser: Browser, tmp_path: Path
) -> None:
    serial, overlap = runs = [golden("serial"), golden("overlap")]
    assert overlap.end < serial.end
    with stepper(browser, tmp_path, runs) as page:
        time = time_of(page)
        running = [item for item in overlap.slices if item.start <= time < item.end]
        assert {"process", "forward"} <= {item.name for item in running}
        assert "ring" not in check(page, serial, 0)
        now = check(page, overlap, 1)
        assert now["set"] and now["pages"] and now["tree"] and "ring" in now
        for time in (overlap.end - 1, overlap.end, overlap.end + 1, serial.end - 1, serial.end):
            go_to(page, time)
            assert check(page, serial, 0)["tree"] and check(page, overlap, 1)["tree"]
            said = page.locator(".doing").all_inner_texts()
            ended = [time >= serial.end, time >= overlap.end]
            assert [text.startswith("has ended") for text in said] == ended
        moments = (step.start for step in forwards(overlap))
        time, here = next((at, here) for at in moments if len(here := named_at(overlap, at)) > 1)
        go_to(page, time)
        seen = []
        for _ in range(len(here) + 1):  # Enter goes round among those that the slices here name
            press(page, "Enter")
            seen.append(tuple(page.evaluate("[...page.chosen]")))
        assert set(seen) == here and seen[0] == seen[-1]
        press(page, "Escape", "End", "Enter")
        assert page.evaluate("page.chosen.size") == 0, "nobody runs at the end"
        page.focus('[data-do="first"]')
        assert press(page, "Enter") == 0 == page.evaluate("page.chosen.size")
        for button in page.locator("nav button").all():
            assert button.get_attribute("title") and button.get_attribute("aria-label")
        press(page, "?")
        assert {"shift", "Enter"} <= {*page.inner_text("#keys").replace("+", " ").split()}
        page.keyboard.press("Escape")
        expect(page.locator("#keys")).to_be_hidden()


def test_a_narrow_screen_has_tabs_and_nothing_is_clipped(browser: Browser, tmp_path: Path) -> None:
    runs = [golden(name) for name in ("serial", "overlap", "mlx_async")]
    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    clipped = "(all) => all.filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.innerText)"
    with stepper(browser, tmp_path, runs, viewport=SMALL) as page:
        for width in (390, 700):
            page.set_viewport_size({"width": width, "height": 900})
            for number, name in ((1, "overlap"), (2, "mlx_async")):
                page.locator("#tabs").get_by_role("button", name=name).click()
                expect(page.locator(".moment:visible")).to_have_attribute("data-run", str(number))
                expect(page.locator("#tabs [aria-pressed=true]")).to_have_text(name)
                check(page, runs[number], number)
                assert page.evaluate(over) == 0
                nodes = page.locator(".node:visible, .node:visible *")
                assert nodes.evaluate_all(clipped) == [] or width == 390
        for canvas in page.locator("canvas").all():
            assert canvas.get_attribute("role") == "img" and canvas.get_attribute("aria-label")
        page.set_viewport_size({"width": 1400, "height": 900})
        expect(page.locator(".moment:visible")).to_have_count(3)


def test_it_works_for_ten_thousand_slices(browser: Browser, tmp_path: Path) -> None:
    params = SamplingParams(max_new_tokens=48)
    requests = [Request(f"r{i}", [i % 50, i % 7, *range(i % 31)], params) for i in range(48)]
    config = SchedulerConfig(kv_tokens=256, max_running_requests=2, chunked_prefill_size=64)
    trace = run_loop("overlap", SimDevice(), HashModel(64), requests, config, SIM_COST).trace
    assert len(trace.slices) > 10_000 and len(to_html([trace])) < 6e6
    with stepper(browser, tmp_path, [trace]) as page:
        page.evaluate("""() => {
          const draw = drawSlice;
          window.count = 0;
          drawSlice = (...all) => { count++; draw(...all); };
        }""")
        for keys in (["ArrowRight"] * 5, ["End"], ["Shift+ArrowLeft"] * 3):
            press(page, *keys)
            check(page, trace)
        go_to(page, trace.end // 2)
        page.evaluate("count = 0; redraw('lanes')")
        settle(page)
        assert 0 < page.evaluate("count") < 200, "only what is visible is drawn"
        page.evaluate("count = 0")
        press(page, "0")
        lanes, width = page.evaluate("[runs[0].lanes.length, axis.clientWidth]")
        assert page.evaluate("count") < lanes * width < len(trace.slices), "once a pixel"


# -- under the pointer -----------------------------------------------------------------------------


def drag(page: Page, y: float, *xs: float) -> None:
    page.mouse.move(xs[0], y)
    page.mouse.down()
    for x in xs[1:]:
        page.mouse.move(x, y)
    page.mouse.up()
    settle(page)


def test_the_cursor_is_dragged_and_slices_and_panels_answer_the_pointer(
    browser: Browser, tmp_path: Path
) -> None:
    trace = golden("overlap")
    with stepper(browser, tmp_path, [trace]) as page:
        pixel = "(page.view.end - page.view.start) / (axis.clientWidth - LEFT)"
        time, start, per = time_of(page), page.evaluate("page.view.start"), page.evaluate(pixel)
        (_, y), x = middle_of(page, "canvas.run"), x_of(page, time)
        drag(page, y, x + 2, x + 60, x + 121)
        moved = time_of(page)
        assert abs(moved - time - 121 * per) < 3 * per
        check(page, trace)
        x = x_of(page, moved)
        drag(page, y, x + 200, x + 150)  # elsewhere a drag moves the picture
        assert time_of(page) == moved and page.evaluate("page.view.start") > start
        x, y = middle_of(page, "#position")
        drag(page, y, x, x + 100)
        width = page.evaluate("position.clientWidth")
        assert abs(time_of(page) - trace.end * (0.5 + 100 / width)) < trace.end / 500
        assert page.evaluate("isSeen(page.time)")
        page.mouse.click(*middle_of(page, "canvas.axis"))
        assert abs(x_of(page, time_of(page)) - middle_of(page, "canvas.axis")[0]) < 1.1
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
        page.mouse.move(*point_at(page, item))
        settle(page)
        wanted = {(e.src, e.dst) for e in trace.edges if item.id in (e.src, e.dst)}
        assert {(src, dst) for src, dst in page.evaluate("drawn")} == wanted != set()
        assert f"forward, step {item.step}" in page.inner_text("#tip")
        page.mouse.move(5, 5)
        expect(page.locator("#tip")).to_be_hidden()
        page.evaluate("goTo(data.now)")
        for panel, place in (("set", "b"), ("rows", "row 4")):
            page.click(f'[data-panel="{panel}"] [data-place="{place}"]')
            rid = next(text for at, _, text in check(page, trace)[panel] if at == place)
            assert page.evaluate("[...page.chosen]") == [rid.lstrip("0123456789")]


def test_a_slice_leads_to_its_requests_whole_life_and_dims_the_others(
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
        assert all(word in told for word in ("arrives", "admitted", "finishes"))
        marks = [m for m in trace.marks if m.name == "retraction" and m.attrs["rid"] == "c"]
        assert told.count("retracted (memory)") == len(marks) > 0
        page.locator("#life a", has_text="finishes").click()
        finish = next(time for time, text in life if "finishes" in text)
        expect(page.locator("#cursor")).to_have_attribute("data-time", str(finish))
        check(page, trace)
        press(page, "Escape")
        expect(page.locator("#life")).to_be_hidden()

        alone = [s for s in forwards(trace) if len(s.rids) == 1]
        mine, other = alone[0], next(s for s in alone if s.rids != alone[0].rids)
        page.evaluate("show(0, longest)")

        def colours() -> list[list[int]]:
            settle(page)
            read = """([x, y]) => {
              const c = document.querySelector("canvas.run"), box = c.getBoundingClientRect();
              return [...c.getContext("2d").getImageData(x - box.x, y - box.y - 8, 1, 1).data];
            }"""
            return [page.evaluate(read, list(point_at(page, one))) for one in (mine, other)]

        before = colours()
        page.evaluate("(rid) => choose([rid])", mine.rids[0])
        assert [now == then for now, then in zip(colours(), before, strict=True)] == [True, False]
        page.evaluate("choose([])")
        assert colours() == before

        named = {(s.lane, s.step): s.rids for s in trace.slices if s.name == "prepare"}
        for rid in sorted({rid for rids in named.values() for rid in rids}):
            page.evaluate("(rid) => choose([rid])", rid)
            bright = page.evaluate("""() => runs[0].lanes.flatMap(({ slices }) => slices
              .filter(({ phase }) => phase === "schedule")
              .map(({ id, group }) => [id, page.bright[group]]))""")
            assert dict(bright) == {  # a schedule belongs to the step that it led to
                box.slice.id: rid in named.get((box.slice.lane, box.step), ())
                for box in boxes_of(trace)
                if box.slice.name == "schedule"
            }


# -- looks -----------------------------------------------------------------------------------------

KINDS = {"admitted": "own", "wasted": "zombie", "protected": "cached, in use",
         "evictable": "cached, evictable"}  # fmt: skip
# The pixels of the first cell of a kind, in terms of its owner's colour.
CELL = """(kind) => {
  const canvas = document.querySelector('[data-panel="pages"] canvas');
  const stay = canvas.state.stays.find((stay) => stay.kind === kind), { size } = canvas.grid;
  const [x, y] = corner(canvas.grid, pageNumber(stay.place) - 1);
  const pen = canvas.getContext("2d"), plain = [];
  for (const [dx, dy] of [[1, 1], [0.3, 0.3], [0.5, 0.1]]) {
    const at = (share) => share >= 1 ? 1 : Math.round(share * (size - 1));
    plain.push([...pen.getImageData(x + at(dx), y + at(dy), 1, 1).data].join());
  }
  const fill = owners.get(stay.label)[0].match(/[0-9A-F]{2}/gi).map((n) => parseInt(n, 16));
  const name = (colour) => colour === "255,255,255,255" ? "paper" : "mixed";
  return plain.map((colour) => colour.startsWith(fill.join()) ? "fill" : name(colour)).join();
}"""
FLAGS = """() => runs[0].marks.map((mark) => [mark.text, flagColour(mark)])"""


def test_kinds_of_pages_and_slots_look_their_own_way_on_dark_paper_too(
    browser: Browser, tmp_path: Path
) -> None:
    trace = golden("overlap")
    state = next(panel for panel in panels_of(trace) if panel.name == "pages")
    with stepper(browser, tmp_path, [trace]) as page:
        kinds = Counter(kind for _, kind, _ in check(page, trace)["ring"])
        assert kinds["stale"] and len(kinds) > 1
        visible = page.locator('[data-panel="ring"] [data-place]:visible')
        expect(visible).to_have_count(kinds.total() - kinds["stale"])
        page.get_by_role("button", name=f"show {kinds['stale']} stale").click()
        expect(visible).to_have_count(kinds.total())
        crowd = "[...Array(300).fill({ kind: 'stale' }), { kind: 'promised' }]"
        assert page.evaluate(f"mostOf({crowd})") == [{"kind": "promised"}], "live ones go first"
        drawn = dict[str, str]()
        for kind in KINDS:
            time = next(stay.start for stay in state.stays if stay.kind == kind)
            go_to(page, time)
            count = Counter(stay.kind for stay in state.at(time).values())
            line = page.inner_text('[data-panel="pages"] .count')
            told = dict(part.split(" ", 1)[::-1] for part in line.split(": ")[1].split("; "))
            assert told == {KINDS[kind]: str(n) for kind, n in count.items()}
            assert line.startswith(f"{count.total()} of 1024 pages")
            drawn[kind] = page.evaluate(CELL, kind)
            chips = page.locator('[data-panel="pages"] .chip')
            assert {*chips.evaluate_all("(all) => all.map((e) => e.classList[1])")} == {*count}
        assert drawn["admitted"].startswith("fill") and len({*drawn.values()}) == 4
        paper = 'document.querySelector("canvas.run").getContext("2d").getImageData(300, 4, 1, 1)'
        light = page.evaluate(f"[...{paper}.data]")
        page.emulate_media(color_scheme="dark")
        settle(page)
        assert sum(page.evaluate(f"[...{paper}.data]")[:3]) < sum(light[:3]) / 3
    with stepper(browser, tmp_path, [golden("retraction")]) as page:
        colour = "(style) => css(style.match(/--([a-z]+)/)[1])"
        legend = {
            name: page.evaluate(colour, item.locator("b").get_attribute("style"))
            for item in page.locator(".legend .mark").all()
            for name in item.inner_text().removeprefix("▼ ").split(", ")
        }
        flags = page.evaluate(FLAGS)
        for text, colour in flags:
            assert colour == legend[next(name for name in legend if text.startswith(name))]
        assert len({colour for _, colour in flags}) > 1


# -- in a notebook ---------------------------------------------------------------------------------

# A notebook of one cell, run in a fresh kernel; what the cell shows goes to stdout.
EXECUTE = """
import nbformat, sys
from nbclient import NotebookClient
cell = nbformat.v4.new_code_cell(sys.argv[1])
book = nbformat.v4.new_notebook(cells=[cell])
NotebookClient(book, kernel_name="python3").execute()
sys.stdout.write(book.cells[0].outputs[0]["data"]["text/html"])
"""
SHOW = """
from minisched.export.notebook import show
from minisched.export.recipes import recipes
show([recipes()["serial"].run(), recipes()["overlap"].run()], height=700)
"""


def test_a_cell_of_a_notebook_shows_the_page_in_a_frame_that_stays_by_itself(
    browser: Browser, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, SHOW], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    path = tmp_path / "notebook.html"
    for cell, height, count in (
        (show(golden("overlap"))._repr_html_(), 640, 1),
        (done.stdout, 700, 2),
    ):
        path.write_text(f"<!doctype html><h1>a lesson</h1><div>{cell}</div>", encoding="utf-8")
        with watch(browser) as page:
            page.goto(path.as_uri())
            box = page.locator("iframe").bounding_box()
            assert box and box["height"] == height
            frame: Frame = page.frames[1]
            frame.wait_for_function("document.getElementById('time').textContent !== ''")
            assert frame.locator(".moment").count() == count
            begin = frame.evaluate("page.time")
            frame.click('[data-do="forward"]')
            assert frame.evaluate("page.time") > begin
            frame.locator("body").press("Home")
            frame.wait_for_function("page.time === 0")
            frame.evaluate("choose(['a'])")
            frame.locator("#life a").last.click()
            frame.wait_for_function("page.time > 0 && page.chosen.has('a')")
            page.wait_for_timeout(400)  # longer than an address waits to be written
            assert page.url == path.as_uri() and page.frames[1] == frame
            assert frame.evaluate("page.chosen.size") == 1, "the frame has not gone elsewhere"
