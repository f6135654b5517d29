"""The two sliders: every number is a run's, and the page works alone in a real browser."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, FrameLocator

from minisched import learn
from minisched.learn.simulate import makespan_ms, settled_step_ms
from minisched.learn.slider import DEVICES, HOSTS, LENGTHS, LOOPS
from tests.browser import browser, folder, watch

__all__ = ["browser", "folder"]


@pytest.fixture(scope="module")
def slider() -> Any:
    return learn.cost_slider()


def data_of(page: str) -> Any:
    """The numbers in a page."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


def outcome(times: list[float]) -> str:
    """What the page should say."""
    factor = times[0] / times[1]
    return "A tie" if abs(factor - 1) < 0.02 else "Overlap " + ("wins" if factor > 1 else "loses")


def test_every_number_is_a_runs(slider: Any) -> None:
    data = data_of(slider.page)
    assert (data["hosts"], data["devices"]) == (list(HOSTS), list(DEVICES))
    for length, h, d in ((0, 1, 4), (1, 3, 4), (1, 10, 0), (0, 0, 9)):
        for loop, found in zip(LOOPS, data["grids"][length][h][d], strict=True):
            run = learn.simulate(
                loop, host_ms=HOSTS[h], device_ms=DEVICES[d], requests=1,
                new_tokens=LENGTHS[length], stop=True,
            )  # fmt: skip
            assert found["makespan"] == makespan_ms(run)
            assert found["step"] == settled_step_ms(run)
            forwards = {box[2] for box in found["boxes"] if box[1] == "forward"}
            assert forwards <= {item.step for item in run.trace.on("forward")} and forwards
            wasted = {mark.attrs["step"] for mark in run.trace.marks if mark.name == "wasted row"}
            assert {box[2] for box in found["boxes"] if box[5]} == forwards & wasted


def test_the_map_shows_a_win_a_tie_and_a_loss(slider: Any) -> None:
    grids = data_of(slider.page)["grids"]
    found = {
        outcome([run["makespan"] for run in pair]) for grid in grids for row in grid for pair in row
    }
    assert found == {"Overlap wins", "A tie", "Overlap loses"}


def test_the_frame_holds_the_whole_page(slider: Any) -> None:
    frame = slider._repr_html_()
    assert frame.isascii() and 'sandbox="allow-scripts"' in frame
    source = re.search(r'srcdoc="([^"]*)"', frame)
    assert source and unescape(source[1]) == slider.page
    assert not re.search(r"https?://(?!www\.w3\.org)", slider.page)
    assert "<two sliders" in repr(slider)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_moving_it_shows_that_pair(
    browser: Browser, folder: Path, slider: Any, scheme: Any
) -> None:
    data, path = data_of(slider.page), folder / f"slider-{scheme}.html"
    path.write_text(f"<!doctype html>{slider._repr_html_()}", encoding="utf-8")
    options = {"viewport": {"width": 920, "height": 700}, "color_scheme": scheme}
    with watch(browser, **options) as watched:
        watched.page.goto(path.as_uri())
        frame = watched.page.frame_locator("iframe")
        for length, h, d in ((1, 3, 4), (0, 1, 4), (0, 3, 0), (1, 0, 9), (1, 10, 9)):
            frame.locator("#lengths input").nth(length).check()
            frame.locator("#host").fill(str(h))
            frame.locator("#device").fill(str(d))
            check_shown(frame, data, length, h, d)
        frame.locator("#map rect.cell").nth(2 * len(DEVICES) + 5).click()
        check_shown(frame, data, 1, 2, 5)
        paper = frame.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
        assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)")


def check_shown(frame: FrameLocator, data: Any, length: int, h: int, d: int) -> None:
    """Words, numbers and boxes are those of that pair's runs."""
    pair = data["grids"][length][h][d]
    assert frame.locator("#host-said").inner_text() == f"{data['hosts'][h]} ms a step"
    assert frame.locator("#device-said").inner_text() == f"{data['devices'][d]} ms a step"
    times = [run["makespan"] for run in pair]
    assert frame.locator("#verdict").inner_text().startswith(outcome(times))
    numbers = frame.locator("#numbers").inner_text()
    assert all(f"{time:g} ms" in numbers for time in times)
    boxes = frame.locator("#timing rect:not(.lane):not(.idle)").count()
    assert boxes == sum(len(run["boxes"]) for run in pair)
