"""The site: one build without a warning, nothing in it leads nowhere or outside; lab and exercises.

The pages' Python is Pyodide, from the npm package: in a real browser it says the same as in this
Python. The pages are served from this machine.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from statistics import mean
from textwrap import dedent
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import unquote, urlsplit
from zipfile import ZipFile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.core.inputtransformer2 import TransformerManager
from packaging.requirements import Requirement
from playwright.sync_api import Browser, Page, expect

from minisched.checks.overlap import measure, step_intervals
from minisched.comparison import compare_loops
from minisched.export.svg_page import width_of
from minisched.learn.exercise import find
from minisched.models.hash import HashModel
from minisched.museum import exhibits
from minisched.recipes import trace_of
from minisched.topics import TOPICS
from minisched.trace.native import to_json
from tests.repo.test_lessons import executed_once
from tests.support import OWN, SVG, Picture, browser, made_once, many, served, watch

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "lessons" / "site"
sys.path[:0] = [str(SITE), str(SITE / "lab")]

import cells  # noqa: E402
from card import FORMS, LETTERS, STATIC, card, hash_of  # noqa: E402
from experiment import Settings, loop_names, run, settled_step  # noqa: E402
from pages import gallery, lab, lessons, reference, repository, steppers  # noqa: E402
from report import report  # noqa: E402

assert browser  # the fixture
SLOW = 300_000  # milliseconds for a check in the browser's Python
FORK = "some-body/minisched-fork"  # where it is built as if it were published
PAGES = [
    "index.html", "lab/index.html", "lab/check.html", "steppers.html", "explore.html",
    "museum.html", "search.html",
    "lessons/README.html", "lessons/leaderboard.html", "gallery/index.html", "gallery/more.html",
    "diagrams/index.html",
    *(f"lessons/site/docs/{path.stem}.html" for path in SITE.glob("docs/*.[mp][dy]")),
    *(f"gallery/{topic}.html" for topic in TOPICS),
    *(f"lessons/{path.stem}.html" for path in lessons.lessons()), "lessons/teaching.html",
    *(f"lessons/zh/{path.stem}.html" for path in lessons.in_chinese()),
    *(f"diagrams/{path.stem}.html" for path in ROOT.glob("diagrams/*.md")),
    *(f"reference/{layer}.html" for layer in reference.LAYERS),
    *(f"steppers/{name}.html" for name in steppers.STEPPERS),
    *(f"museum/{exhibit.name}.html" for exhibit in exhibits()), "museum/refuted.html",
]  # fmt: skip

# -- what Sphinx is given --------------------------------------------------------------------------


def test_the_reference_has_every_folder() -> None:
    folders = {path.parent.name for path in (ROOT / "minisched").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "minisched").glob("[a-z]*.py")}
    assert set(reference.LAYERS) == folders | modules | {"minisched"}  # what a notebook imports


def test_the_gallery_has_a_card_for_each_topic_and_a_heading_for_each_layer() -> None:
    assert set(gallery.CARDS) == set(TOPICS)
    assert list(gallery.ABOUT) == list(dict.fromkeys(map(gallery.layer_of, TOPICS)))


@pytest.mark.parametrize("name", FORMS)
def test_a_card_is_drawn_of_the_runs_and_its_png_of_it(name: str) -> None:
    form = FORMS[name]
    png, picture = (STATIC / f"{name}.png").read_bytes(), Picture(card(form))
    assert (int.from_bytes(png[16:20]), int.from_bytes(png[20:24])) == (form.width, form.height)
    assert len(png) < 150_000, "small enough for a repository"
    assert hash_of(card(form)) in png, "python lessons/site/card.py"
    least = min(map(int, re.findall(r"font-size: (\d+)px", LETTERS)))
    assert least >= 24 and (name != "card_phone" or least * 390 / form.width >= 12)
    serial, overlap = (measure(trace_of(loop)) for loop in ("serial", "overlap"))
    assert f"{serial.makespan_ns / overlap.makespan_ns:.2f} " in picture.words
    for one in (serial, overlap):
        assert f"{one.device_busy_percent:.0f} %" in picture.words
    for text in picture.root.iter(f"{SVG}text"):
        size = {"big": 52, "middle": 30, "low": 26, "inside": 24}[text.attrib["class"].split()[0]]
        room = width_of("".join(text.itertext()), size)
        left = float(text.attrib["x"]) - room / 2 * (text.get("text-anchor") == "middle")
        assert left >= 0 and left + room <= form.width


# -- what was built --------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, pyodide: Path) -> Path:
    """The built site; built once, whichever of pytest's workers asks for it first.

    Its lessons are those that ``test_lessons.py`` executes.
    """
    assert lab.has_python(pyodide)
    files = [executed_once(path, tmp_path_factory) for path in lessons.lessons()]

    def build(out: Path) -> None:
        """Run the README's command; a warning is an error."""
        command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", SITE, out]
        at = {**os.environ, "MINISCHED_GITHUB": FORK, "MINISCHED_EXECUTED": str(files[0].parent)}
        built = subprocess.run(command, capture_output=True, text=True, env=at, encoding="utf-8")
        said = [line for line in built.stderr.splitlines() if "IPKernelApp" not in line]
        assert built.returncode == 0, "\n".join(said[-30:])

    return made_once(tmp_path_factory, "site", build)


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


