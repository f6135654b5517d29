"""The site: one build without a warning, and then nothing in it leads nowhere or outside."""

from __future__ import annotations

import ast
import fcntl
import os
import re
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from time import monotonic
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from minisched.museum import exhibits
from minisched.topics import TOPICS
from tests.support import FAR, browser, served, watch

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "lessons" / "site"
sys.path.insert(0, str(SITE))

from pages import gallery, lab, lessons, museum, reference, sources, steppers  # noqa: E402

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


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, pyodide: Path) -> Path:
    """The built site; built once, whichever of pytest's workers asks for it first."""
    assert lab.has_python(pyodide)
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    out, done = base / "site", base / "site.built"
    with (base / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            build(out)
            done.touch()
    return out


def build(out: Path) -> None:
    """The README's command, where a warning is an error."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", SITE, out]
    built = subprocess.run(command, capture_output=True, text=True)
    said = [line for line in built.stderr.splitlines() if "IPKernelApp" not in line]
    assert built.returncode == 0, "\n".join(said[-30:])


# -- what Sphinx was given -------------------------------------------------------------------------


def test_every_topic_and_every_diagram_is_in_the_gallery() -> None:
    pages = gallery.pages()
    for topic in TOPICS:
        assert f"(../traces/{topic}.svg)" in pages[f"gallery/{topic}.md"]
        assert f"](../traces/{topic}.svg)" in pages["gallery/index.md"]
        assert f"]({topic}.md)" in pages["gallery/index.md"]
    shown = Counter(
        name
        for path, text in pages.items()
        if path != "gallery/index.md"
        for name in re.findall(r"!\[[^]]*\]\(\.\./diagrams/(\w+)\.svg\)", text)
    )
    assert shown == Counter(path.stem for path in ROOT.glob("diagrams/*.puml"))


def test_the_reference_has_every_folder_in_an_order_that_layers_allow() -> None:
    folders = {path.parent.name for path in (ROOT / "minisched").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "minisched").glob("[a-z]*.py")}
    assert set(reference.LAYERS) == folders | modules | {"minisched"}  # what a notebook imports
    first = ["core", "trace", "memory", "policy", "scheduler"]
    assert list(reference.LAYERS[:5]) == first and reference.LAYERS[-3:] == (
        "cli",
        "checking",
        "minisched",
    )


def test_every_bug_of_the_museum_has_its_page_with_its_picture() -> None:
    pages = museum.pages()
    for exhibit in exhibits():
        page = pages[f"museum/{exhibit.name}.md"]
        assert f"](../traces/museum/{exhibit.name}.svg)" in page and "```diff" in page
        assert f"](museum/{exhibit.name}.md)" in pages["museum.md"]
        assert all(reference in page for reference in exhibit.references)


def test_every_made_page_comes_from_the_repository_alone() -> None:
    """No path of this machine, and no address that a reader's browser would load."""
    for name, source in sources().items():
        if isinstance(source, str):
            assert str(ROOT) not in source, name
            assert not re.search(r"!\[[^]]*\]\(https?:", source), name


def test_a_lesson_whose_library_is_missing_is_shown_without_its_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert lessons.cannot_run() == []
    monkeypatch.setattr(lessons, "NEEDS", {"mlx": "a_library_that_is_not_there"})
    assert lessons.cannot_run() == ["lessons/03_mlx_async.py"]


# -- what was built --------------------------------------------------------------------------------


ADDRESSES = ("src", "href", "data", "poster")


class Links(HTMLParser):
    """What a page loads, where it leads, and where it can be entered."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Every address of an element."""
        values = {name: value for name, value in attrs if value is not None}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag in ("a", "area"):
            self.leads += [values["href"]] if "href" in values else []
            return
        if not (tag == "link" and values.get("rel") in ("index", "search", "next", "prev")):
            self.loads += [values[name] for name in ADDRESSES if name in values]


@cache
def read(path: Path) -> Links:
    """A page of the site."""
    links = Links()
    links.feed(path.read_text(encoding="utf-8"))
    return links


def html_pages(site: Path) -> list[Path]:
    """All pages but those that the npm package brings along."""
    return [path for path in site.rglob("*.html") if "pyodide" not in path.parts]


def test_every_page_is_there(site: Path) -> None:
    assert [name for name in PAGES if not (site / name).is_file()] == []
    assert {path.relative_to(site).as_posix() for path in html_pages(site)} >= set(PAGES)


def test_every_link_and_every_picture_leads_somewhere(site: Path) -> None:
    broken, count = [], 0
    for page in html_pages(site):
        for address in [*read(page).loads, *read(page).leads]:
            parts = urlsplit(address)
            if parts.scheme or address in ("", "#"):
                continue
            count += 1
            target = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
            if not target.is_file() or lacks(target, unquote(parts.fragment)):
                broken.append(f"{page.relative_to(site)}: {address}")
    assert broken == [] and count > 5000


def lacks(target: Path, fragment: str) -> bool:
    """Whether a page has no such place; pages of their own read their settings from there."""
    own = target.suffix != ".html" or target.parent.name in ("lab", "steppers")
    return bool(fragment) and not own and fragment not in read(target).ids


def test_nothing_is_loaded_from_outside(site: Path) -> None:
    """Other sites may be linked to; scripts, styles, fonts and pictures come along."""
    for page in html_pages(site):
        outside = [it for it in read(page).loads if urlsplit(it).scheme not in ("", "data")]
        assert outside == [], page
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import", text), sheet


def test_every_documented_function_is_in_the_reference(site: Path) -> None:
    """Public functions and classes of each module, counted in the sources."""
    for layer in reference.LAYERS:
        ids = read(site / "reference" / f"{layer}.html").ids
        for path in reference.sources(layer):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            name = reference.module_name(path)
            for node in tree.body if ast.get_docstring(tree) else []:
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
                    assert node.name.startswith("_") or f"{name}.{node.name}" in ids


def test_the_names_in_a_diagram_lead_to_the_reference(site: Path) -> None:
    """What a diagram's text links to in the code, its page links to in the reference."""
    for source in ROOT.glob("diagrams/*.puml"):
        symbols = re.findall(r"\[\[\S*?(minisched/[\w/]+)\.py#([\w.]+)", source.read_text("utf-8"))
        page = site / gallery.page_of(source.stem).partition("#")[0].replace(".md", ".html")
        for module, name in symbols:
            dotted = f"{module.replace('/', '.')}.{name}"
            assert any(link.endswith(f"#{dotted}") for link in read(page).leads), dotted


# -- in a browser ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served."""
    with served(site) as address:
        yield address


@pytest.mark.parametrize("width", [1400, 420])
def test_pages_open_without_errors_and_load_nothing_from_elsewhere(
    browser: Browser, address: str, width: int
) -> None:
    """A page of each kind; and none is wider than the window."""
    kinds = {name.split("/")[0]: name for name in PAGES if not name.startswith("lab/")}
    size = {"width": width, "height": 900}
    with watch(browser, allowed=(address, "data:", "blob:", "about:"), viewport=size) as watched:
        for name in kinds.values():
            watched.page.goto(address + name)  # until everything in it is loaded
            wide = watched.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, name
            broken = "[...document.images].filter((it) => it.complete && !it.naturalWidth).length"
            assert watched.page.evaluate(broken) == 0, name


def test_search_works_offline(browser: Browser, address: str) -> None:
    with watch(browser, allowed=(address, "data:")) as watched:
        watched.page.goto(f"{address}search.html?q=retraction")
        expect(watched.page.locator("#search-results .search-summary")).to_contain_text("finished")
        found = watched.page.locator("#search-results li a").all_inner_texts()
        assert "retraction" in found


def test_pictures_follow_the_switch_of_the_theme(browser: Browser, address: str) -> None:
    """A picture that knows light and dark is as the page is, whatever the system says."""
    with watch(browser, allowed=(address, "data:"), color_scheme="light") as watched:
        page = watched.page
        page.goto(f"{address}gallery/decode.html")
        for theme, is_so in SHADES.items():
            page.evaluate("theme => { document.body.dataset.theme = theme }", theme)
            papers: list[int] = []
            ends = monotonic() + FAR / 1000
            while not (papers and all(map(is_so, papers))):  # drawn anew in some frame to come
                assert monotonic() < ends, (theme, papers)
                papers = [paper(page, at) for at in (0, 1)]


SHADES: dict[str, Callable[[int], bool]] = {
    "light": lambda bright: bright > 240,
    "dark": lambda bright: bright < 40,
}


def paper(page: Page, picture: int) -> int:
    """How bright a picture's paper is, 0 to 255: one pixel near its left edge."""
    image = page.locator("article img").nth(picture)
    image.scroll_into_view_if_needed()
    box = image.bounding_box()
    assert box
    x, y = box["x"] + 4, max(box["y"] + 12, 80)
    png = page.screenshot(clip={"x": x, "y": y, "width": 1, "height": 1})
    chunks = [png[at + 4 : at + 4 + int.from_bytes(png[at - 4 : at], "big")] for at in starts(png)]
    return max(zlib.decompress(b"".join(chunks))[1:4])


def starts(png: bytes) -> list[int]:
    """Where the image data of a PNG file begins, chunk by chunk."""
    return [found.start() for found in re.finditer(b"IDAT", png)]
