"""The lessons: py:percent notebooks, executed while the site is built."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from .repository import ROOT, text

NEEDS = {"mlx": "mlx", "torch": "torch"}  # extra -> a library of it; the others a build has anyway


def lessons() -> list[Path]:
    """The lessons in their order."""
    return sorted(ROOT.glob("lessons/[0-9][0-9]_*.py"))


def pages() -> dict[str, str]:
    """The list of lessons, which is their README; they are copied as they are (``files``)."""
    names = "\n".join(path.stem for path in lessons())
    toctree = f"\n:::{{toctree}}\n:hidden:\n\n{names}\n:::\n"
    return {"lessons/README.md": text("lessons/README.md") + toctree}


def files() -> dict[str, Path]:
    """The notebooks, by path."""
    return {f"lessons/{path.name}": path for path in lessons()}


def cannot_run() -> list[str]:
    """Lessons for which a library is missing here: the site has them without their output."""
    missing = {extra for extra, library in NEEDS.items() if find_spec(library) is None}
    return [f"lessons/{path.name}" for path in lessons() if missing & {*_listed(path, "extras")}]


def lesson_of(topic: str, to_root: str) -> str:
    """A link to the lessons that teach a topic; empty if there are none."""
    found = [path for path in lessons() if topic in _listed(path, "topics")]
    links = [f"[{_title(path)}]({to_root}lessons/{path.name})" for path in found]
    return f"The lesson: {', '.join(links)}." if links else ""


def _title(path: Path) -> str:
    """The first heading of a lesson."""
    found = re.search(r"^# # (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else path.stem


def _listed(path: Path, name: str) -> list[str]:
    """A list in the head of a lesson, such as ``topics: [serial, overlap]``."""
    found = re.search(rf"^#\s+{name}: \[(.*)\]$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return [item.strip() for item in found[1].split(",")] if found else []
