"""``minisched learn``: the progress in the lessons, and the next one, opened."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from ..learn.exercise import exercises
from ..learn.keep import MINE, parts
from .layout import JSON, print_json, say, say_command, say_table
from .options import setting

FOLDER = Path("minisched-lessons")
COLAB = "https://colab.research.google.com/#create=true"  # File, Upload notebook


def learn(
    lesson: int | None = typer.Argument(None, help="Its number; the first that is not done."),
    folder: Path = setting(FOLDER, "Where your lessons and your mine.py are."),
    no_open: bool = setting(False, "Only show how far you are."),
    json: bool = JSON,
) -> int:
    """Show which lessons are done, and open the next one in JupyterLab.

    A lesson is copied into the folder, where you may change it. Your correct
    answers are kept next to it in mine.py. Without JupyterLab, the command
    prints how to install it.
    """
    sources, kept = home(), parts(folder / MINE)
    every = [about(path, kept) for path in sources]
    left = [one for one in every if one["done"] < len(one["exercises"])]
    chosen = next(iter(left), every[-1])
    if lesson is not None:
        numbers = {int(one["name"][:2]): one for one in every}
        if lesson not in numbers:
            there = ", ".join(map(str, numbers))
            raise ValueError(f"there is no lesson {lesson}; there are {there}.")
        chosen = numbers[lesson]
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
    return 0 if no_open else open_lesson(sources[every.index(chosen)], chosen["extras"], folder)


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
    """Open a copy of a lesson, as a notebook if possible; an existing copy is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    has_jupytext = find_spec("jupytext") is not None
    path = folder / f"{source.stem}.{'ipynb' if has_jupytext else 'py'}"
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
