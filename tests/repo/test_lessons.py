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
from textwrap import dedent
from typing import Any
from xml.etree import ElementTree

import jupytext
import nbclient
import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from minisched.learn.exercise import exercises
from minisched.topics import TOPICS
from tests.support import made_once, numbers, prose, with_units

ROOT = Path(__file__).resolve().parents[2]
ALONE = ("09_placeholders", "13_capstone")  # lessons with one exercise
SHORT = 6  # the most lines in the body of a solution that is marked "3 lines"
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)

# -- the run ---------------------------------------------------------------------------------------

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


def closure(extras: list[str]) -> set[str]:
    """The distributions that installing minisched with these extras brings, as far as they are."""
    wanted = PROJECT["dependencies"] + [
        text for extra in extras for text in PROJECT["optional-dependencies"][extra]
    ]
    found: set[tuple[str, str]] = set()
    todo = [(Requirement(text), "") for text in wanted]
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for one in {"", *requirement.extras} - {one for at, one in found if at == name}:
            found.add((name, one))
            try:
                todo += [(Requirement(text), one) for text in requires(name) or []]
            except PackageNotFoundError:
                continue
    return {name for name, _ in found}


def executed(path: Path) -> Any:
    """The notebook after its run, and what the probe at its end said."""
    notebook = jupytext.read(path)
    allowed = closure(notebook.metadata["minisched"]["extras"]) | {"minisched"}
    blocked = sorted(
        module
        for module, owners in packages_distributions().items()
        if not allowed & {canonicalize_name(owner) for owner in owners}
    )
    before, after = (
        {**notebook.cells[0], "cell_type": "code", "source": source, "outputs": [],
         "execution_count": None}
        for source in (f"BLOCKED = {blocked!r}\n{BLOCK}", PROBE)
    )  # fmt: skip
    notebook.cells = [type(notebook.cells[0])(before), *notebook.cells,
                      type(notebook.cells[0])(after)]  # fmt: skip
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute(cwd=str(ROOT))
    notebook.cells = notebook.cells[1:]
    return notebook


def executed_once(path: Path, factory: pytest.TempPathFactory) -> Path:
    """Return the file of a lesson that has run, in a folder with all of them.

    Its metadata has the words of the probe.
    """

    def execute(folder: Path) -> None:
        notebook = executed(path)
        *notebook.cells, probe = notebook.cells
        notebook.metadata["probe"] = "".join(output["text"] for output in probe.outputs)
        nbformat.write(notebook, folder / f"{path.stem}.ipynb")

    return made_once(factory, "executed", execute, path.stem) / f"{path.stem}.ipynb"


def html_of(cell: Any) -> str:
    return "".join(output.get("data", {}).get("text/html", "") for output in cell.outputs)


def pictures(cell: Any) -> list[str]:
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html_of(cell))
    return [base64.b64decode(data).decode() for data in found]


NOT_SHOWN = {
    "02_future_map": {"95.5", "70"},  # of the report that the lesson links
    "14_into_an_engine": {"99"},  # test_what_lessons_say.py recomputes it
}
MARKUP = re.compile(r"<(style|script)\b.*?</\1>|<[^>]+>", re.S)


def of_the_run(cells: list[Any]) -> set[float]:
    """Every number in the code of a lesson, and in what its cells print and draw."""
    texts = [cell.source for cell in cells]
    for cell in cells:
        texts += [MARKUP.sub(" ", text) for text in (html_of(cell), *pictures(cell))]
        texts += [output.get("text", "") or output.get("data", {}).get("text/plain", "")
                  for output in cell.outputs]  # fmt: skip
    found = re.findall(r"(?<![\w.])\d[\d,_]*(?:\.\d+)?", " ".join(texts))
    return {float(re.sub("[,_]", "", number)) for number in found}