def test_a_page_that_is_shared_shows_the_card(site: Path) -> None:
    image = "https://some-body.github.io/minisched-fork/_static/card.png"
    for name in ("index.html", "gallery/overlap.html"):
        assert f'<meta property="og:image" content="{image}">' in (site / name).read_text("utf-8")
    assert (site / "_static" / "card.png").read_bytes() == (STATIC / "card.png").read_bytes()


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_outside(site: Path) -> None:
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
            own = target.suffix != ".html" or target.parent.name in ("lab", "steppers")
            fragment = "" if own else unquote(parts.fragment)  # those read their settings there
            if not target.is_file() or (fragment and fragment not in read(target).ids):
                broken.append(f"{page.relative_to(site)}: {address}")
    assert broken == [] and count > 5000
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import", text), sheet


def test_every_documented_name_is_in_the_reference_and_diagrams_lead_there(site: Path) -> None:
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
        drawn = source.with_suffix(".svg").exists()  # others are kept as text
        for module, name in symbols if drawn else ():
            dotted = f"{module.replace('/', '.')}.{name}"
            assert any(link.endswith(f"#{dotted}") for link in read(page).leads), dotted


def published(site: Path) -> list[Path]:
    """The files of the site, without Sphinx's own cache, which ``-d`` puts elsewhere."""
    return [path for path in site.rglob("*") if path.is_file() and ".doctrees" not in path.parts]


def test_the_site_is_small_and_a_first_visit_needs_little(site: Path) -> None:
    """At most 40 MB in all; the first page, with all that it loads, at most 1 MB."""
    assert sum(path.stat().st_size for path in published(site)) < 40_000_000
    home = site / "index.html"
    loaded = {urlsplit(it).path for it in read(home).loads if not it.startswith("data:")}
    files = [home, *((home.parent / unquote(path)).resolve() for path in loaded if path)]
    assert len(files) > 5 and sum(path.stat().st_size for path in files) < 1_000_000


def test_the_pages_name_the_size_of_python(site: Path) -> None:
    size = sum(path.stat().st_size for path in (site / "lab" / "pyodide").iterdir())
    for text in (lab.HERE, lab.CHECK, (SITE / "lab" / "worker.js").read_text("utf-8")):
        (said,) = re.findall(r"(\d+) MB[,)]", text)
        assert said == f"{size / 1e6:.0f}"


# -- the site in a browser -------------------------------------------------------------------------


