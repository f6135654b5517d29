"""The site: one build without a warning, nothing in it leads nowhere or outside; its lab.

The lab's Python is Pyodide, from the npm package: in a real browser it says the same numbers as in
this Python. The pages are served from this machine.
"""

from __future__ import annotations

import ast
import fcntl
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from statistics import mean
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page, expect

from minisched import learn
from minisched.checks.overlap.overlap import step_intervals
from minisched.comparison import compare_loops
from minisched.export.native import to_json
from minisched.learn.simulate import TIE
from minisched.models.hash import HashModel
from minisched.museum import exhibits
from minisched.topics import TOPICS
from tests.support import browser, many, served, watch

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "lessons" / "site"
sys.path[:0] = [str(SITE), str(SITE / "lab")]

from experiment import HOST_STEP, Settings, loop_names, run, settled_step  # noqa: E402
from pages import gallery, lab, lessons, museum, reference, steppers  # noqa: E402
from report import report  # noqa: E402

assert browser  # the fixture
PAGES = [
    "index.html", "lab.html", "lab/index.html", "steppers.html", "museum.html", "search.html",
    "lessons/README.html", "gallery/index.html", "gallery/more.html", "diagrams/index.html",
    "lessons/site/docs/first_run_on_a_gpu.html",
    *(f"gallery/{topic}.html" for topic in TOPICS),
    *(f"lessons/{path.stem}.html" for path in lessons.lessons()),
    *(f"diagrams/{path.stem}.html" for path in ROOT.glob("diagrams/*.md")),
    *(f"reference/{layer}.html" for layer in reference.LAYERS),
    *(f"steppers/{name}.html" for name in steppers.STEPPERS),
    *(f"museum/{exhibit.name}.html" for exhibit in exhibits()), "museum/refuted.html",
]  # fmt: skip

# -- what Sphinx is given --------------------------------------------------------------------------


def test_every_topic_diagram_and_bug_has_its_page_with_its_picture() -> None:
    pages, museum_pages = gallery.pages(), museum.pages()
    shown = Counter(
        name
        for path, text in pages.items()
        if path != "gallery/index.md"
        for name in re.findall(r"!\[[^]]*\]\(\.\./diagrams/(\w+)\.svg\)", text)
    )
    assert shown == Counter(path.stem for path in ROOT.glob("diagrams/*.puml"))
    assert all(f"](../traces/{topic}.svg)" in pages["gallery/index.md"] for topic in TOPICS)
    for exhibit in exhibits():
        page = museum_pages[f"museum/{exhibit.name}.md"]
        assert f"](../traces/museum/{exhibit.name}.svg)" in page and "```diff" in page


def test_the_reference_has_every_folder_in_an_order_that_layers_allow() -> None:
    folders = {path.parent.name for path in (ROOT / "minisched").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "minisched").glob("[a-z]*.py")}
    assert set(reference.LAYERS) == folders | modules | {"minisched"}  # what a notebook imports
    assert reference.LAYERS[:5] == ("core", "trace", "memory", "policy", "scheduler")
    assert reference.LAYERS[-3:] == ("cli", "checking", "minisched")


