"""A picture that plays: its cursor is where the time is, and it stands still where it should."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from minisched.export.motion import FADE, LANE, PLAYS, STANDS, playing
from minisched.export.poster import poster
from minisched.export.runs import compare
from minisched.export.scene import Curve, Part, Scene
from minisched.export.scene_svg import to_svg
from minisched.recipes import trace_of
from tests.support import Picture, browser, check_picture, watch

__all__ = ["browser"]
README = Path(__file__).resolve().parents[2] / "diagrams" / "compare.svg"
TO = "t => document.getAnimations().forEach(a => { a.pause(); a.currentTime = 1000 * t })"
AT = "() => document.querySelector('.cursor').getBoundingClientRect().x"
OPAQUE = "name => Number(getComputedStyle(document.querySelector(name)).opacity)"


def blocks(svg: str, name: str) -> list[tuple[float, ...]]:
    """The stretches of veil or cursor: left, top, bottom."""
    found = re.search(rf'class="{name}"[^>]* d="([^"]*)"', svg)
    assert found
    return [tuple(map(float, stretch)) for stretch in
            re.findall(r"M([\d.]+) ([\d.]+)(?:h[\d.]+)?V([\d.]+)", found[1])]  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_veil_covers_all_lanes_and_no_words_beside_them(count: int) -> None:
    loops = ("serial", "overlap", "multi_step")[:count]
    svg = playing(to_svg(compare([trace_of(loop) for loop in loops])))
    check_picture(drawn := Picture(svg))
    parts = blocks(svg, "veil")
    assert len(parts) == count and parts == blocks(svg, "cursor")
    for left, top, _, height in (map(float, lane) for lane in LANE.findall(svg)):
        assert any(x == left and y <= top and top + height <= end for x, y, end in parts)
    for words in drawn.root.iter("{http://www.w3.org/2000/svg}text"):
        if words.get("class", "").startswith("run"):
            assert not any(y < float(words.attrib["y"]) < end for _, y, end in parts)


def test_all_that_moves_moves_by_css_and_only_where_it_is_wanted() -> None:
    svg = README.read_text("utf-8")
    assert "<script" not in svg and "<animate" not in svg
    wanted = svg.partition("prefers-reduced-motion: no-preference) {")[2].partition("@keyframes")[0]
    assert svg.count("animation:") == wanted.count("animation:") == 2
    assert svg.count('opacity="0"') == 2, "veil and cursor are not seen without it"


def test_what_has_no_lanes_is_given_back_as_it_is() -> None:
    svg = to_svg(Scene("words", "", [Part("amounts", "", [Curve([], 1, "pages")])]))
    assert playing(svg) == svg
    assert "cursor" in playing(to_svg(poster([trace_of("serial")])))


def opened(page: Page) -> None:
    page.set_content(f"<body style='margin: 0'>{README.read_text('utf-8')}")


@pytest.mark.thorough
def test_the_cursor_is_where_the_time_is(browser: Browser) -> None:
    left, _, width, _ = map(float, LANE.findall(README.read_text("utf-8"))[0])
    with watch(browser, color_scheme="dark") as page:
        opened(page)
        page.evaluate(TO, 0)
        assert page.evaluate(OPAQUE, ".veil") == page.evaluate(OPAQUE, ".cursor") == 0
        for share in (0, 0.25, 0.5, 1):
            page.evaluate(TO, STANDS + FADE + share * PLAYS)
            assert page.evaluate(AT) == pytest.approx(left + share * width, abs=0.5)
            assert page.evaluate(OPAQUE, ".veil") > 0.9


@pytest.mark.thorough
def test_it_stands_still_where_motion_is_unwanted(browser: Browser) -> None:
    with watch(browser, reduced_motion="reduce") as page:
        opened(page)
        assert page.evaluate("document.getAnimations().length") == 0
        assert page.evaluate(OPAQUE, ".veil") == page.evaluate(OPAQUE, ".cursor") == 0