def test_pages_open_without_errors_and_search_works_offline(browser: Browser, site: Path) -> None:
    kinds = {name.split("/")[0]: name for name in PAGES if not name.startswith("lab/")}
    size = {"width": 420, "height": 900}
    with served(site) as address, watch(browser, (address, *OWN), viewport=size) as page:
        for name in kinds.values():
            page.goto(address + name)  # until everything in it is loaded
            assert page.evaluate("document.documentElement.scrollWidth") <= 420, name
            broken = "[...document.images].filter((it) => it.complete && !it.naturalWidth).length"
            assert page.evaluate(broken) == 0, name
        page.goto(f"{address}search.html?q=retraction")
        expect(page.locator("#search-results .search-summary")).to_contain_text("finished")
        assert "Retraction" in page.locator("#search-results li a").all_inner_texts()
        for word in ("lease", "token", "radix cache"):  # its entry in the glossary is found first
            page.goto(f"{address}search.html?q={word}")
            expect(page.locator("#search-results .search-summary")).to_contain_text("finished")
            first = page.locator("#search-results li a").first.inner_text()
            assert first.lower() == f"glossary > {word}", first


OUTSIDE = """() => [...document.querySelectorAll("article :is(input, select, output, button)")]
    .filter((it) => it.offsetWidth)
    .filter((it) => {
      const box = (it.closest("fieldset, form, .sliders") ?? it.closest("article"));
      return it.getBoundingClientRect().right > box.getBoundingClientRect().right + 0.5;
    }).map((it) => it.outerHTML)"""


@pytest.mark.parametrize("name", ["lab/index.html", "lab/check.html", "lessons/01_bubble.html"])
def test_controls_stay_in_their_boxes_at_each_width(
    browser: Browser, site: Path, name: str
) -> None:
    with served(site) as address, watch(browser, (address, *OWN)) as page:
        page.goto(address + name)
        if name == "lab/index.html":  # Python fills the lists
            expect(page.locator("#first option").first).to_be_attached(timeout=SLOW)
        for width in (360, 390, 768, 1024, 1300, 1600):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
            assert page.evaluate(OUTSIDE) == [], (name, width)


def test_pictures_players_and_explore_work_from_disk(browser: Browser, site: Path) -> None:
    with watch(browser, (site.as_uri(), *OWN)) as page:
        for name in ("index.html", "gallery/overlap.html", "museum.html"):
            page.goto((site / name).as_uri())
            pictures = page.locator("article img")
            assert pictures.count() and pictures.first.evaluate("it => it.naturalWidth > 100"), name
        page.goto((site / "explore.html").as_uri())
        assert page.locator("svg rect").count() > 20
        page.goto((site / "steppers" / "serial_overlap.html").as_uri())
        before = page.inner_text("body")
        page.keyboard.press("ArrowRight")
        page.wait_for_function("(before) => document.body.innerText !== before", arg=before)


def test_from_disk_a_page_with_python_names_the_server_that_it_needs(
    browser: Browser, site: Path
) -> None:
    context = browser.new_context()
    page = context.new_page()
    for name in ("lessons/01_bubble.html", "lab/index.html", "lab/check.html"):
        page.goto((site / name).as_uri())
        expect(page.get_by_text("python -m http.server -d").first).to_be_visible()
    with served(site) as address:
        page.goto(f"{address}lessons/01_bubble.html")
        expect(page.locator(".from-disk")).to_be_hidden()
    context.close()


# -- the lab: in this Python -----------------------------------------------------------------------

tenths = st.integers(1, 150).map(lambda value: value / 10)


@settings(max_examples=many(4, 80))
@given(host=tenths, forward=tenths, copy=tenths, requests=st.integers(1, 8))
def test_a_settled_step_takes_what_the_lab_says(
    host: float, forward: float, copy: float, requests: int
) -> None:
    device = forward + 0.05 * requests + 1
    together = device + host + copy
    steps = (together, max(device, host, copy, together / 2))
    wanted = Settings(host=host, forward=forward, copy=copy, requests=requests, tokens=24)
    assert settled_step(wanted) == pytest.approx(steps)
    for item, step in zip(run(wanted).runs, steps, strict=True):
        assert mean(step_intervals(item.trace)[6:16]) == pytest.approx(step * 1e6, abs=5_000)


