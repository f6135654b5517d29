"""``minisched learn``: how far somebody is in the lessons, and the next one, opened."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..learn.exercise import exercises
from ..learn.keep import MINE, parts
from .layout import Json, print_json, say, say_command, say_table

FOLDER = Path("minisched-lessons")
COLAB = "https://colab.research.google.com/#create=true"  # File, Upload notebook
HEAD = re.compile(r"^#\s+title: \"?(.*?)\"?$", re.MULTILINE)
EXTRAS = re.compile(r"^#\s+extras: \[(.*)\]$", re.MULTILINE)


def learn(
    lesson: Annotated[
        int | None, typer.Argument(help="Its number; the first that is not done.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where your lessons and your mine.py are.")] = FOLDER,
    no_open: Annotated[bool, typer.Option("--no-open", help="Only show how far you are.")] = False,
    json: Json = False,
) -> int:
    """Show what is done of the lessons, and open the next one in JupyterLab.

    A lesson is copied into the folder, where you may change it; what you got
    right is kept beside it in mine.py. Without JupyterLab it says how to get it.
    """
    every, kept = list(lessons()), parts(folder / MINE)
    for one in every:
        one.done = sum(name in kept for name in one.exercises)
    chosen = choose(every, lesson)
    if json:
        print_json({"lessons": [vars(one) for one in every], "next": chosen.name})
        return 0
    console = Console(highlight=False)
    rows = [
        ("→" if one is chosen else "", one.name, one.title, f"{one.done} of {len(one.exercises)}")
        for one in every
    ]
    say_table(console, ("", "lesson", "", ">exercises right"), rows)
    if not no_open:
        return open_lesson(chosen, folder, console)
    return 0


@dataclass
class FoundLesson:
    """One lesson: its file, and how far somebody is in it."""

    name: str
    title: str
    extras: list[str]
    exercises: list[str]
    done: int = 0


def home() -> Path:
    """Where the lessons are: in a clone, or where pip has put them.

    Raises:
        ValueError: nowhere.
    """
    clone = Path(__file__).resolve().parents[2] / "lessons"
    installed = Path(sysconfig.get_path("data")) / "share" / "minisched" / "lessons"
    for place in (clone, installed):
        if list(place.glob("[0-9][0-9]_*.py")):
            return place
    raise ValueError(f"there are no lessons in {clone} or {installed}; install minisched again.")


def lessons() -> Iterator[FoundLesson]:
    """All of them, in their order."""
    for path in sorted(home().glob("[0-9][0-9]_*.py")):
        text = path.read_text(encoding="utf-8")
        title, extras = HEAD.search(text), EXTRAS.search(text)
        names = [name for name, one in exercises().items() if one.lesson == path.stem]
        yield FoundLesson(
            path.stem, title[1] if title else path.stem,
            extras[1].split(", ") if extras else [], names,
        )  # fmt: skip


def choose(every: list[FoundLesson], number: int | None) -> FoundLesson:
    """The lesson of that number; without one the first that is not done.

    Raises:
        ValueError: there is none of that number.
    """
    if number is None:
        return next((one for one in every if one.done < len(one.exercises)), every[-1])
    found = next((one for one in every if int(one.name[:2]) == number), None)
    if found is None:
        there = ", ".join(str(int(one.name[:2])) for one in every)
        raise ValueError(f"there is no lesson {number}; there are {there}.")
    return found


def open_lesson(one: FoundLesson, folder: Path, console: Console) -> int:
    """Copy a lesson, as a notebook if that can be made here, and open it; a copy stays as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    source, has_jupytext = home() / f"{one.name}.py", find_spec("jupytext") is not None
    path = folder / f"{one.name}.{'ipynb' if has_jupytext else 'py'}"
    if not path.exists() and has_jupytext:
        jupytext = import_module("jupytext")
        jupytext.write(jupytext.read(source), path)
    elif not path.exists():
        shutil.copy(source, path)
    extras = ",".join(one.extras)
    if find_spec("jupyterlab") is None:
        say(console, f"{path} is yours. To open it, JupyterLab is needed:")
        say_command(console, f"pip install 'minisched[{extras}]' && minisched learn")
        say(console, f"Or upload it at {COLAB}, with `%pip install minisched` in its first cell.")
        return 0
    say(console, f"Opening {path} in JupyterLab; Ctrl-C ends it.")
    return subprocess.call([sys.executable, "-m", "jupyterlab", path.name], cwd=folder)
