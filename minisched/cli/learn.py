"""``minisched learn``: the progress in the lessons, the next one opened, and a loop's score."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

import typer

from ..learn.exercise import exercises
from ..learn.keep import MINE, parts, text_of
from ..learn.report import check_again, to_page
from ..learn.score import (
    BETWEEN,
    HEADS,
    WORKLOADS,
    baseline,
    best_of,
    cells_of,
    leaderboard_cells,
    score,
)
from ..learn.slides import without_solutions, write_slides
from ..own_loops import known
from ..trace.files import write_whole
from .layout import JSON, print_json, say, say_command, say_table, work_progress
from .options import setting

FOLDER = Path("minisched-lessons")
COLAB = "https://colab.research.google.com/#create=true"  # File, Upload notebook


def learn(
    lesson: str | None = typer.Argument(
        None, help="Its number, or score; by default the first that is not done."
    ),
    file: str | None = typer.Argument(None, help="With score: FILE.py, FILE.py:NAME, or a loop."),
    folder: Path = setting(FOLDER, "Where your lessons and your mine.py are."),
    no_open: bool = setting(False, "Only show how far you are."),
    lang: str = setting("en", "The language of the lesson: en or zh, which has 0 to 3."),
    report: bool = setting(False, "Check every answer again, and write report.html."),
    slides: bool = setting(False, "Write the lesson as slides, NAME_slides.html."),
    answers: bool = setting(False, "Write the solutions of all exercises, answers.py."),
    no_answers: bool = setting(False, "Copy the lesson without its solutions."),
    template: bool = setting(
        False, "Write a repository for one person, with a workflow that grades."
    ),
    json: bool = JSON,
) -> int:
    """Show which lessons are done, and open the next one in JupyterLab.

    A lesson is copied into the folder, where you may change it. Your correct
    answers are kept next to it in mine.py. Without JupyterLab, the command
    prints how to install it.

    With "score mine.py" it runs the loop and the scheduler of that file on three
    fixed workloads, and compares it with serial, overlap and the best entry of
    lessons/leaderboard.md.
    """
    if lesson == "score":
        return print_score(file or str(folder / MINE), json)
    if lang not in ("en", "zh"):
        raise ValueError(f"--lang is {lang!r}, but it must be en or zh.")
    sources, kept = home(), parts(folder / MINE)
    every = [about(path, kept) for path in sources]
    left = [one for one in every if one["done"] < len(one["exercises"])]
    chosen = next(iter(left), every[-1])
    if lesson is not None:
        numbers = {str(int(one["name"][:2])): one for one in every}
        if lesson not in numbers:
            there = ", ".join(numbers)
            raise ValueError(f"there is no lesson {lesson}; there are {there}, and score.")
        chosen = numbers[lesson]
    if file is not None:
        raise ValueError(f"{file} needs score before it: minisched learn score {file}.")
    if json:
        print_json({"lessons": every, "next": chosen["name"]})
        return 0
    rows = [
        ("→" if one is chosen else "", one["name"], one["title"],
         f"{one['done']} of {len(one['exercises'])}")
        for one in every
    ]  # fmt: skip
    say_table(("", "lesson", "", ">exercises right"), rows)
    if not kept:
        say(f"Your answers are counted in {folder / MINE}, which does not exist yet.")
    source = in_language(sources[every.index(chosen)], lang)
    if report:
        return write_report(every, folder)
    if answers:
        every_solution = {name: dedent(one.solution).strip() for name, one in exercises().items()}
        return written(folder / "answers.py", text_of(every_solution))
    if slides:
        return written(folder / f"{source.stem}_slides.html", write_slides(source))
    if no_answers:
        lesson = without_solutions(source.read_text(encoding="utf-8"))
        return written(folder / source.name, lesson)
    if template:
        return write_template(sources, folder)
    return 0 if no_open else open_lesson(source, chosen["extras"], folder)


def write_template(sources: list[Path], folder: Path) -> int:
    """Write a repository for one person of a group: lessons without solutions, and the grader."""
    given = sources[0].parent / "template"
    texts = {source.name: without_solutions(source.read_text("utf-8")) for source in sources}
    texts["README.md"] = (given / "README.md").read_text("utf-8")
    texts[".github/workflows/grade.yml"] = (given / "grade.yml").read_text("utf-8")
    for name, text in texts.items():
        write_whole(folder / name, text, with_folders=True)
    say(f"{folder} is a repository for one person: {len(sources)} lessons, and the grader.")
    return 0


def written(path: Path, text: str) -> int:
    """Write a file, and print its name."""
    write_whole(path, text, with_folders=True)
    say(f"{path} is written.")
    return 0


def write_report(every: list[dict[str, Any]], folder: Path) -> int:
    """Write the report on the answers of a folder; 1 if a kept answer is not right now.

    Raises:
        ValueError: there are no answers.
    """
    mine = folder / MINE
    kept = parts(mine)
    if not kept:
        raise ValueError(f"{mine} has no answers; it is written by the exercises of the lessons.")
    with work_progress(len(kept)) as work:
        lines = list(check_again(mine, work.advance))
    sentence = ""
    if any(line.is_right and line.exercise.name == "capstone" for line in lines):
        with known([str(mine)]) as (name,):
            own = score(name)
        best = baseline("overlap").points
        sentence = f"The scheduler has {own.points:.1f} points; overlap has {best:.1f}."
    titles = {one["name"]: one["title"] for one in every}
    written(folder / "report.html", to_page(lines, titles, sentence))
    say(f"{sum(line.is_right for line in lines)} of {len(lines)} exercises are right. {sentence}")
    return int(any(line.is_kept and not line.is_right for line in lines))


def in_language(source: Path, lang: str) -> Path:
    """Return a lesson in a language.

    Raises:
        ValueError: it is not translated.
    """
    translated = source.parent / lang / source.name
    if lang == "en":
        return source
    if not translated.exists():
        there = ", ".join(
            str(int(path.name[:2])) for path in sorted(translated.parent.glob("*.py"))
        )
        raise ValueError(
            f"lesson {int(source.name[:2])} is not in {lang}; the lessons {there} are: "
            f"minisched learn 0 --lang {lang}."
        )
    return translated


def print_score(file: str, json: bool) -> int:
    """Print the score of a loop next to serial, overlap and the best entry; 1 if a law broke."""
    with known([file]) as (name,):
        own = score(name)
    others = {loop: baseline(loop) for loop in ("serial", "overlap") if loop != name}
    leader, cells = best_of((home()[0].parent / "leaderboard.md").read_text(encoding="utf-8"))
    if json:
        best = {"name": leader, "points": float(cells[-1])}
        print_json({**own.as_json(), "best": best, "overlap": baseline("overlap").points})
        return int(bool(own.broken))
    if own.broken:
        say(f"✗ No score. {own.broken}")
        return 1
    rows = []
    for at, workload in enumerate(WORKLOADS, 1):
        each: dict[str, tuple[str, ...]] = {
            loop: cells_of(of.figures[workload]) for loop, of in others.items()
        }
        each[f"best: {leader}"] = tuple(cells[at].split(BETWEEN))
        each[f"yours: {name}"] = cells_of(own.figures[workload])
        rows += [(loop, workload, *figures) for loop, figures in each.items()]
    say_table(HEADS, rows)
    known_points = [f"{loop} has {of.points:.1f}" for loop, of in others.items()]
    known_points.append(f"the best entry, {leader}, has {cells[-1]}")
    say(f"Yours has {own.points:.1f} points; {', '.join(known_points)}.")
    say("Points: 100 times the root of (speed-up times shorter pause) over serial, geometric mean.")
    say("Its cells in lessons/leaderboard.md:")
    print(f"  {leaderboard_cells(own)}")
    return 0


def home() -> list[Path]:
    """Return the lessons of a clone, or those that pip installed.

    Raises:
        ValueError: there are none.
    """
    clone = Path(__file__).resolve().parents[2] / "lessons"
    installed = Path(sysconfig.get_path("data")) / "share" / "minisched" / "lessons"
    for place in (clone, installed):
        if found := sorted(place.glob("[0-9][0-9]_*.py")):
            return found
    raise ValueError(f"there are no lessons in {clone} or {installed}; install minisched again.")


def about(path: Path, kept: Any) -> dict[str, Any]:
    """Return a lesson's name, title, extras and exercises, and its number of solved ones."""
    text = path.read_text(encoding="utf-8")
    title = re.search(r"^#\s+title: \"?(.*?)\"?$", text, re.MULTILINE)
    extras = re.search(r"^#\s+extras: \[(.*)\]$", text, re.MULTILINE)
    names = [name for name, one in exercises().items() if one.lesson == path.stem]
    return {
        "name": path.stem,
        "title": title[1] if title else path.stem,
        "extras": extras[1].split(", ") if extras else [],
        "exercises": names,
        "done": sum(name in kept for name in names),
    }


def open_lesson(source: Path, extras: list[str], folder: Path) -> int:
    """Open a copy of a lesson, as a notebook if possible; an existing copy is kept.

    The copy is of the folder's own file of the lesson, if there is one: it may lack the solutions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    has_jupytext = find_spec("jupytext") is not None
    suffix = "_zh" if source.parent.name == "zh" else ""
    path = folder / f"{source.stem}{suffix}.{'ipynb' if has_jupytext else 'py'}"
    own = folder / f"{source.stem}{suffix}.py"
    source = own if own.exists() else source
    if not path.exists() and has_jupytext:
        jupytext = import_module("jupytext")
        jupytext.write(jupytext.read(source), path)
    elif not path.exists():
        shutil.copy(source, path)
    if find_spec("jupyterlab") is None:
        say(f"{path} is yours. To open it, JupyterLab is needed:")
        say_command(f"pip install 'minisched[{','.join(extras)}]' && minisched learn")
        say(f"Or upload it at {COLAB}, with `%pip install minisched` in its first cell.")
        return 0
    say(f"Opening {path} in JupyterLab; Ctrl-C ends it.")
    return subprocess.call([sys.executable, "-m", "jupyterlab", path.name], cwd=folder)
