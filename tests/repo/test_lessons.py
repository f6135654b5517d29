"""The lessons: executed from top to bottom in a fresh kernel with only the extras they name.

Every installed package that is outside of those is blocked there, so a lesson cannot come to lean
on what this machine happens to have.
"""

from __future__ import annotations

import ast
import base64
import re
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jupytext
import nbclient
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from minisched.topics import TOPICS

ROOT = Path(__file__).resolve().parents[1]
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

BLOCK = """
import sys
from importlib.abc import MetaPathFinder

class NotNamed(MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{fullname} is in no extra that the lesson names")

sys.meta_path.insert(0, NotNamed())
"""
PROBE = """
for name in ("torch", "hypothesis", "mlx.core", "typer"):
    try:
        __import__(name)
        print(name, "is there")
    except ModuleNotFoundError as error:
        print(error)
"""


# -- what a lesson may import ----------------------------------------------------------------------


def closure(extras: list[str]) -> set[str]:
    """The distributions that installing minisched with these extras brings, as far as they are."""
    wanted = [*PROJECT["dependencies"]]
    for extra in extras:
        wanted += PROJECT["optional-dependencies"][extra]
    found: set[tuple[str, str]] = set()
    todo = [(Requirement(text), "") for text in wanted]
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        for one in ["", *requirement.extras]:
            name = canonicalize_name(requirement.name)
            if (name, one) not in found:
                found.add((name, one))
                todo += [(Requirement(text), one) for text in needs(name)]
    return {name for name, _ in found}


def needs(name: str) -> list[str]:
    """What a distribution says it requires; nothing if it is not installed."""
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []


def blocked(extras: list[str]) -> list[str]:
    """Modules of installed packages that none of the extras brings."""
    allowed = closure(extras) | {"minisched"}
    return sorted(
        module
        for module, owners in packages_distributions().items()
        if not allowed & {canonicalize_name(owner) for owner in owners}
    )


# -- reading and executing -------------------------------------------------------------------------


@cache
def executed(path: Path) -> Any:
    """The notebook after its run, and what the probe at its end said."""
    notebook = jupytext.read(path)
    modules = blocked(notebook.metadata["minisched"]["extras"])
    before = notebook.cells[0].copy()
    before.update(cell_type="code", source=f"BLOCKED = {modules!r}\n{BLOCK}", outputs=[],
                  execution_count=None)  # fmt: skip
    after = before.copy()
    after["source"] = PROBE
    notebook.cells = [before, *notebook.cells, after]
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute(cwd=str(ROOT))
    notebook.cells = notebook.cells[1:]
    return notebook


def code(notebook: Any) -> list[Any]:
    """Its code cells, without the probe."""
    return [cell for cell in notebook.cells[:-1] if cell.cell_type == "code"]


def exercises(notebook: Any) -> list[Any]:
    """The cells in which the learner writes."""
    return [cell for cell in code(notebook) if "exercise" in cell.metadata.get("tags", [])]


def prose(notebook: Any) -> str:
    """All markdown."""
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def html_of(cell: Any) -> str:
    """What a cell shows."""
    return "".join(output.get("data", {}).get("text/html", "") for output in cell.outputs)


def pictures(cell: Any) -> list[str]:
    """The SVGs in what a cell shows."""
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html_of(cell))
    return [base64.b64decode(data).decode() for data in found]


lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


# -- the run ---------------------------------------------------------------------------------------


@lesson
def test_it_runs_with_the_extras_that_it_names_and_no_others(path: Path) -> None:
    notebook = executed(path)  # raises where a cell does
    said = "".join(output["text"] for output in notebook.cells[-1].outputs)
    has_mlx = "mlx" in notebook.metadata["minisched"]["extras"]
    for module in ("torch", "hypothesis"):
        assert f"{module} is in no extra that the lesson names" in said
    assert ("mlx.core is there" in said) == has_mlx and "typer is there" in said


@lesson
def test_it_shows_pictures_and_every_one_is_an_svg(path: Path) -> None:
    shown = [svg for cell in code(executed(path)) for svg in pictures(cell)]
    assert len(shown) >= 4
    for svg in shown:
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert "prefers-color-scheme: dark" in svg


@lesson
def test_every_exercise_starts_wrong_and_is_drawn(path: Path) -> None:
    found = exercises(executed(path))
    assert 2 <= len(found) <= 3
    for cell in found:
        assert "✗ Not yet" in html_of(cell), cell.source
        assert pictures(cell), cell.source