def test_the_form_starts_with_the_module_s_defaults_and_takes_every_loop() -> None:
    html = (SITE / "lab" / "form.html").read_text(encoding="utf-8")
    start = dict(re.findall(r'type="range" id="(\w+)".* value="([\d.]+)"', html))
    assert len(start) == 6
    assert all(float(value) == getattr(Settings(), name) for name, value in start.items())
    for loop in loop_names():
        wanted = Settings(loops=("serial", loop), tokens=3, requests=2)
        said = json.loads(json.dumps(report(wanted, run(wanted), whole=True)))
        assert said["identical"] and said["svg"].startswith("<svg")
        assert [row["loop"] for row in said["rows"]] == list(dict.fromkeys(["serial", loop]))


# -- the lab: in the browser's Python --------------------------------------------------------------


@pytest.fixture
def page(browser: Browser, site: Path) -> Iterator[Page]:
    """The lab, ready; at the end there was no error, and no request went elsewhere."""
    with served(site) as address, watch(browser, (address, *OWN)) as page:
        page.goto(f"{address}lab/index.html")
        page.wait_for_selector("#results:not([hidden]):not(.stale)")
        yield page


def settle(page: Page, wanted: Settings) -> None:
    """Wait for what ``minisched.compare`` gives here for these settings."""
    found = compare_loops(
        wanted.loops, "sim", HashModel(), wanted.workload, wanted.config, wanted.cost
    )
    assert found.identical
    page.wait_for_function(
        """ns => [...document.querySelectorAll("#rows tr")]
            .map((row) => Number(row.cells[1].dataset.ns)).join() === ns.join()""",
        arg=[item.makespan_ns for item in found.reports],
    )


def test_a_walk_through_the_lab(page: Page) -> None:
    settle(page, Settings())
    assert page.inner_text("#verdict").startswith("Identical tokens")
    here = report(Settings(), run(Settings()), whole=False)["svg"]
    wide = page.locator("#picture").evaluate("it => it.decode().then(() => it.naturalWidth)")
    assert f'width="{wide}"' in here.partition(">")[0]
    page.focus("#host")  # of many changes the last one is shown
    for _ in range(30):
        page.keyboard.press("ArrowRight")
    assert page.inner_text("output[for=host]") == "9.7 ms"
    settle(page, Settings(host=9.7))
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
    page.get_by_role("button", name="It loses").click()
    wanted = Settings(host=2, forward=16, tokens=2)
    settle(page, wanted)
    for item in run(wanted).runs:
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


# -- live exercises: in this Python ----------------------------------------------------------------


def solved(name: str) -> str:
    """A cell with the solution of an exercise."""
    return f'{dedent(find(name).solution).strip()}\n\n\nlearn.check("{name}", {name})'


def test_the_browser_gets_the_files_that_the_package_reads(tmp_path: Path) -> None:
    """A page draws with them alone: no file of this checkout is on its path."""
    lab.zip_package(tmp_path / "minisched.zip")
    with ZipFile(tmp_path / "minisched.zip") as archive:
        archive.extractall(tmp_path)
    (tmp_path / "minisched.zip").unlink()
    code = "from minisched import learn; print(len(learn.timing(learn.simulate('serial')).svg))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path, capture_output=True, text=True, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0 and int(done.stdout) > 1000, done.stderr


def test_the_pages_python_needs_nothing_that_a_browser_has_not(tmp_path: Path) -> None:
    """Pyodide has no processes and none of the libraries."""
    lacking = ("_multiprocessing", "numpy", "torch", "typer", "rich", "mlx")
    code = f"""
import sys
sys.modules.update(dict.fromkeys({lacking}))
import cells, checker, session
"""
    command = [sys.executable, "-c", code]
    path = os.pathsep.join([str(ROOT), str(SITE / "lab")])
    subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path, check=True)


