"""The lessons: py:percent notebooks, executed while the site is built, with live exercises.

A cell with the tag ``exercise`` becomes an editor in the browser (``lab/lesson.js``). Where that
cannot be, the page has the cell as text, with its verdict folded below.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from docutils import nodes
from nbformat.v4 import new_code_cell

from .questions import CARDS
from .repository import ROOT, folded, github, text

NEEDS = {"mlx": "mlx", "torch": "torch"}  # extra -> a library of it; the others a build has anyway


def lessons() -> list[Path]:
    """Return the lessons in their order."""
    return sorted(ROOT.glob("lessons/[0-9][0-9]_*.py"))


def in_chinese() -> list[Path]:
    """Return the lessons that are translated, in their order."""
    return sorted(ROOT.glob("lessons/zh/[0-9][0-9]_*.py"))


def place(path: Path) -> str:
    """Return the path of a lesson in the repository, which is its path on the site."""
    return path.relative_to(ROOT).as_posix()


def pages() -> dict[str, str]:
    """Return the lessons' README with the list of pages and a line of progress, and the board."""
    zh = [f"{numbered_title(path)} <zh/{path.stem}>" for path in in_chinese()]
    numbered = [f"{numbered_title(path)} <{path.stem}>" for path in lessons()]
    names = "\n".join([*numbered, "leaderboard", "teaching", *zh])
    toctree = f"\n:::{{toctree}}\n:hidden:\n\n{names}\n:::\n"
    exercises = json.dumps({path.stem: exercises_of(path) for path in lessons()})
    progress = f"<p id='progress' data-lessons='{exercises}'></p>\n{script('progress')}"
    head, table, rest = text("lessons/README.md").partition("\n| lesson |")
    return {
        "lessons/README.md": f"{head}\n{progress}\n{table}{rest}{toctree}",
        "lessons/leaderboard.md": leaderboard(),
        "lessons/teaching.md": text("lessons/teaching.md"),
    }


def leaderboard() -> str:
    """Return the leaderboard; its files are folded below it instead of linked."""
    page = re.sub(r"\[(`\w+\.py`)\]\(leaderboard/\w+\.py\)", r"\1", text("lessons/leaderboard.md"))
    files = [
        folded(path.name, path.read_text(encoding="utf-8"), "python")
        for path in sorted(ROOT.glob("lessons/leaderboard/*.py"))
    ]
    return "\n\n".join([page, "## The files", *files])


def files() -> dict[str, Path]:
    """Return the notebooks by path."""
    return {place(path): path for path in [*lessons(), *in_chinese()]}


def cannot_run() -> list[str]:
    """Return the lessons with a missing library: the site has them without output."""
    missing = {extra for extra, library in NEEDS.items() if find_spec(library) is None}
    return [name for name, path in files().items() if missing & {*about(path)["extras"]}]


def lesson_of(topic: str, to_root: str) -> str:
    """Return links to the lessons of a topic; empty if there are none."""
    found = [path for path in lessons() if topic in about(path)["topics"]]
    links = [f"[{about(path)['title']}]({to_root}lessons/{path.name})" for path in found]
    return f"The lesson: {', '.join(links)}." if links else ""


@cache
def notebook(path: Path) -> Any:
    """Return a lesson as a notebook that has not run."""
    return jupytext.read(path)


def read(source: str) -> Any:
    """Return a page of Python as the notebook that the build executes.

    A folder ``MINISCHED_EXECUTED`` has lessons that were executed before (``STEM.ipynb``). A lesson
    takes its outputs from there, and so does its translation, which has the same code.
    """
    found = jupytext.reads(source, fmt="py:percent")
    folder = os.environ.get("MINISCHED_EXECUTED")
    stems = [path.stem for path in files().values() if path.read_text(encoding="utf-8") == source]
    if folder and stems:
        executed = nbformat.read(Path(folder, f"{stems[0]}.ipynb"), as_version=4)
        for cell, done in zip(found.cells, executed.cells, strict=True):
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = done.outputs, done.execution_count
        found.metadata["language_info"] = executed.metadata["language_info"]
        found.metadata["mystnb"] = {"execution_mode": "off"}
    return found