def test_the_first_one_has_a_stepper_and_sliders_that_need_no_kernel() -> None:
    shown = "".join(map(html_of, code(executed(LESSONS[0]))))
    assert shown.count("<iframe") == 2
    assert "id=&quot;host&quot;" in shown and "id=&quot;device&quot;" in shown


# -- the text --------------------------------------------------------------------------------------


@lesson
def test_its_header_names_topics_and_extras_that_there_are(path: Path) -> None:
    about = jupytext.read(path).metadata["minisched"]
    assert set(about) == {"title", "topics", "extras", "minutes"}
    assert about["topics"][0] == path.stem[3:] and set(about["topics"]) <= set(TOPICS)
    assert set(about["extras"]) <= set(PROJECT["optional-dependencies"])
    index = (ROOT / "lessons" / "README.md").read_text(encoding="utf-8")
    row = next(row for row in index.splitlines() if f"({path.name})" in row)
    assert about["title"].lower() in row and f"{about['minutes']} minutes" in row
    assert re.findall(r"`(\w+)`(?=[,| ])", row.split("|")[3]) == about["extras"]


@lesson
def test_it_has_all_its_parts(path: Path) -> None:
    notebook = executed(path)
    heads = re.findall(r"^##? (.*)$", prose(notebook), re.M)
    assert heads[0] == notebook.metadata["minisched"]["title"]
    assert "**The question.**" in prose(notebook) and "A run" in heads
    assert any(head.startswith("A picture") for head in heads)
    assert "What the real systems do" in heads
    assert sum(head.startswith("Exercise") for head in heads) == len(exercises(notebook))
    assert any("minisched-source" in html_of(cell) for cell in code(notebook))


@lesson
def test_half_an_hour_is_enough_to_read_it_twice(path: Path) -> None:
    """Words and lines stay few: at 200 words a minute, reading takes less than a third of it."""
    notebook = jupytext.read(path)
    words = len(re.sub(r"\]\([^)]*\)", "]", prose(notebook)).split())
    lines = sum(bool(line.strip()) for cell in code_of(notebook) for line in cell.splitlines())
    assert words <= 1100 and lines <= 90, (words, lines)
    for cell in exercises_of(notebook):
        assert len(cell.splitlines()) <= 16, "a start that is read in a minute"


def code_of(notebook: Any) -> list[str]:
    """The sources of code cells of a notebook that has not run."""
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def exercises_of(notebook: Any) -> list[str]:
    """Those that are exercises."""
    return [
        cell.source for cell in notebook.cells if "exercise" in cell.metadata.get("tags", [])
    ]  # fmt: skip


@cache
def package_lines() -> set[tuple[str, ...]]:
    """Every three lines that follow one another in the package, without what is empty."""
    found: set[tuple[str, ...]] = set()
    for path in (ROOT / "minisched").rglob("*.py"):
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        lines = [line for line in lines if line]
        found.update(zip(lines, lines[1:], lines[2:], strict=False))
    return found


@lesson
def test_source_is_shown_and_never_pasted(path: Path) -> None:
    notebook = jupytext.read(path)
    pasted = set(exercises_of(notebook))
    for source in (source for source in code_of(notebook) if source not in pasted):
        ast.parse(source)
        lines = [line.strip() for line in source.splitlines() if line.strip()]
        for three in zip(lines, lines[1:], lines[2:], strict=False):
            assert three not in package_lines(), three


LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
GITHUB = r"https://github\.com/[\w.-]+/[\w.-]+"


@lesson
def test_references_are_links_that_say_where_they_lead(path: Path) -> None:
    text = prose(jupytext.read(path))
    links = LINK.findall(text)
    assert len(links) >= 3
    for words, address in links:
        assert re.fullmatch(rf"{GITHUB}(/(issues|pull)/\d+|/blob/main/[\w./-]+)?", address), address
        if number := re.search(r"#(\d+)", words):
            assert address.endswith(f"/{number[1]}"), (words, address)
        elif "/blob/" in address and "/" in words:
            assert address.endswith(words.strip("`")), (words, address)
    bare = re.findall(r"(?<!before )#\d{2,}", LINK.sub("", text))
    assert not bare, f"{bare} are no links"


@lesson
def test_names_in_the_text_are_names_that_there_are(path: Path) -> None:
    """A file of the lessons, or a command, that the text names exists."""
    text = prose(jupytext.read(path))
    for name in re.findall(r"`(\d\d_\w+\.py)`", text):
        assert (ROOT / "lessons" / name).exists(), name
    assert "minisched compare" in text or path.stem != "01_serial"