def test_only_what_an_exercise_uses_is_run_before_it() -> None:
    before = [
        "import mlx.core as mx\nfrom minisched import learn, Request",
        "costs = {'host': 1}\nrows = []\nfor cost in costs:\n    rows.append(cost)",
        "learn.view(rows)",
        "def twice(n):\n    return n * len(costs)",
        "def half(",
        "print('never')",
    ]
    assert cells.needed(before, "learn.check(twice)") == [
        "from minisched import learn",
        "costs = {'host': 1}",
        "def twice(n):\n    return n * len(costs)",
    ]
    assert cells.needed(before, "rows") == [
        "costs = {'host': 1}", "rows = []", "for cost in costs:\n    rows.append(cost)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("def cut(:\n    pass", "line 1\n    def cut(:\n"),
        ("x = 1\ny = nobody", "line 2:  y = nobody\nNameError: name 'nobody' is not defined"),
        ("import mlx", "line 1:  import mlx\nModuleNotFoundError"),
        ("print(2)\n1 / 0", "2\nline 2:  1 / 0\nZeroDivisionError: division by zero"),
    ],
)
def test_an_error_says_which_of_the_learner_s_lines_and_nothing_of_ours(
    lines: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "mlx", None)
    answer = json.loads(cells.exercise(json.dumps({"before": [], "lines": lines, "mine": ""})))
    assert answer["text"].startswith(said) and "cells.py" not in answer["text"]
    assert not answer["passed"] and not answer["html"]


def test_the_page_keeps_the_whole_cell_without_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its imports and helpers, and no cell that needs another one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "platform", "emscripten")
    monkeypatch.delattr(subprocess, "run")
    helper = "def round_of(host, device, copy):\n    return sum((host, device, copy))\n\n\n"
    lines = (
        "from math import fsum\n\n\n"
        "def step_time(host, device, copy, in_flight):\n"
        "    if in_flight == 1:\n"
        "        return round_of(host, device, copy)\n"
        "    return max(host, device, copy, fsum((host, device, copy)) / in_flight)\n\n\n"
    )
    check = 'learn.check("step_time", step_time)'
    imports = "from minisched import learn"

    def page(before: list[str], cell: str) -> Any:
        asked = {"before": before, "lines": cell, "mine": ""}
        return json.loads(cells.exercise(json.dumps(asked)))

    answer = page([imports], helper + lines + check)
    assert answer["passed"] and answer["mine"].endswith((helper + lines).rstrip() + "\n")
    answer = page([imports, helper], lines + check)
    assert answer["passed"] and not answer["mine"]
    assert "this cell uses <code>round_of</code>" in answer["html"]


# -- live exercises: in the browser's Python -------------------------------------------------------