def about(path: Path) -> dict[str, Any]:
    """Return a lesson's header: title, topics, extras, minutes."""
    return notebook(path).metadata["minisched"]  # type: ignore[no-any-return]


def numbered_title(path: Path) -> str:
    """Return a lesson's title after its number."""
    return f"{int(path.stem[:2])}. {about(path)['title']}"


def exercises_of(path: Path) -> list[str]:
    """Return the names of a lesson's exercises."""
    cells = [it.source for it in notebook(path).cells if "exercise" in it.metadata.get("tags", [])]
    return re.findall(r'learn\.check\("(\w+)"', "\n".join(cells))


# -- Additions of a page to the notebook -----------------------------------------------------------


def dress(docname: str, page: nodes.document) -> None:
    """Add a number to the title and a line below it, and fold the verdicts on unsolved lines."""
    path = ROOT / f"{docname}.py"
    if path not in files().values():
        return
    title = next(iter(page.findall(nodes.title)))
    title.insert(0, nodes.Text(f"{int(path.stem[:2])}. "))
    title.parent.insert(1, nodes.raw("", line_of(path), format="html"))
    for cell in page.findall(nodes.container):
        if "tag_exercise" not in cell["classes"]:
            continue
        for output in cell.children[1:]:
            output.insert(0, nodes.raw("", FOLD, format="html"))
            output.append(nodes.raw("", "</details>", format="html"))
            for shown in output.findall(nodes.raw):
                words = shown.astext().replace("<b>✗ Not yet</b>", "<b>As it stands</b>")
                shown.children = [nodes.Text(words)]


def line_of(path: Path) -> str:
    """Return the line of a lesson: minutes, exercises, links to the notebook and the gallery."""
    name, to_root = f"{path.stem}.ipynb", "../" * place(path).count("/")
    topics = [(topic, CARDS[topic].title) for topic in about(path)["topics"]]
    pictures = ", ".join(
        f'<a href="{to_root}gallery/{topic}.html">{title}</a>' for topic, title in topics
    )
    count = len(exercises_of(path))
    exercises = "1 exercise" if count == 1 else f"{count} exercises"
    colab = ""
    if repository := github():
        book = place(path.with_suffix(".ipynb"))
        where = f"https://colab.research.google.com/github/{repository}/blob/gh-pages/{book}"
        colab = f'<a href="{where}" title="As it is here">Open in Colab</a>'
    return (
        f'<p class="lesson-line"><span>{about(path)["minutes"]} minutes</span>'
        f'<span id="progress">{exercises}</span>'
        f'<a href="{name}" download>Download for JupyterLab</a>'
        f"{colab}"
        f"<span>{'In the gallery: ' if topics else ''}{pictures}</span></p>"
        f"{FROM_DISK}{script('lesson', to_root)}"
    )


FROM_DISK = """<p class="from-disk" hidden>The exercises run in this page only if a server sends it: \
<code>python -m http.server -d out/site</code>. From a file they are text.</p><script>
document.currentScript.previousElementSibling.hidden = location.protocol !== "file:"
</script>"""


def script(name: str, to_root: str = "../") -> str:
    """Return the tag of a script in the lab's folder, which exists if Python does."""
    return f'<script type="module" src="{to_root}lab/{name}.js"></script>'


def write(out: Path) -> None:
    """Write every lesson as a notebook; its first cell installs minisched if it is missing."""
    for name, path in files().items():
        book = jupytext.read(path)
        extras = [name for name in about(path)["extras"] if name != "lessons"]  # Jupyter is there
        source = f"minisched[{','.join(extras)}]" if extras else "minisched"
        if repository := github():
            source += f" @ git+https://github.com/{repository}"
        book.cells.insert(0, new_code_cell(FIRST_CELL.format(source)))
        jupytext.write(book, (out / name).with_suffix(".ipynb"), fmt="ipynb")


FIRST_CELL = """\
# On Colab, and in every Python without minisched:
from importlib.util import find_spec

if not find_spec("minisched"):
    %pip install -q '{}'
"""

FOLD = "<details class='as-it-stands'><summary>Your turn. The verdict on these \
lines as they are</summary>"
