"""The lessons: py:percent notebooks, executed while the site is built."""

from __future__ import annotations

import re
from pathlib import Path

from minisched.topics import parts

from .repository import ROOT


def lessons() -> list[Path]:
    """The lessons in their order."""
    return sorted(ROOT.glob("lessons/[0-9][0-9]_*.py"))


def pages() -> dict[str, str]:
    """The list of lessons; the lessons themselves are copied as they are (``files``)."""
    lines = [f"- [{title_of(path)}]({path.name})" for path in lessons()]
    names = "\n".join(path.stem for path in lessons())
    return {
        "lessons/index.md": HEAD
        + "\n".join(lines or ["(There are none yet.)"])
        + f"\n\n:::{{toctree}}\n:hidden:\n\n{names}\n:::\n"
    }


def files() -> dict[str, Path]:
    """The notebooks, by path."""
    return {f"lessons/{path.name}": path for path in lessons()}


def title_of(path: Path) -> str:
    """The first heading of a lesson."""
    found = re.search(r"^# # (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else path.stem


def lesson_of(topic: str, to_root: str) -> str:
    """A link to the lesson that teaches a topic; empty if there is none."""
    found = sorted(ROOT.glob(parts(topic)["lesson"]))
    if not found:
        return ""
    return f"The lesson: [{title_of(found[0])}]({to_root}lessons/{found[0].name})."


HEAD = """\
# Lessons

Each is a question, a run, a picture, the lines of source that it is about, and exercises with a
checker. What you see was executed when this site was built; to do the exercises, open the `.py`
file in Jupyter (`pip install -e '.[lessons]'`).

"""