def test_an_exercise_is_solved_in_the_page_wrong_first_and_the_answer_stays(
    browser: Browser, site: Path
) -> None:
    with served(site) as address, watch(browser, (address, *OWN)) as page:
        page.goto(f"{address}lessons/04_long_prompt.html")
        cell = page.locator(".tag_exercise").first
        area, said = cell.get_by_role("textbox"), cell.get_by_role("status")
        expect(cell.locator(".as-it-stands")).to_contain_text("Your turn")
        area.fill("def cut(rem_chunk, page_size, extend_len):")
        area.press("End")
        page.keyboard.press("Enter")  # indents
        page.keyboard.type("return min(rem_chunk or extend_len, extend_len)")
        page.keyboard.press("Enter")
        page.keyboard.press("Backspace")
        page.keyboard.type('learn.check("cut", cut)')
        page.keyboard.press("Shift+Enter")
        expect(said).to_contain_text("Not yet")
        expect(said).to_contain_text("The law")
        assert said.locator("img").first.evaluate("it => it.decode().then(() => it.naturalWidth)")
        cell.get_by_role("button", name="Hint").click()
        expect(said).to_contain_text("Hint 1 of")
        area.fill(solved("cut"))
        cell.get_by_role("button", name="Run").click()
        expect(said).to_contain_text("Right")
        assert said.locator("img").first.evaluate("it => it.decode().then(() => it.naturalWidth)")
        expect(page.locator("#progress")).to_have_text("1 of 4 exercises right")
        page.reload()
        expect(page.locator("#progress")).to_have_text("1 of 4 exercises right")
        area = page.locator(".tag_exercise textarea").first
        expect(area).to_have_value(solved("cut"))
        page.goto(f"{address}lessons/README.html")
        expect(page.locator("table").first).to_contain_text("1 of 4 right")
        with page.expect_download() as download:
            page.get_by_role("link", name="mine.py").click()
        assert "# == cut, lesson" in Path(download.value.path()).read_text(encoding="utf-8")
        page.go_back()
        page.locator(".tag_exercise").first.get_by_role("button", name="Start again").click()
        expect(page.locator("#progress")).to_have_text("0 of 4 exercises right")


@pytest.fixture(scope="module")
def cells_alone(tmp_path_factory: pytest.TempPathFactory, pyodide: Path) -> Path:
    """What a page with an exercise loads, and such a page, without the rest of the site."""
    out = tmp_path_factory.mktemp("cells")
    lab.write(out, pyodide)
    (out / "alone.html").write_text(
        """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><h2>Alone</h2>
        <div class="cell tag_exercise"><div class="cell_input"><pre>learn.check("cut", cut)</pre>
        </div></div><script type="module" src="lab/lesson.js"></script>""",
        encoding="utf-8",
    )
    return out


def test_python_is_loaded_when_the_first_exercise_comes_near_and_a_tap_enlarges_a_picture(
    browser: Browser, cells_alone: Path
) -> None:
    far = (cells_alone / "alone.html").read_text("utf-8").replace("<h2>", "<div id=far></div><h2>")
    style = "<style>#far { height: 5000px } dialog img { width: 1100px }</style>"
    (cells_alone / "far.html").write_text(far + style, encoding="utf-8")
    with served(cells_alone) as address, watch(browser, (address, *OWN)) as page:
        page.goto(f"{address}far.html")
        expect(page.get_by_role("button", name="Run")).to_have_count(1)
        loaded = (
            "performance.getEntriesByType('resource').some(it => it.name.includes('worker.js'))"
        )
        assert not page.evaluate(loaded)
        page.get_by_role("button", name="Run").scroll_into_view_if_needed()
        page.wait_for_function(loaded)
        expect(page.locator(".loading")).to_have_count(0, timeout=60_000)
        page.get_by_role("textbox").fill(
            "from minisched import learn\nlearn.timing(learn.simulate('serial'))"
        )
        page.get_by_role("button", name="Run").click()
        page.locator(".said img").click()
        expect(page.locator("dialog img")).to_be_visible()
        page.locator("dialog img").click()
        expect(page.locator("dialog")).to_have_count(0)


def test_sliders_below_a_run_draw_it_with_other_costs(browser: Browser, cells_alone: Path) -> None:
    page_alone = (cells_alone / "alone.html").read_text("utf-8")
    costs = page_alone.replace("<h2>", '<div class="cell tag_costs"></div><h2>')
    (cells_alone / "costs.html").write_text(costs, encoding="utf-8")
    with served(cells_alone) as address, watch(browser, (address, *OWN)) as page:
        page.goto(f"{address}costs.html")
        page.get_by_label("host").fill("20")
        expect(page.locator(".sliders output").first).to_have_text("20 ms")
        expect(page.locator(".sliders img")).to_be_visible(timeout=60_000)
        before = page.locator(".sliders img").get_attribute("src")
        page.get_by_label("device").fill("30")
        page.wait_for_function(
            "(before) => document.querySelector('.sliders img')?.src !== before", arg=before
        )


