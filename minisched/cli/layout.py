"""Prints of sentences, tables, commands and drawings at the terminal's width, and progress.

In a pipe without ``COLUMNS`` a sentence is one line, for searches. Progress goes to stderr.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import monotonic
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
HANGS = re.compile(r" *(?:[✓✗~?-] \w+\? +|[✓✗!~?] )?")  # the indent of a sentence's other lines


def print_json(value: Any) -> None:
    """Print one object on a line of its own."""
    print(json.dumps(value))


def width_of(console: Console) -> int | None:
    """Return the width of a terminal, or of ``COLUMNS``; None without both."""
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
    """Print a command; a long one continues after a backslash, so that it can be copied."""
    room = max(1, (width_of(Console()) or len(line) + 4) - 4)
    parts = textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False)
    print(printable(" \\\n".join(f"  {part}" for part in parts)))


def columns() -> int:
    """Return the width of a drawing: the terminal's, up to a readable limit."""
    return min(width_of(Console()) or USUAL, USUAL)


# -- Progress on stderr, because stdout is for results ---------------------------------------------

EVERY_S = 30.0  # between two lines of progress where there is no terminal
LONG = ("installing", "downloading")  # minutes without a piece: printed immediately


class Work:
    """The progress of a command: a number of pieces, or an activity without a measure.

    A terminal has a bar. Elsewhere the progress is a line every ``EVERY_S`` seconds.
    """

    def __init__(self, progress: Progress, total: int | None, is_seen: bool) -> None:
        self.progress, self.is_seen = progress, is_seen
        self.bar = progress.add_task("", total=total)
        self.start = monotonic()

    def at(self, what: str, total: int | None = None) -> None:
        """Begin another activity, in ``total`` pieces."""
        self.progress.reset(self.bar, total=total, description=what)
        if not self.is_seen and what.startswith(LONG):
            self.tell()

    def advance(self, what: str | None = None) -> None:
        """Count a piece as done; ``what`` is its name."""
        self.progress.update(self.bar, advance=1, description=what)

    def reading(self, path: Path) -> Callable[[int], None]:
        """Begin to read a file; the result takes the number of bytes read so far."""
        size = path.stat().st_size if path.is_file() else None
        self.at(f"reading {path}", size or None)
        return lambda read: self.progress.update(self.bar, completed=read)

    def tell(self) -> None:
        """Print a line of progress."""
        (task,) = self.progress.tasks
        done = f"{task.completed:.0f}" if task.total is None else f"{task.percentage:.0f} %"
        parts = [task.description, f"{done} done" if task.completed else ""]
        line = ", ".join(filter(None, parts)) or "working"
        line += f", after {monotonic() - self.start:.0f} s"
        if task.total and task.elapsed and 0 < task.completed < task.total:
            left = task.elapsed * (task.total / task.completed - 1)
            line += f", about {left:.0f} s left"
        print(f"minisched: {line}", file=sys.stderr)

    def tell_until(self, end: Event) -> None:
        """Print a line of progress every ``EVERY_S`` seconds, until an event."""
        while not end.wait(EVERY_S):
            self.tell()


@contextmanager
def work_progress(total: int | None = None) -> Iterator[Work]:
    """Show progress inside the block: a bar that disappears, or lines without a terminal."""
    console, text = Console(stderr=True), TextColumn("{task.description}", markup=False)
    counted = [] if total is None else [MofNCompleteColumn()]
    with Progress(
        BarColumn(), *counted, text, TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as shown:  # fmt: skip
        work, end = Work(shown, total, console.is_terminal), Event()
        teller = Thread(target=work.tell_until, args=(end,), name="progress", daemon=True)
        if not console.is_terminal:
            teller.start()  # a blocking call prints nothing itself
        try:
            yield work
        finally:
            end.set()
            if teller.ident is not None:
                teller.join()
