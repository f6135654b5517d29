"""What a learner has got right is kept in a file, ``mine.py``: their progress, and their code."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

from ..trace.files import write_whole
from .exercise import Exercise, exercises, find

MINE = Path("mine.py")  # where the lessons are opened
HEAD = '"""What I have got right in the lessons of minisched."""\n'
MARK = re.compile(r"^# == (\w+), lesson (\w+) ==$", re.MULTILINE)


def keep(exercise: Exercise, lines: Any, path: Path | None = None) -> list[str]:
    """Put right lines into ``mine.py``, in the place of those before; what is to be said of it."""
    path = path or MINE
    try:
        pieces = lines if isinstance(lines, tuple) else (lines,)
        source = "\n\n\n".join(source_of(one) for one in pieces)
        kept = parts(path)
        kept[exercise.name] = source
        write_whole(path, text_of(kept))
    except (OSError, TypeError):
        return []
    return [f"Kept in `{path.name}`: {len(kept)} of {len(exercises())} exercises right."]


def source_of(thing: Any) -> str:
    """The text of a function, or of a class: of one in a notebook Python asks for a module's file.

    Raises:
        OSError: nobody knows it.
    """
    if not isinstance(thing, type):
        return dedent(inspect.getsource(thing)).strip()
    codes = (getattr(item, "__code__", None) for item in vars(thing).values())
    lines = linecache.getlines(next((code.co_filename for code in codes if code), ""))
    for node in ast.walk(ast.parse("".join(lines))):
        if isinstance(node, ast.ClassDef) and node.name == thing.__name__:
            return "".join(lines[node.lineno - 1 : node.end_lineno]).strip()
    raise OSError(f"nobody knows the text of {thing.__name__}")


def parts(path: Path | None = None) -> dict[str, str]:
    """What ``mine.py`` has of each exercise, in the order of the lessons; nothing without one."""
    path = path or MINE
    if not path.is_file():
        return {}
    pieces = MARK.split(path.read_text(encoding="utf-8"))[1:]
    found = {name: text.strip() for name, text in zip(pieces[::3], pieces[2::3], strict=True)}
    return {name: found[name] for name in exercises() if name in found}


def text_of(kept: dict[str, str]) -> str:
    """The file with these parts."""
    sections = [
        f"# == {name}, lesson {one.lesson} ==\n\n{kept[name]}\n"
        for name, one in exercises().items()
        if name in kept
    ]
    return "\n\n".join([HEAD, *sections])


_told: dict[str, int] = {}


def hint(name: str) -> str:
    """The next hint for an exercise; each call tells a little more.

    Raises:
        ValueError: there is no exercise of that name.
    """
    hints = find(name).hints
    at = _told.get(name, 0)
    _told[name] = min(at + 1, len(hints))
    if at >= len(hints):
        return "That was the last hint. The end of the lesson discusses solutions."
    return f"Hint {at + 1} of {len(hints)}: {hints[at]}"
