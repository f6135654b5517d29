"""The page that a reader drags, in a real browser: its steps take the simulator's time."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from minisched.checks.overlap import forwards, step_intervals
from minisched.devices.cost import SIM_COST, CostModel
from minisched.export.explore import (
    ON_HOST,
    costs_of,
    medians,
    to_explore,
)
from minisched.export.views import NothingToShow
from minisched.loops.design import LOOPS
from minisched.recipes import RECIPES, run_of, trace_of
from minisched.trace.native import to_json
from tests.support import browser, contrast, many, run_alone, watch

__all__ = ["browser"]
STEPS = 12  # a whole number of periods of every loop, as in explore_model.js
BATCHES = {"vllm_batch_queue": 2}  # that take turns; the others have one


@contextmanager
def explore(browser: Browser, folder: Path, link: str = "", **options: Any) -> Iterator[Page]:
    """The page of the golden runs of serial and overlap; at the end it must have been clean."""
    path = folder / "explore.html"
    path.write_text(to_explore([trace_of("serial"), trace_of("overlap")]), encoding="utf-8")
    with watch(browser, **{"viewport": {"width": 1280, "height": 900}, **options}) as page:
        page.goto(path.as_uri() + link)
        yield page


def some_costs(rng: Random) -> dict[str, int]:
    """Costs of all phases and ops, some of them 0, in any proportion."""

    def some() -> int:
        return rng.choice([0, rng.randint(1, 9), rng.randint(1, 60), rng.randint(1, 60), 100])

    return {
        **{phase: some() for phase in ON_HOST},
        "forward": rng.choice([rng.randint(1, 60), rng.randint(1, 250)]),
        "sample": some(),
        "copy": some(),
    }


def model_of(costs: dict[str, int]) -> CostModel:
    return CostModel(
        {phase: costs[phase] for phase in ON_HOST},
        forward_base=costs["forward"], sample=costs["sample"], copy=costs["copy"],
    )  # fmt: skip


# -- the model -------------------------------------------------------------------------------------


def test_its_steps_take_the_simulators_time(browser: Browser, tmp_path: Path) -> None:
    drawn = [some_costs(Random(seed)) for seed in range(60)]
    with explore(browser, tmp_path) as page:
        times = page.evaluate(
            "(drawn) => Object.values(FAMILIES).flatMap((family) => family.names).map((loop) =>"
            " [loop, drawn.map((costs) => settled(loop, costs).time)])",
            drawn,
        )
    assert len(times) == 12 and {loop.partition(":")[0] for loop, _ in times} <= LOOPS.keys()
    for loop, found in times:
        for costs, time in zip(drawn, found, strict=True):
            trace = run_alone(loop, BATCHES.get(loop, 1), model_of(costs))
            middle = len(step_intervals(trace)) // 2
            assert time == sum(step_intervals(trace)[middle : middle + STEPS]), (loop, costs)


@pytest.mark.parametrize(
    "loop", ["serial", "overlap", "overlap_thread", "mindie_plugin", "multi_step"]
)
def test_its_boxes_are_the_slices_of_a_run(loop: str, browser: Browser, tmp_path: Path) -> None:
    drawn_costs = [some_costs(Random(seed)) for seed in range(many(2, 20))]
    with explore(browser, tmp_path) as page:
        settled = "([loop, drawn]) => drawn.map((costs) => settled(loop, costs))"
        runs = page.evaluate(settled, [loop, drawn_costs])
    for costs, run in zip(drawn_costs, runs, strict=True):
        trace = run_alone(loop, 1, model_of(costs))
        drawn = inside(
            [(box["lane"], box["start"], box["end"]) for box in run["boxes"]], run["start"], run
        )
        lanes = {"worker thread": "thread", "forward thread": "thread"}
        slices = [
            (lanes.get(item.lane, item.lane), item.start, item.end)
            for item in trace.slices
            if item.name != "wait"
        ]
        begins = [step.start for step in forwards(trace)[17:21]]  # a burst begins at one of them
        assert len(drawn) > STEPS and drawn in [inside(slices, start, run) for start in begins]


def inside(
    boxes: list[tuple[str, int, int]], start: int, run: dict[str, Any]
) -> list[tuple[str, int, int]]:
    """The boxes that begin in the time of the stretch after ``start``, relative to it, in order."""
    return sorted(
        (lane, begin - start, end - start)
        for lane, begin, end in boxes
        if end > begin and start <= begin < start + run["time"]
    )


# -- its costs -------------------------------------------------------------------------------------


def test_its_costs_are_those_of_the_run() -> None:
    for topic in ("serial", "overlap", "overlap_thread", "mlx_async", "multi_step", "mindie_dual"):
        costs, cost = medians(trace_of(topic)), RECIPES[topic].cost
        on_host = {name: took for name, took in costs.items() if name in ON_HOST}
        assert len(on_host) >= 5 and on_host == {name: cost.host[name] for name in on_host}
        assert (costs["sample"], costs["copy"]) == (cost.sample, cost.copy)
    costs = costs_of(trace_of("serial"))  # has none of the phases of other designs
    assert {name: costs[name] for name in ON_HOST} == {
        name: SIM_COST.host[name] for name in ON_HOST
    }


def test_a_run_without_decode_steps_has_no_page() -> None:
    with pytest.raises(NothingToShow, match="'serial' has no decode step that takes time"):
        to_explore([replace(trace_of("serial"), slices=())])


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_dropped_trace_sets_the_costs(is_packed: bool, browser: Browser, tmp_path: Path) -> None:
    with explore(browser, tmp_path, "#forward=1&loop=mlx_async") as page:
        for topic in ("overlap", "vllm_async", "multi_step", "mindie_dual", "pd"):
            trace = run_of(topic) if topic == "vllm_async" else RECIPES[topic].run()
            text = to_json(trace).encode()
            name = f"{topic}.json" + ".gz" * is_packed
            content = gzip.compress(text) if is_packed else text
            file = {"name": name, "mimeType": "application/json", "buffer": content}
            page.set_input_files("#file", [file])
            page.wait_for_function("(name) => state.source === name", arg=name)
            kept = page.evaluate("state.costs")
            assert {name: kept[name] for name in medians(trace) if name in kept} == medians(trace)
            assert name in page.inner_text("#source")
            offered = {"pd": "mindie_dual"}.get(topic, topic)
            assert page.input_value("#loop") == page.evaluate("state.loop") == offered


def test_a_trace_may_be_dropped_anywhere(browser: Browser, tmp_path: Path) -> None:
    with explore(browser, tmp_path, "#forward=1&loop=multi_step") as page:
        page.evaluate(
            """(text) => {
              const files = new DataTransfer();
              files.items.add(new File([text], "mine.json"));
              const event = { dataTransfer: files, bubbles: true, cancelable: true };
              for (const name of ["dragover", "drop"])
                if (document.body.dispatchEvent(new DragEvent(name, event))) throw Error(name);
            }""",
            to_json(trace_of("overlap")),
        )
        page.wait_for_function("state.source === 'mine.json'")
        assert page.evaluate("[state.loop, state.costs.forward]") == ["overlap", 8_200_000]


BAD = ["", "{}", "[]", "null", "\x1f\x8b", '{"format": "minisched trace"}']


@pytest.mark.parametrize("text", BAD)
def test_a_file_without_costs_is_refused_in_a_sentence(
    text: str, browser: Browser, tmp_path: Path
) -> None:
    with explore(browser, tmp_path) as page:
        before = page.evaluate("state")
        file = {"name": "a.json", "mimeType": "application/json", "buffer": text.encode("latin-1")}
        page.set_input_files("#file", [file])
        page.wait_for_function("byId('source').textContent.startsWith('a.json has no costs')")
        assert page.evaluate("state") == before


# -- the page --------------------------------------------------------------------------------------


def test_it_is_one_small_file_and_its_words_can_be_read() -> None:
    run = replace(trace_of("serial"), model="a-large-model-with-a-long-name" * 3, dtype="bfloat16")
    page = to_explore([run, replace(run, loop="vllm_async:pool:depth=3")], "zh")
    assert len(page.encode()) <= 25_000, "the docstring of explore.py promises it"
    assert not re.findall(
        r"(?:src|href)=|https?://(?!www\.w3\.org/2000/svg)|@import|url\((?!#)", page
    )
    start = json.loads(re.findall(r"START = (.*);</script>", page)[0])
    assert (start["lang"], start["loop"]) == ("zh", "vllm_async:pool:depth=3")
    assert all(contrast(fill, ink) >= 4.5 for fill, ink in start["steps"])
    for paper in start["colours"].values():
        for name in ("ink", "faint", "bubble", "token"):
            assert contrast(paper[name], paper["paper"]) >= 4.5, name


def time_of(page: Page, name: str) -> float:
    """A cost, in milliseconds."""
    return float(page.evaluate("(name) => state.costs[name] / 1e6", name))


AT_FIRST = "overlap is 1.78 times as fast as serial"


def drag(page: Page, box: str, pixels: float) -> None:
    """Drag the right edge of the first box whose label begins with ``box``."""
    place = page.locator(f'.box[aria-label^="{box}"]').first.bounding_box()
    assert place is not None
    x, y = place["x"] + place["width"] - 2, place["y"] + place["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + pixels / 2, y)
    page.mouse.move(x + pixels, y)
    page.mouse.up()


def test_a_drag_lays_both_loops_out_anew_and_the_address_keeps_it(
    browser: Browser, tmp_path: Path
) -> None:
    with explore(browser, tmp_path) as page:
        assert page.inner_text("#title") == page.title() == AT_FIRST
        dot = page.locator("#dot").bounding_box()
        pixels = page.evaluate("scale") * 4.6e6
        drag(page, "serial: run", pixels)
        assert sum(time_of(page, op) for op in ("forward", "sample")) == pytest.approx(
            13.8, abs=0.11
        )
        assert page.inner_text("#title") == "overlap is 1.52 times as fast as serial"
        assert page.locator("#dot").bounding_box() != dot
        drag(page, "overlap: plan", 50)
        drag(page, "serial: copy", 20)
        assert time_of(page, "schedule") > 2.2 and time_of(page, "copy") > 0.5
        title, address = page.inner_text("#title"), page.evaluate("location.hash")
        page.evaluate("location.hash = '#loop=nobody&forward=-1&sample=x&copy=&lang=xx&%%'")
        page.wait_for_function("state.costs.copy === 5e5")
        assert page.inner_text("#title") == AT_FIRST
        page.evaluate("(address) => { location.hash = address; }", address)
        page.wait_for_function("state.costs.copy !== 5e5")
        assert page.inner_text("#title") == title
        page.click("#reset")
        assert page.inner_text("#title") == AT_FIRST


def test_keys_change_the_box_in_focus_and_keep_the_focus(browser: Browser, tmp_path: Path) -> None:
    with explore(browser, tmp_path, "#phases=1") as page:
        page.keyboard.press("Tab")
        label = "document.activeElement.getAttribute('aria-label')"
        assert page.evaluate(label) == "serial: process 25"
        for key in ("ArrowRight", "ArrowUp", "Shift+ArrowRight", "ArrowLeft"):
            page.keyboard.press(key)
        assert time_of(page, "process") == pytest.approx(3.3)
        assert page.evaluate(label) == "serial: process 25"
        assert page.get_attribute(":focus", "aria-valuetext") == "3.3 ms"
        page.keyboard.press("Tab")
        assert page.evaluate(label) == "serial: output 25"
        for _ in range(40):
            page.keyboard.press("Shift+ArrowLeft")
        assert time_of(page, "output") == 0  # its box is gone, and the page stands


def test_every_loop_has_a_title_a_reason_and_a_picture_in_both_languages(
    browser: Browser, tmp_path: Path
) -> None:
    with explore(browser, tmp_path) as page:
        for lang in ("en", "zh"):
            assert page.get_attribute("html", "lang") == lang
            for loop in page.locator("#loop option").all_inner_texts():
                page.select_option("#loop", loop)
                title, reason = page.inner_text("#title"), page.inner_text("#reason")
                assert loop in title and "undefined" not in title + reason
                assert (lang == "zh") == bool(re.search("[\u4e00-\u9fff]", reason)), reason
            page.click("#language")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_it_works_by_touch_on_a_phone(lang: str, browser: Browser, tmp_path: Path) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
    with explore(browser, tmp_path, f"#lang={lang}", **phone) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        place = page.locator(".box").nth(2).bounding_box()
        assert place is not None
        x, y = place["x"] + place["width"] - 4, place["y"] + place["height"] / 2
        touch = page.context.new_cdp_session(page)
        before = page.evaluate("state.costs.forward")
        points = [
            ("touchStart", x),
            ("touchMove", x + 12),
            ("touchMove", x + 40),
            ("touchEnd", None),
        ]
        for kind, at in points:
            at_points = [] if at is None else [{"x": at, "y": y}]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at_points})
        page.wait_for_function("(before) => state.costs.forward > before", arg=before)
        for loop in page.locator("#loop option").all_inner_texts():
            page.select_option("#loop", loop)
            sizes = page.evaluate(
                "[...document.querySelectorAll('svg text')].map((it) =>"
                " [Number(it.getAttribute('font-size')), it.getBoundingClientRect()])"
            )
            assert all(size >= 12 for size, _ in sizes)
            assert all(box["left"] >= 0 and box["right"] <= 390 for _, box in sizes), loop


def test_the_saved_picture_needs_no_page(browser: Browser, tmp_path: Path) -> None:
    dark = {"color_scheme": "dark"}
    with explore(browser, tmp_path, "#loop=multi_step", **dark) as page:
        with page.expect_download() as download:
            page.click("#svg")
        svg = Path(download.value.path()).read_text("utf-8")
        assert download.value.suggested_filename == "multi_step.svg"
    assert svg.startswith("<svg") and "var(" not in svg and "class=" not in svg
    assert "multi_step is 1.24 times as fast as serial" in svg and 'fill="#FFFFFF"' in svg


def test_all_is_inside_its_lane_whatever_the_costs(browser: Browser, tmp_path: Path) -> None:
    with explore(browser, tmp_path) as page:
        for seed in range(many(5, 60)):
            rng = Random(seed)
            costs = some_costs(rng)
            loop = rng.choice(page.locator("#loop option").all_inner_texts())
            state = {"costs": costs, "loop": loop, "phases": rng.random() < 0.5}
            page.evaluate("(state) => change(state)", state)
            wrong = page.evaluate(
                "[...document.querySelectorAll('svg *')].filter((it) => it.tagName !== 'title' &&"
                " [...it.attributes].some((a) => /NaN|undefined|Infinity/.test(a.value))).length"
            )
            assert wrong == 0, (seed, state)
