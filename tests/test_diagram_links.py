"""Arrows that name a function lead to it: in the text, in the picture, and when clicked."""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser

from minisched.engine.engine import Engine
from minisched.export.puml_links import LINK_COLOUR, LINK_STYLE, address, linked
from minisched.relay.future_map import FutureMapRing
from tests.browser import browser, watch

__all__ = ["browser"]

ROOT = Path(__file__).resolve().parents[1]
DIAGRAMS = ROOT / "diagrams"
SOURCES = sorted(DIAGRAMS.glob("*.puml"))
LINK = re.compile(r"\[\[(\S+) ([^\]]+)\]\]")
ARROW = re.compile(
    r"^\s*(?:\[\*\]|\w+)\s+[<*o|]*[-.](?:\[[^\]]*\])?(?:\w+)?[-.>|o*]*\s+(?:\[\*\]|\w+)\s*:\s*(.*)$"
)
PYTHONS_OWN = set(dir(builtins))  # such as ``min``


def said(source: str) -> list[str]:
    """What arrows say, and the actions and questions of an activity diagram, one after another."""
    body = re.sub(r"<style>.*?</style>", "", source, flags=re.S)
    arrows = [found[1] for line in body.splitlines() if (found := ARROW.match(line))]
    actions = re.findall(r"^\s*:(.*?);$", body, re.M | re.S)
    questions = re.findall(r"^\s*(?:if|while) \((.*)\) (?:then|is) ", body, re.M)
    return arrows + actions + questions


@cache
def functions() -> frozenset[str]:
    """Every function and method that the package defines; a property is read, and not called."""
    return frozenset(
        node.name
        for path in (ROOT / "minisched").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        and not any("property" in ast.unparse(one) for one in node.decorator_list)
    )


def unlinked(text: str) -> set[str]:
    """Calls that are in no link, and names with a dot or an underscore that are functions."""
    rest = LINK.sub(" ", text).replace(r"\n", " ")
    calls = set(re.findall(r"\b([A-Za-z_][\w.]*)\((?! )", rest))
    words = set(re.findall(r"\b[A-Za-z]\w*(?:[._]\w+)+\b", rest))
    return calls | {word for word in words if word.rpartition(".")[2] in functions()}


