"""The first screen of the player: the verdict, the picture by step, and four runs of many."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Browser

from minisched.checks.overlap import forwards, measure
from minisched.export.answer import FIRST, families, first_runs, opening, verdict
from minisched.export.html import to_html
from minisched.export.pictures.compare import DESIGNS
from minisched.recipes import run_of, trace_of
from minisched.trace import Trace
from tests.support import SVG, browser, watch

__all__ = ["browser"]
MS = 1_000_000
READY = "document.getElementById('time').textContent !== ''"


@pytest.mark.parametrize(("times", "clock", "said"), [
    ((1112, 644), "virtual", "b is 1.73 times as fast as a: 644 instead of 1112 ms"),
    ((1112, 644, 643), "virtual", "b (as 1 other) is 1.73 times as fast as a: 643 instead of"),
    ((100, 109), "virtual", "b takes 1.09 times as long as a: 109 instead of 100 ms"),
    ((1000, 999), "virtual", "b is as fast as a: 999 instead of 1000 ms"),
    ((100, 50), "wall", "b is 2.00 times as fast as a: 50 instead of 100 ms, measured once"),
    ((100, 0), "virtual", ""), ((0, 100), "virtual", ""), ((100,), "virtual", ""),
])  # fmt: skip
def test_the_verdict_is_true_of_the_times(times: tuple[int, ...], clock: str, said: str) -> None:
    found = verdict("abc"[: len(times)], [time * MS for time in times], clock)
    assert found.startswith(said) and bool(found) == bool(said)


@pytest.fixture(scope="module")
def runs() -> list[Trace]:
    return [run_of(loop) for loop in DESIGNS]


def test_four_runs_of_many_are_shown_first_each_of_another_family(runs: list[Trace]) -> None:
    reports = [measure(run) for run in runs]
    groups = families(runs, reports)
    assert sorted(at for _, members in groups for at in members) == [*range(len(runs))]
    first = first_runs(groups, len(runs))
    assert len(first) == FIRST and first[0] == 0
    assert len({words for words, members in groups if {*members} & {*first}}) == FIRST
    for _, members in groups:
        took = [reports[at].makespan_ns for at in members if at]
        assert took == sorted(took), "the fastest of a family is the first"


def test_the_page_opens_where_all_runs_work(runs: list[Trace]) -> None:
    for some in (runs, [trace_of("serial"), trace_of("overlap")], [trace_of("overlap")]):
        start, end = opening(some)
        assert end > start
        for run in some:
            assert any(item.start < end and item.end > start for item in forwards(run)), run


def test_the_page_has_verdict_and_picture_before_everything_else() -> None:
    page = to_html([trace_of("serial"), trace_of("overlap")])
    head, _, rest = page.partition("<nav")
    assert re.search(r"<h1>overlap is 1\.\d\d times as fast as serial: ", head)
    assert head.count("data:image/svg+xml;base64,") == 2 and "<picture>" not in rest


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800)])
def test_the_first_screen_has_the_answer(
    browser: Browser, tmp_path: Path, width: int, height: int
) -> None:
    path = tmp_path / "page.html"
    path.write_text(to_html([trace_of("serial"), trace_of("overlap")]), encoding="utf-8")
    with watch(browser, viewport={"width": width, "height": height}) as page:
        page.goto(path.as_uri())
        page.wait_for_function(READY)
        for part in ("h1", "picture img"):
            box = page.locator(part).bounding_box()
            assert box and 0 < box["width"] <= width and box["y"] + box["height"] <= height, part
        assert page.evaluate("document.querySelector('picture img').naturalWidth") in (358, 860)


def test_a_moment_is_saved_as_an_svg_and_the_runs_for_perfetto(
    browser: Browser, tmp_path: Path
) -> None:
    path, traces = tmp_path / "page.html", [trace_of("serial"), trace_of("overlap")]
    path.write_text(to_html(traces), encoding="utf-8")
    with watch(browser, viewport={"width": 1280, "height": 800}) as page:
        page.goto(path.as_uri())
        page.wait_for_function(READY)
        root = ElementTree.fromstring(page.evaluate("momentAsSvg()"))
        words = {text.text for text in root.iter(f"{SVG}text")}
        assert {"serial", "overlap", "Host (host)", "time in ms"} <= words
        assert any(word and word.startswith("forward ") for word in words)
        events: list[dict[str, Any]] = json.loads(page.evaluate("JSON.stringify(perfettoEvents())"))
        assert sum(event["ph"] == "X" for event in events) == sum(len(t.slices) for t in traces)
        page.evaluate("goTo(5e6)")
        with page.expect_download() as saved:
            page.click('[data-do="svg"]')
        assert saved.value.suggested_filename.endswith(".svg")
