"""The stepper in a notebook: the same page in a frame, executed by a kernel, shown by a browser."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Frame, Page

from minisched.export.html import to_html
from minisched.export.notebook import Cell, show
from minisched.export.recipes import recipes
from minisched.trace import Trace
from tests.browser import browser, watch

__all__ = ["browser"]

# A notebook of one cell, run in a fresh kernel; what the cell shows goes to stdout.
EXECUTE = """
import nbformat, sys
from nbclient import NotebookClient
cell = nbformat.v4.new_code_cell(sys.argv[1])
book = nbformat.v4.new_notebook(cells=[cell])
NotebookClient(book, kernel_name="python3").execute()
sys.stdout.write(book.cells[0].outputs[0]["data"]["text/html"])
"""
CELL = """
from minisched.core import Request
from minisched.devices.cost import SIM_COST
from minisched.devices.sim import SimDevice
from minisched.export.notebook import show
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
def run(loop):
    return run_loop(loop, SimDevice(), HashModel(), [Request("a", [1, 2, 3])], cost=SIM_COST)
show([run("serial"), run("overlap").trace], height=700)
"""


def trace() -> Trace:
    return recipes()["overlap"].run()


def frame_of(page: Page, folder: Path, cell_html: str) -> Frame:
    """The cell's frame, in a static page as a notebook or Sphinx makes one."""
    path = folder / "notebook.html"
    path.write_text(f"<!doctype html><h1>a lesson</h1><div>{cell_html}</div>", encoding="utf-8")
    page.goto(path.as_uri())
    page.wait_for_selector("iframe")
    frame = page.frames[1]
    frame.wait_for_function("document.getElementById('time').textContent !== ''")
    return frame


def try_it(page: Page, frame: Frame) -> None:
    """Everything works in the frame, and nothing happens to the page around it."""
    address, begin = page.url, frame.evaluate("page.time")
    frame.click('[data-do="forward"]')
    assert frame.evaluate("page.time") > begin
    frame.locator("body").press("ArrowRight")
    frame.locator("body").press("Home")
    frame.wait_for_function("page.time === 0")
    frame.click('[data-do="step-forward"]')
    frame.evaluate("choose(['a'])")
    frame.locator("#life a").last.click()
    frame.wait_for_function("page.time > 0 && page.chosen.has('a')")
    page.wait_for_timeout(400)  # longer than an address waits to be written
    assert page.url == address and page.frames[1] == frame
    assert frame.evaluate("page.chosen.size") == 1, "the frame has not gone elsewhere"


def test_a_cell_is_the_page_in_a_frame(browser: Browser, tmp_path: Path) -> None:
    with watch(browser) as watched:
        frame = frame_of(watched.page, tmp_path, show(trace())._repr_html_())
        assert watched.page.locator("iframe").bounding_box()["height"] == 640  # type: ignore[index]
        try_it(watched.page, frame)


def test_a_kernel_shows_it(browser: Browser, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, CELL], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    with watch(browser) as watched:
        frame = frame_of(watched.page, tmp_path, done.stdout)
        assert frame.locator(".moment").count() == 2
        try_it(watched.page, frame)


def test_the_frame_holds_the_very_page() -> None:
    held: list[dict[str, str | None]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            held.append(dict(attrs))

    one = trace()
    Reader().feed(show([one], height=300, title='it\'s <b> & "so"')._repr_html_())
    assert len(held) == 1 and "height:300px" in (held[0]["style"] or "")
    assert held[0]["srcdoc"] == to_html([one], title='it\'s <b> & "so"')
    assert held[0]["sandbox"] == "allow-scripts"
    assert isinstance(show(one), Cell)


def test_what_cannot_be_shown_is_said_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="at least 1 pixel high, but height is 0"):
        show(trace(), height=0)
    with pytest.raises(ValueError, match="at least 1 trace"):
        show([])