def page_of(path: Path) -> str:
    """The cells of a lesson as a page, without its text and its outputs."""
    cell = '<div class="cell {}"><div class="cell_input"><pre>{}</pre></div>{}</div>'
    body = [
        cell.format(
            " ".join(f"tag_{tag}" for tag in one.metadata.get("tags", [])), escape(one.source),
            '<div class="cell_output"></div>',
        )
        for one in lessons.notebook(path).cells
        if one.cell_type == "code"
    ]  # fmt: skip
    head = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">'
    return "".join([head, *body, '<script type="module" src="lab/lesson.js"></script>'])


@pytest.mark.thorough
@pytest.mark.parametrize("path", lessons.lessons(), ids=lambda path: path.stem)
def test_a_lesson_draws_the_guess_and_each_exercise_is_right_in_its_page(
    browser: Browser, cells_alone: Path, path: Path
) -> None:
    """The first one is wrong before; ``test_lessons.py`` runs the start of each other one."""
    (cells_alone / f"{path.stem}.html").write_text(page_of(path), encoding="utf-8")
    with served(cells_alone) as address, watch(browser, (address, *OWN)) as page:
        page.goto(f"{address}{path.stem}.html")
        page.locator(".guess input").fill("2")
        page.get_by_role("button", name="Keep").click()
        said = page.locator(".guess .said")
        lacks_mlx = "mlx" in lessons.about(path)["extras"]
        end = "No module named 'mlx'" if lacks_mlx else "Kept, and drawn into the run"
        expect(said).to_contain_text(end, timeout=SLOW)
        drawn = page.evaluate(f"localStorage['minisched {path.stem} guess']")
        words = "your guess" if "<table" in drawn else "your guess: 2"
        pictures = [b64decode(data).decode() for data in re.findall(r"base64,([\w+/=]+)", drawn)]
        assert lacks_mlx or words in "".join([drawn, *pictures])
        page.reload()
        expect(page.locator(".guess input")).to_have_value("2")
        for at, name in enumerate(names := lessons.exercises_of(path)):
            cell = page.locator(".tag_exercise").nth(at)
            for lines, verdict in (("", "Not yet"), (solved(name), "Right")):
                if at and not lines:
                    continue
                if lines:
                    cell.get_by_role("textbox").fill(lines)
                cell.get_by_role("button", name="Run").click()
                expect(cell.get_by_role("status")).to_contain_text(verdict, timeout=SLOW)
                expect(cell.get_by_role("button", name="Run")).to_be_visible()
        kept = page.evaluate("localStorage['minisched mine.py']")
        assert all(f"# == {name}, lesson" in kept for name in names)


def test_lines_that_catch_everything_and_spin_are_stopped_by_the_page(
    browser: Browser, cells_alone: Path
) -> None:
    """Its clock is put forward, as two minutes would be long; Python's is not."""
    spin = "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    with served(cells_alone) as address, watch(browser, (address, *OWN)) as page:
        page.clock.install()
        page.goto(f"{address}alone.html")
        cell = page.locator(".tag_exercise").first
        said = cell.get_by_role("status")
        cell.get_by_role("textbox").fill("6 * 7")
        cell.get_by_role("button", name="Run").click()
        expect(said).to_have_text("42")
        cell.get_by_role("textbox").fill(spin)
        cell.get_by_role("button", name="Run").click()
        expect(said).to_have_text("Running …")
        while said.inner_text() == "Running …":  # until the call has begun, no clock of it runs
            page.clock.fast_forward(10_000)
        expect(said).to_contain_text("not done after 120 s")
        cell.get_by_role("textbox").fill("6 * 7")
        cell.get_by_role("button", name="Run").click()
        expect(said).to_have_text("42")