@cache
def symbols(path: Path) -> frozenset[str]:
    """The classes and functions of a module, methods with their class."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            own = (item.name for item in node.body if isinstance(item, ast.FunctionDef))
            found.update(f"{node.name}.{name}" for name in own)
    return frozenset(found)


def links_of(source: str) -> list[tuple[str, str]]:
    """Address and label of every link, in order."""
    return LINK.findall(source)


def anchors_of(svg: str) -> list[tuple[str, str]]:
    """Address and text of every anchor of a picture."""
    name = "{http://www.w3.org/2000/svg}"
    anchors = ElementTree.fromstring(svg).iter(f"{name}a")
    return [
        (anchor.attrib["href"], "".join(text.text or "" for text in anchor.iter(f"{name}text")))
        for anchor in anchors
    ]


def test_the_search_finds_what_is_not_linked() -> None:
    lines = {
        "a -> b : add_one_req() of it": {"add_one_req"},
        "a -[#1F2328]>> b : step 5, then Engine.chain": {"Engine.chain"},
        "  [*] --> waiting : receive()": {"receive"},
        "a *-- b : next_batch and step_5": {"next_batch"},
        "b o-left- a : run_batch": {"run_batch"},
        "a --> b : [[../minisched/x.py#f next_batch()]] of (1 2), rows (3)": set(),
    }
    for line, names in lines.items():
        assert said(line), line
        assert unlinked(said(line)[0]) == names, line
    activity = (
        ":grow();\nif (may(), or\\nmust()?) then (yes)\nwhile (is_full()) is (no)\n:two\nof(a);"
    )
    assert set().union(*map(unlinked, said(activity))) == {"grow", "may", "must", "is_full", "of"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_arrow_that_names_a_function_is_a_link(path: Path) -> None:
    for text in said(path.read_text(encoding="utf-8")):
        names = unlinked(text) - PYTHONS_OWN
        assert not names, f"{path.name}: {text!r} names {', '.join(sorted(names))} without a link"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_link_leads_to_a_symbol(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    places: dict[str, str] = {}
    for target, label in links_of(source):
        file, _, symbol = target.partition("#")
        code = (DIAGRAMS / file).resolve()
        assert code.is_file() and code.is_relative_to(ROOT / "minisched"), f"{path.name}: {file}"
        assert symbol in symbols(code), f"{path.name}: {file} has no {symbol}"
        assert places.setdefault(label, target) == target, f"{path.name}: two places for {label}"
    if places:
        assert all(f"\n{line}\n" in source for line in LINK_STYLE), path.name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_link_is_an_anchor_of_the_picture(path: Path) -> None:
    links = links_of(path.read_text(encoding="utf-8"))
    anchors = anchors_of(path.with_suffix(".svg").read_text(encoding="utf-8"))
    assert Counter(anchors) == Counter(links)


def test_most_diagrams_with_arrows_of_words_have_links() -> None:
    """So that the laws above are about something."""
    linked_ones = {path.stem for path in SOURCES if links_of(path.read_text(encoding="utf-8"))}
    sequences = {path.stem for path in SOURCES if path.stem.endswith("_sequence")}
    by_hand = {"request_states", "way_of_a_batch", "class_structure", "decode", "prefill"}
    assert sequences | by_hand <= linked_ones
    assert len(linked_ones) >= 35


@given(st.text("abc _():,", max_size=12), st.sampled_from(["resolve_future", "store_to_map"]))
def test_a_name_becomes_a_link_and_nothing_else_changes(around: str, name: str) -> None:
    code = {"resolve_future": FutureMapRing.resolve_future, "store_to_map": Engine.chain}
    plain = f"{around} {name}() and my_{name} and {name}_too"
    text = linked(plain, code)
    assert LINK.findall(text) == [(address(code[name]), f"{name}()")]
    assert LINK.sub(r"\2", text) == plain
    assert linked(text, {}) == text


def test_an_address_is_where_the_function_was_written() -> None:
    """An inherited method leads to the class that defines it."""
    assert address(Engine.chain) == "../minisched/engine/engine.py#Engine.chain"
    assert address(Engine.run_batch) == "../minisched/engine/step_phases.py#StepPhases.run_batch"


CLICKED = (
    "overlap_sequence",  # a sequence
    "request_states",  # states
    "prefill",  # an activity
    "class_structure",  # classes
    "way_of_a_batch",  # components
)


@pytest.mark.parametrize("name", CLICKED)
def test_a_click_opens_the_code(browser: Browser, name: str) -> None:
    """Chromium shows the file that the link names."""
    picture = DIAGRAMS / f"{name}.svg"
    anchors = anchors_of(picture.read_text(encoding="utf-8"))
    target, label = anchors[-1]
    with watch(browser) as watched:
        page = watched.page
        page.goto(picture.as_uri())
        assert page.locator("a").count() == len(anchors)
        anchor = page.locator("a").last
        assert anchor.locator("text").inner_html() == label
        assert anchor.locator("title").inner_html() == target[3:].replace("#", ": ")
        assert anchor.locator("text").get_attribute("fill") == LINK_COLOUR
        anchor.locator("text").click()
        page.wait_for_url(lambda url: ".py" in url)
        file, _, symbol = target.partition("#")
        assert page.url == f"{(DIAGRAMS / file).resolve().as_uri()}#{symbol}"
        defined = re.compile(rf"^ *(?:def|class) {symbol.rpartition('.')[2]}\b", re.M)
        assert defined.search(page.inner_text("body"))