def not_of_the_run(said: set[str], values: set[float]) -> set[str]:
    """Figures that no number of the run becomes when it is rounded to as many digits."""
    digits = {figure: len(figure.partition(".")[2]) for figure in said}
    rounded = {at: {f"{value:,.{at}f}" for value in values} for at in set(digits.values())}
    return {figure for figure in said if figure not in rounded[digits[figure]]}


def test_a_figure_that_no_run_gives_is_seen() -> None:
    assert not_of_the_run({"12.3", "12", "1,000", "7", "12.4"}, {12.34, 1000.0}) == {"7", "12.4"}


@pytest.mark.thorough
@lesson
def test_it_runs_with_the_extras_that_it_names_and_every_exercise_starts_wrong(
    path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # The execution raises where a cell does.
    notebook = nbformat.read(executed_once(path, tmp_path_factory), as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    said = notebook.metadata["probe"]
    has_mlx = "mlx" in notebook.metadata["minisched"]["extras"]
    for module in ("torch", "hypothesis"):
        assert f"{module} is in no extra that the lesson names" in said
    assert ("mlx.core is there" in said) == has_mlx and "typer is there" in said
    shown = [svg for cell in cells for svg in pictures(cell)]
    assert len(shown) >= 2 and all("prefers-color-scheme: dark" in svg for svg in shown)
    assert all(ElementTree.fromstring(svg).tag.endswith("svg") for svg in shown)
    assert any("minisched-source" in html_of(cell) for cell in cells)
    exercises = [cell for cell in cells if "exercise" in cell.metadata.get("tags", [])]
    assert len(exercises) in ((1,) if path.stem in ALONE else (2, 3, 4))
    for cell in exercises:
        assert "✗ Not yet" in html_of(cell), cell.source
    words = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    left = not_of_the_run(with_units(prose(words)), of_the_run(cells))
    assert left == NOT_SHOWN.get(path.stem, set())


# -- the translations ------------------------------------------------------------------------------

CHINESE = sorted((ROOT / "lessons" / "zh").glob("*.py"))
FENCED = re.compile(r"```.*?```", re.S)


@pytest.mark.parametrize("path", CHINESE, ids=lambda path: path.stem)
def test_a_translation_has_the_same_cells_code_names_and_links(path: Path) -> None:
    english = jupytext.read(ROOT / "lessons" / path.name)
    chinese = jupytext.read(path)
    assert len(english.cells) == len(chinese.cells)
    for ours, theirs in zip(english.cells, chinese.cells, strict=True):
        assert (ours.cell_type, ours.metadata) == (theirs.cell_type, theirs.metadata)
        if ours.cell_type == "code":
            assert ours.source == theirs.source
            continue
        assert re.search("[\u4e00-\u9fff]", theirs.source), theirs.source
        assert with_units(prose(theirs.source)) <= numbers(prose(ours.source)), theirs.source
        for pattern in (r"`([^`]+)`", r"\]\(([^)]+)\)", r"^#+ ", r"^\d+\. |^- "):
            same = (
                sorted(" ".join(it.split()) for it in re.findall(pattern, text, re.M))
                for text in (FENCED.sub("", ours.source), FENCED.sub("", theirs.source))
            )
            assert len({*map(tuple, same)}) == 1, (pattern, theirs.source)
    ours, theirs = ({**it.metadata["minisched"], "title": ""} for it in (english, chinese))
    assert ours == theirs and chinese.metadata["minisched"]["title"] in chinese.cells[0].source


def test_lessons_0_to_3_are_translated() -> None:
    assert [path.name for path in CHINESE] == [path.name for path in LESSONS[:4]]


# -- the text --------------------------------------------------------------------------------------


@cache
def read(path: Path) -> tuple[dict[str, Any], str, list[str], list[str]]:
    """A lesson that has not run: its header, its prose, its code, and of that the exercises."""
    notebook = jupytext.read(path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    exercises = [cell.source for cell in code if "exercise" in cell.metadata.get("tags", [])]
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    about = notebook.metadata["minisched"]
    return about, "\n\n".join(prose), [cell.source for cell in code], exercises


@lesson
def test_it_has_its_parts_and_its_header_names_topics_and_extras_that_there_are(path: Path) -> None:
    about, prose, _, cells = read(path)
    assert set(about) == {"title", "topics", "extras", "minutes"}
    assert set(about["topics"]) <= set(TOPICS)
    assert set(about["extras"]) <= set(PROJECT["optional-dependencies"])
    heads = re.findall(r"^##? (.*)$", prose, re.M)
    assert heads[0] == about["title"]
    assert {"A run", "In the real systems", "Solutions, and other ways"} < set(heads)
    assert sum(head.startswith("Exercise") for head in heads) == len(cells)
    index = (ROOT / "lessons" / "README.md").read_text(encoding="utf-8")
    row = next(row for row in index.splitlines() if f"({path.name})" in row)
    assert f"[{int(path.stem[:2])}. {about['title']}]" in row
    assert f"{about['minutes']} minutes" in row
    needed = ", ".join(about["extras"])
    assert needed == "lessons" or f"Lesson {int(path.stem[:2])} needs MLX as well" in index


@lesson
def test_a_guess_is_a_cell_of_its_own_and_a_later_cell_draws_it(path: Path) -> None:
    cells = [cell for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    (asked,) = (at for at, cell in enumerate(cells) if cell.metadata.get("tags") == ["guess"])
    assert re.fullmatch(r"guess = None  # [^#\n]+", cells[asked].source)
    (drawn,) = (cell.source for cell in cells[asked + 1 :] if re.search(r"\bguess\b", cell.source))
    assert re.search(r"\b(guess|guess_ms|row)=guess\b|\", guess, \"", drawn)


def test_the_list_of_lessons_names_each_of_them_in_their_order() -> None:
    index = (ROOT / "lessons" / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[\d+\. .*?\]\((\w+\.py)\)", index, re.M) == [
        path.name for path in LESSONS
    ]


@lesson
def test_each_exercise_of_a_lesson_is_in_its_table(path: Path) -> None:
    _, _, _, cells = read(path)
    ours = [one for one in exercises().values() if one.lesson == path.stem]
    assert len(ours) == len(cells)
    for one, cell in zip(ours, cells, strict=True):
        assert ast.unparse(ast.parse(cell).body[-1]) == f"learn.check('{one.name}', {one.name})"


@lesson
def test_each_exercise_is_marked_by_its_size(path: Path) -> None:
    _, prose, _, _ = read(path)
    heads = re.findall(r"^## Exercise(.*)$", prose, re.M)
    ours = [one for one in exercises().values() if one.lesson == path.stem]
    for one, head in zip(ours, heads, strict=True):
        body = dedent(one.solution).strip().splitlines()[1:]
        mark = head.rpartition(" · ")[2]
        assert mark == "hard" or (mark == "3 lines" and len(body) <= SHORT), (one.name, head)


@lesson
def test_half_an_hour_is_enough_and_references_are_links(path: Path) -> None:
    _, prose, code, exercises = read(path)
    lines = [source.split("\n") for source in code]
    assert len(re.sub(r"\]\([^)]*\)", "]", prose).split()) <= 1700
    assert sum(bool(line.strip()) for source in lines for line in source) <= 110
    assert all(source.count("\n") < 30 for source in exercises)
    links = re.findall(r"\[([^\]]+)\]\(([^)\s]+)\)", prose)
    assert len(links) >= 3
    for words, address in links:
        assert address.startswith("https://") or (path.parent / address).is_file(), address
        assert all(address.endswith(f"/{number}") for number in re.findall(r"#(\d+)", words))
    assert not re.findall(r"(?<!before )#\d{2,}", re.sub(r"\[[^\]]+\]\([^)\s]+\)", "", prose))