def test_lines_that_never_come_back_are_stopped_by_a_button(browser: Browser, site: Path) -> None:
    with served(site) as address, watch(browser, (address, *OWN)) as page:
        page.goto(f"{address}lessons/04_long_prompt.html")
        cell = page.locator(".tag_exercise").first
        cell.get_by_role("textbox").fill("while True: pass")
        cell.get_by_role("button", name="Run").click()
        expect(cell.get_by_role("status")).to_have_text("Running …")
        cell.get_by_role("button", name="Stop").click()
        expect(cell.get_by_role("status")).to_have_text("Stopped.")
        cell.get_by_role("textbox").fill("6 * 7")
        cell.get_by_role("button", name="Run").click()
        expect(cell.get_by_role("status")).to_have_text("42")


@pytest.mark.parametrize("javascript", [True, False])
def test_without_python_a_lesson_reads_well(browser: Browser, site: Path, javascript: bool) -> None:
    with served(site) as address:
        context = browser.new_context(java_script_enabled=javascript)
        page = context.new_page()
        page.route("**/pyodide/**", lambda route: route.abort())
        page.goto(f"{address}lessons/04_long_prompt.html")
        cell = page.locator(".tag_exercise").first
        assert "Not yet" not in page.inner_text("article")
        expect(cell.locator("summary")).to_contain_text("Your turn")
        if javascript:
            cell.get_by_role("button", name="Run").click()
            expect(cell.get_by_role("status")).to_contain_text("could not be loaded")
        else:
            expect(cell.locator("pre").first).to_contain_text("def cut")
        context.close()


def test_every_lesson_is_there_as_a_notebook_and_colab_opens_it(site: Path) -> None:
    for path in lessons.lessons():
        name = f"lessons/{path.stem}.ipynb"
        book = json.loads((site / name).read_text(encoding="utf-8"))
        first, *sources = ["".join(cell["source"]) for cell in book["cells"]]
        assert sources == [cell.source for cell in lessons.notebook(path).cells]
        (install,) = installs(first, is_there=False)
        wanted = Requirement(install.removeprefix("install -q ").strip("'"))
        assert (wanted.name, wanted.url) == ("minisched", f"git+https://github.com/{FORK}")
        assert wanted.extras == {*lessons.about(path)["extras"]} - {"lessons"}
        assert installs(first, is_there=True) == []
        colab = f"https://colab.research.google.com/github/{FORK}/blob/gh-pages/{name}"
        assert colab in read(site / name.replace(".ipynb", ".html")).leads


def installs(cell: str, is_there: bool) -> list[str]:
    """What a notebook's cell asks of ``%pip``, as IPython runs it, if minisched is there or not."""
    asked = list[str]()
    shell = SimpleNamespace(run_line_magic=lambda magic, line: asked.append(line))
    code = TransformerManager().transform_cell(cell)
    with mock.patch("importlib.util.find_spec", lambda name: is_there or None):
        exec(code, {"get_ipython": lambda: shell})
    return asked


def test_the_repository_s_address_stands_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    path = lessons.lessons()[0]
    monkeypatch.delenv("MINISCHED_GITHUB", raising=False)
    for name in ("some-body/else-where", ""):
        address = f"https://github.com/{name}" if name else ""
        text = f'[tool.minisched]\nrepository = "{address}"\n'
        monkeypatch.setattr("pages.repository.text", lambda path, text=text: text)
        assert repository.github() == name
        line = lessons.line_of(path)
        assert (f"/github/{name}/blob/" in line) == bool(name) == ("Colab" in line)


def test_the_leaderboard_has_the_files_of_its_entries() -> None:
    page = lessons.pages()["lessons/leaderboard.md"]
    files = [path.name for path in ROOT.glob("lessons/leaderboard/*.py")]
    assert len(files) >= 2 and "](leaderboard/" not in page
    assert all(f"<summary>{name}</summary>" in page and f"| `{name}` |" in page for name in files)
