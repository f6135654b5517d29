"""What fits a terminal: sentences, tables, commands, drawings; and progress, on stderr.

No line is wider than the terminal. Where nobody looks (a pipe) and nobody says how wide it is
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
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from ..comparison import text_table

INDENT, USUAL = 2, 100  # columns: of what stands below a name; of a drawing
CUT = "›"  # ends a line of a drawing that is wider than the terminal
HANGS = re.compile(r" *(?:[✓✗~?-] \w+\? +|[✓✗!~?] )?")  # where a sentence's other lines begin
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def print_json(value: Any) -> None:
    """One object, on a line of its own."""
    print(json.dumps(value))


def width_of(console: Console) -> int | None:
    """How wide it is, if anybody looks, or says so."""
    return console.width if console.is_terminal or "COLUMNS" in os.environ else None


def say(console: Console, line: str | Text) -> None:
    """Print a line; where it is too long, its other lines hang below its first word."""
    text, width = Text(line) if isinstance(line, str) else line, width_of(console)
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


def say_table(
    console: Console, heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str = ""
) -> None:
    """Print rows below their heads, a sentence in the last column; see ``text_table``."""
    for line in ["", *text_table(heads, list(rows), width_of(console)), ""]:
        say(console, line)
    for line in caption.splitlines():
        say(console, line)


def say_command(console: Console, line: str) -> None:
    """Print a command; a long one goes on behind a backslash, so that it can still be copied."""
    width = width_of(console) or len(line) + INDENT + 2
    room = max(1, width - INDENT - 2)
    parts = textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False)
    lines = " \\\n".join(" " * INDENT + part for part in parts)
    console.print(Text(lines), soft_wrap=True)


def columns_of(console: Console) -> int:
    """How wide a drawing is to be: as the terminal, but no wider than what is easy to read."""
    return min(width_of(console) or USUAL, USUAL)


def print_drawing(lines: Sequence[str], console: Console) -> None:
    """Print lines that can't be broken; those that are too wide end in a mark, and it is said."""
    for line in lines:
        print(cut(line, console))
    width, widest = width_of(console), max(map(len, lines), default=0)
    if width and widest > width:
        said = f"(It takes {widest} columns; {CUT} is where lines of the drawing were cut.)"
        print(said[:width])


def cut(line: str, console: Console) -> str:
    """A line of a drawing, and a mark where the terminal ends before it."""
    width = width_of(console)
    return line if not width or len(line) <= width else line[: width - 1] + CUT


# -- A progress bar on stderr, so that stdout stays what it is for ---------------------------------


@contextmanager
def progress(*columns: ProgressColumn) -> Iterator[Progress]:
    """Bars; gone when done, and never there without a terminal."""
    console = Console(stderr=True)
    with Progress(
        *columns, TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as bars:  # fmt: skip
        yield bars


class Work:
    """What a command is at: something that is so far done, or without a measure."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.bar = progress.add_task("", total=None)

    def at(self, what: str, total: int | None = None) -> None:
        """From now on it does this, in so many pieces."""
        self.progress.reset(self.bar, total=total, description=what)

    def advance(self) -> None:
        """A piece is done."""
        self.progress.advance(self.bar)

    def reading(self, path: Path) -> Callable[[int], None]:
        """From now on it reads a file; what this gives is told how many bytes were read."""
        size = path.stat().st_size if path.is_file() else None
        self.at(f"reading {path}", size or None)
        return lambda read: self.progress.update(self.bar, completed=read)


@contextmanager
def work_progress() -> Iterator[Work]:
    """One bar for one thing after another."""
    with progress(BarColumn(), TextColumn("{task.description}", markup=False)) as shown:
        yield Work(shown)


@contextmanager
def named_progress(total: int) -> Iterator[Callable[[str], None]]:
    """One bar that names what is being worked on, each name a step."""
    text = TextColumn("{task.completed} of {task.total}  {task.description}")
    with progress(BarColumn(), text) as shown:
        bar = shown.add_task("", total=total)
        yield lambda name: shown.update(bar, advance=1, description=name)
