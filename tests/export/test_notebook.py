"""What a notebook shows of a result: trusted, untrusted, converted, printed, and in a shell."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
import pytest
from IPython.core.formatters import DisplayFormatter
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook, new_output
from playwright.sync_api import Browser, expect

import minisched as ms
from minisched.checks.reading import read_recorded
from minisched.comparison import Comparison
from minisched.export.notebook import MOST_STRIPS, NotebookPicture, show
from minisched.recipes import trace_of
from tests.conftest import ROOT
from tests.support import browser, watch

assert browser  # the fixture
IMAGE = re.compile(r'<img alt="([^"]+)"[^>]*src="data:image/svg\+xml;base64,([^"]+)"')


@cache
def compared(loops: int = 1) -> Comparison:
    names = ["overlap", "overlap_thread", "mlx_async", "vllm_step", "vllm_async"]
    return ms.compare(ms.requests(2), loops=names[:loops])


def bundle(value: object) -> dict[str, Any]:
    """What IPython's kernel sends to the notebook for a value."""
    data, metadata = DisplayFormatter().format(value)
    assert metadata == {}
    return data


def converted(value: object) -> str:
    """The page that nbconvert makes of a notebook with this value."""
    output = new_output("execute_result", data=bundle(value), execution_count=1)
    book = new_notebook(cells=[new_code_cell("value", outputs=[output], execution_count=1)])
    nbformat.validate(book)
    page, _ = HTMLExporter(template_name="basic").from_notebook_node(book)
    return str(page)


@pytest.mark.parametrize("name", ["comparison", "player", "picture", "run", "trace"])
def test_a_result_is_a_page_a_picture_and_text(name: str) -> None:
    value = {
        "comparison": compared(),
        "player": show(compared().runs),
        "picture": NotebookPicture(bundle(compared())["image/svg+xml"]),
        "run": compared().runs[0],
        "trace": compared().runs[0].trace,
    }[name]
    data = bundle(value)
    assert set(data) == {"text/html", "image/svg+xml", "text/plain"}
    ElementTree.fromstring(data["image/svg+xml"])
    assert data["text/plain"] == repr(value)
    ((title, inside),) = IMAGE.findall(data["text/html"])
    assert base64.b64decode(inside).decode() == data["image/svg+xml"]
    assert title and ("<iframe" in data["text/html"]) == (name in ("comparison", "player"))
    assert ('monospace">loop ' in data["text/html"]) == (name == "comparison")


def test_of_many_runs_the_picture_is_a_poster_with_all_of_them() -> None:
    many = compared(MOST_STRIPS)
    assert len(many.runs) > MOST_STRIPS
    words = " ".join(ElementTree.fromstring(bundle(many)["image/svg+xml"]).itertext())
    assert all(run.loop in words for run in many.runs)


def test_a_trace_and_a_run_are_one_line_and_their_steps() -> None:
    run = compared().runs[0]
    assert len(repr(run.trace)) < 100 > len(repr(run))
    empty = replace(run.trace, slices=(), edges=(), program=())
    assert bundle(empty) == {"text/plain": repr(empty)}, "nothing ran, so there is no picture"
    profile = read_recorded(ROOT / "tests" / "checks" / "profiles" / "torch_serial.json", "launch")
    assert "image/svg+xml" in bundle(profile.trace)


def test_a_reader_that_removes_frames_leaves_table_and_picture() -> None:
    """As JupyterLab does with an untrusted notebook, and GitHub with any."""
    page = re.sub(r"<iframe.*?</iframe>", "", converted(compared()), flags=re.DOTALL)
    ((title, inside),) = IMAGE.findall(page)
    ElementTree.fromstring(base64.b64decode(inside))
    words = re.sub(r"<[^>]+>", "", page)
    assert title and "Identical: overlap gave" in words
    assert len(words.split()) < 150, "nothing of the player's page is left as text"


def test_a_trusted_notebook_shows_the_player_and_paper_shows_the_picture(
    browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html>{converted(show(trace_of('overlap')))}", encoding="utf-8")
    with watch(browser) as page:
        page.goto(path.as_uri())
        frame, image = page.locator("iframe"), page.locator("img[alt]")
        assert (box := frame.bounding_box()) and (under := image.bounding_box())
        assert box["x"] <= under["x"] and box["y"] <= under["y"]
        assert under["height"] <= box["height"] == 640
        heading = page.frames[1].locator("h1")
        expect(heading).to_be_visible()
        page.emulate_media(media="print")
        expect(heading).to_be_hidden()
        assert page.frames[1].evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgba(0, 0, 0, 0)"
        )


def test_a_check_of_a_run_is_sentences_with_a_picture_and_of_workloads_sentences_alone() -> None:
    found = ms.check(compared())
    data = bundle(found)
    assert data["text/plain"] == repr(found) and "<h1>serial: " in data["text/html"]
    ((title, inside),) = IMAGE.findall(data["text/html"])
    assert base64.b64decode(inside).decode() == data["image/svg+xml"]
    assert title.startswith("While the device runs step")
    assert set(bundle(ms.check(workloads=1))) == {"text/plain"}
