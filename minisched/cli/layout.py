"""What fits a terminal: sentences, tables, commands, drawings; and progress, on stderr.

Where nobody looks (a pipe) and nobody says how wide it is
(``COLUMNS``), a sentence is one line, so that it can be searched for.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from ..comparison import text_table
from ..core.fields import setting
from ..core.text import printable

JSON = setting(False, "One JSON object on stdout.")
USUAL = 100  # columns of a drawing
HANGS = re.compile(r" *(?:[✓✗~?-] \w+\? +|[✓✗!~?] )?")  # where a sentence's other lines begin


def print_json(value: Any) -> None:
    """One object, on a line of its own."""
    print(json.dumps(value))


def width_of(console: Console) -> int | None:
    """How wide it is, if anybody looks, or says so."""
    return console.width if console.is_terminal or "COLUMNS" in os.environ else None


def say(line: str | Text = "") -> None:
    """Print a line; where it is too long, its other lines hang below its first word."""
    console = Console(highlight=False, emoji=False)
    text, width = Text(printable(line)) if isinstance(line, str) else line, width_of(console)
    for sign, colour in (("✓", "green"), ("✗", "red"), ("^!", "yellow")):
        text.highlight_regex(sign, colour)
    if width is None or text.cell_len <= width:
        console.print(text, soft_wrap=True)
        return
    found = HANGS.match(text.plain)
    hang = min(found.end() if found else 0, width // 2)
    for at, part in enumerate(text[hang:].wrap(console, width - hang)):
        part.rstrip()
        console.print(Text.assemble(" " * hang if at else text[:hang], part), soft_wrap=True)


def say_table(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> None:
    """Print rows below their heads, a sentence in the last column; see ``text_table``."""
    table = text_table(heads, list(rows), width_of(Console()))
    for line in ["", *table, "", *caption.splitlines()]:
        say(line)


def say_command(line: str) -> None:
    """Print a command; a long one goes on behind a backslash, so that it can still be copied."""
    room = max(1, (width_of(Console()) or len(line) + 4) - 4)
    parts = textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False)
    print(printable(" \\\n".join(f"  {part}" for part in parts)))


def columns() -> int:
    """How wide a drawing is to be: as the terminal, but no wider than what is easy to read."""
    return min(width_of(Console()) or USUAL, USUAL)


# -- A progress bar on stderr, so that stdout stays what it is for ---------------------------------


class Work:
    """What a command is at, as a bar: so much of it is done, or it has no measure."""

    def __init__(self, progress: Progress, total: int | None) -> None:
        self.progress = progress
        self.bar = progress.add_task("", total=total)

    def at(self, what: str, total: int | None = None) -> None:
        """From now on it does this, in so many pieces."""
        self.progress.reset(self.bar, total=total, description=what)

    def advance(self, what: str | None = None) -> None:
        """A piece is done; ``what`` is its name."""
        self.progress.update(self.bar, advance=1, description=what)

    def reading(self, path: Path) -> Callable[[int], None]:
        """From now on it reads a file; what this gives is told how many bytes were read."""
        size = path.stat().st_size if path.is_file() else None
        self.at(f"reading {path}", size or None)
        return lambda read: self.progress.update(self.bar, completed=read)


@contextmanager
def work_progress(total: int | None = None) -> Iterator[Work]:
    """One bar for one thing after another; gone when done, and never there without a terminal."""
    console, text = Console(stderr=True), TextColumn("{task.description}", markup=False)
    counted = [] if total is None else [MofNCompleteColumn()]
    with Progress(
        BarColumn(), *counted, text, TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as shown:  # fmt: skip
        yield Work(shown, total)