# -- what was built --------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, pyodide: Path) -> Path:
    """The built site; built once, whichever of pytest's workers asks for it first."""
    assert lab.has_python(pyodide)
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    out, done = base / "site", base / "site.built"
    with (base / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():  # the README's command, where a warning is an error
            command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", SITE, out]
            built = subprocess.run(command, capture_output=True, text=True)
            said = [line for line in built.stderr.splitlines() if "IPKernelApp" not in line]
            assert built.returncode == 0, "\n".join(said[-30:])
            done.touch()
    return out


class Links(HTMLParser):
    """What a page loads, where it leads, and where it can be entered."""

    def __init__(self) -> None:
        super().__init__()
        self.loads, self.leads, self.ids = list[str](), list[str](), set[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Every address of an element."""
        values = {name: value for name, value in attrs if value is not None}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag in ("a", "area"):
            self.leads += [values["href"]] if "href" in values else []
        elif not (tag == "link" and values.get("rel") in ("index", "search", "next", "prev")):
            loaded = ("src", "href", "data", "poster")
            self.loads += [values[name] for name in loaded if name in values]


@cache
def read(path: Path) -> Links:
    """A page of the site."""
    links = Links()
    links.feed(path.read_text(encoding="utf-8"))
    return links


def lacks(target: Path, fragment: str) -> bool:
    """Whether a page has no such place; pages of their own read their settings from there."""
    own = target.suffix != ".html" or target.parent.name in ("lab", "steppers")
    return bool(fragment) and not own and fragment not in read(target).ids


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_outside(site: Path) -> None:
    """Other sites may be linked to; scripts, styles, fonts and pictures come along."""
    pages = [path for path in site.rglob("*.html") if "pyodide" not in path.parts]  # npm's
    assert {path.relative_to(site).as_posix() for path in pages} >= set(PAGES)
    broken, count = [], 0
    for page in pages:
        outside = [it for it in read(page).loads if urlsplit(it).scheme not in ("", "data")]
        assert outside == [], page
        for address in [*read(page).loads, *read(page).leads]:
            parts = urlsplit(address)
            if parts.scheme or address in ("", "#"):
                continue
            count += 1
            target = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
            if not target.is_file() or lacks(target, unquote(parts.fragment)):
                broken.append(f"{page.relative_to(site)}: {address}")
    assert broken == [] and count > 5000
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import", text), sheet


def test_every_documented_name_is_in_the_reference_and_diagrams_lead_there(site: Path) -> None:
    """Public functions and classes of each module, counted in the sources."""
    for layer in reference.LAYERS:
        ids = read(site / "reference" / f"{layer}.html").ids
        for path in reference.sources(layer):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            name = reference.module_name(path)
            for node in tree.body if ast.get_docstring(tree) else []:
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
                    assert node.name.startswith("_") or f"{name}.{node.name}" in ids
    for source in ROOT.glob("diagrams/*.puml"):
        symbols = re.findall(r"\[\[\S*?(minisched/[\w/]+)\.py#([\w.]+)", source.read_text("utf-8"))
        page = site / gallery.page_of(source.stem).partition("#")[0].replace(".md", ".html")
        for module, name in symbols:
            dotted = f"{module.replace('/', '.')}.{name}"
            assert any(link.endswith(f"#{dotted}") for link in read(page).leads), dotted


# -- the site in a browser -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served."""
    with served(site) as address:
        yield address


def test_pages_open_without_errors_and_search_works_offline(browser: Browser, address: str) -> None:
    """A page of each kind; and none is wider than the window."""
    kinds = {name.split("/")[0]: name for name in PAGES if not name.startswith("lab/")}
    allowed = (address, "data:", "blob:", "about:")
    with watch(browser, allowed, viewport={"width": 420, "height": 900}) as page:
        for name in kinds.values():
            page.goto(address + name)  # until everything in it is loaded
            assert page.evaluate("document.documentElement.scrollWidth") <= 420, name
            broken = "[...document.images].filter((it) => it.complete && !it.naturalWidth).length"
            assert page.evaluate(broken) == 0, name
        page.goto(f"{address}search.html?q=retraction")
        expect(page.locator("#search-results .search-summary")).to_contain_text("finished")
        assert "retraction" in page.locator("#search-results li a").all_inner_texts()


def test_moving_the_lesson_s_sliders_shows_that_pair(browser: Browser, tmp_path: Path) -> None:
    slider = learn.cost_slider()
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', slider.page)
    assert found
    data, path = json.loads(found[1]), tmp_path / "slider.html"
    path.write_text(f"<!doctype html>{slider._repr_html_()}", encoding="utf-8")
    with watch(browser, viewport={"width": 920, "height": 700}) as page:
        page.goto(path.as_uri())
        frame = page.frame_locator("iframe")
        for length, h, d in ((1, 3, 4), (0, 1, 4), (1, 10, 9)):
            frame.locator("#lengths input").nth(length).check()
            frame.locator("#host").fill(str(h))
            frame.locator("#device").fill(str(d))
            pair = data["grids"][length][h][d]
            one, other = (run["makespan"] for run in pair)
            says = "Overlap wins" if one > other else "Overlap loses"
            says = "A tie" if abs(one / other - 1) < TIE else says
            assert frame.locator("#verdict").inner_text().startswith(says)
            assert all(f"{t:g} ms" in frame.locator("#numbers").inner_text() for t in (one, other))
            boxes = frame.locator("#timing rect:not(.lane):not(.idle)").count()
            assert boxes == sum(len(run["boxes"]) for run in pair)


# -- the lab: in this Python -----------------------------------------------------------------------

NUMBERS = ("host", "forward", "copy", "requests", "prompt", "tokens")
tenths = st.integers(1, 150).map(lambda value: value / 10)


@settings(max_examples=many(4, 80))
@given(host=tenths, forward=tenths, copy=tenths, requests=st.integers(1, 8))
def test_a_settled_step_takes_what_the_lab_says(
    host: float, forward: float, copy: float, requests: int
) -> None:
    """Read off the runs' traces, as a mean: long and short steps may alternate."""
    device = forward + 0.05 * requests + 1
    together = device + host + copy
    steps = (together, max(device, host, copy, together / 2))
    wanted = Settings(host=host, forward=forward, copy=copy, requests=requests, tokens=24)
    assert settled_step(wanted) == pytest.approx(steps)
    for item, step in zip(run(wanted).runs, steps, strict=True):
        assert mean(step_intervals(item.trace)[6:16]) == pytest.approx(step * 1e6, abs=5_000)


def test_the_form_starts_with_the_module_s_defaults_and_takes_every_loop() -> None:
    html = (SITE / "lab" / "index.html").read_text(encoding="utf-8")
    start = dict(re.findall(r'type="range" id="(\w+)".* value="([\d.]+)"', html))
    assert {name: float(value) for name, value in start.items()} == {
        name: getattr(Settings(), name) for name in NUMBERS
    }
    assert HOST_STEP == 6_700_000
    for loop in loop_names():
        wanted = Settings(loops=("serial", loop), tokens=3, requests=2)
        said = json.loads(json.dumps(report(wanted, run(wanted), whole=True)))
        assert said["identical"] and said["svg"].startswith("<svg")
        assert [row["loop"] for row in said["rows"]] == list(dict.fromkeys(["serial", loop]))


# -- the lab: in the browser's Python --------------------------------------------------------------


@pytest.fixture(scope="module")
def page(
    browser: Browser, pyodide: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    """The lab, ready; at the end there was no error, and no request went elsewhere."""
    out = tmp_path_factory.mktemp("site")
    lab.write(out)
    with (
        served(out) as address,
        watch(
            browser, (address, "blob:", "data:"), viewport={"width": 1280, "height": 1000}
        ) as page,
    ):
        page.goto(f"{address}lab/index.html")
        page.wait_for_selector("#results:not([hidden]):not(.stale)")
        yield page


def makespans(page: Page) -> dict[str, int]:
    """Nanoseconds by loop, as the table has them."""
    read = "rows => rows.map(r => [r.dataset.loop, r.cells[1].dataset.ns])"
    return {loop: int(ns) for loop, ns in page.locator("#rows tr").evaluate_all(read)}


def expected(asked: Settings) -> dict[str, int]:
    """The same of ``minisched.compare`` here."""
    found = compare_loops(asked.loops, "sim", HashModel(), asked.workload, asked.config, asked.cost)
    assert found.identical
    return {item.loop: item.makespan_ns for item in found.reports}


def settle(page: Page, wanted: Settings) -> None:
    """Wait for the table of these settings, however many changes were on their way."""
    page.wait_for_function(
        """ns => [...document.querySelectorAll("#rows tr")]
            .map((row) => Number(row.cells[1].dataset.ns)).join() === ns.join()""",
        arg=list(expected(wanted).values()),
    )


def test_it_gives_what_compare_gives_here_and_refuses_in_a_sentence(page: Page) -> None:
    settle(page, Settings())
    assert page.inner_text("#verdict").startswith("Identical tokens")
    assert page.locator("#picture").evaluate("it => it.decode().then(() => it.naturalWidth)") == 900
    page.focus("#host")  # of many changes the last one is shown
    for _ in range(30):
        page.keyboard.press("ArrowRight")
    assert page.inner_text("output[for=host]") == "9.7 ms"
    settle(page, Settings(host=9.7))
    page.wait_for_timeout(300)
    assert makespans(page) == expected(Settings(host=9.7))
    page.evaluate(
        "location.hash = 'whole=false&loops=vllm_async,mlx_async&needs=grammar&host=12.3&copy=2.1'"
    )
    wanted = Settings(loops=("vllm_async", "mlx_async"), needs="grammar", host=12.3, copy=2.1)
    settle(page, wanted)
    page.select_option("#second", "mini_overlap")
    page.wait_for_selector("#results.stale")
    assert "'mini_overlap' takes no grammar" in page.inner_text("#status")
    page.select_option("#needs", "nothing")
    settle(page, replace(wanted, loops=("vllm_async", "mini_overlap"), needs="nothing"))
    assert not page.locator("#status").is_visible()


def test_the_presets_do_what_they_say_and_their_runs_can_be_taken_away(page: Page) -> None:
    for name, wanted, least, most in (
        ("It ties", Settings(host=1, forward=20), 0.99, 1.01),
        ("It loses", Settings(host=2, forward=16, tokens=2), 0, 0.9),
        ("Overlap wins", Settings(), 1.5, 9),
    ):
        page.get_by_role("button", name=name).click()
        settle(page, wanted)
        found = makespans(page)
        assert least < found["serial"] / found["overlap"] < most, name
    for item in run(Settings()).runs:
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save {item.loop}.json").click()
        assert download.value.suggested_filename == f"{item.loop}.json"
        assert Path(download.value.path()).read_text(encoding="utf-8") == to_json(item.trace)
    with page.expect_popup() as popup:
        page.get_by_role("button", name="Step through both").click()
    popup.value.wait_for_url(re.compile("^blob:"))
    popup.value.wait_for_load_state()
    text = popup.value.inner_text("body")
    assert "serial" in text and "overlap" in text
    popup.value.close()
