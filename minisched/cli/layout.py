"""What fits a terminal: tables that keep every name and number whole, sentences, command lines.

No line is wider than the terminal. Where nobody looks (a pipe) and nobody says how wide it is
(``COLUMNS``), a sentence is one line, so that it can be searched for.
"""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..core import Output

SENTENCE = 20  # characters; a longer cell of several words may be broken between them
HANG, STEP = 16, 2  # most columns that a sentence hangs by; what stands below a name
USUAL = 100  # columns of a drawing
CUT = "›"  # ends a line of a drawing that is wider than the terminal


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str | Text]], title: str = "", caption: str = ""
) -> Fitted:
    """Rows below their heads; a head that begins with ``>`` is one of figures."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, title_justify="left")
    made.title, made.caption = title or None, Text(caption) if caption else None
    for head in heads:
        made.add_column(head.lstrip(">"), justify="right" if head[:1] == ">" else "left")
    for row in rows:
        made.add_row(*row)
    return Fitted(made)


Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def print_json(value: Any) -> None:
    """One object, on a line of its own."""
    print(json.dumps(value))


class Fitted:
    """A table, or where its columns don't fit side by side a record below each row's name."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table, width = self.table, options.max_width
        endless = options.update_width(10_000)
        cells = [[as_text(cell, console) for cell in column.cells] for column in table.columns]
        names = [as_text(column.header, console).plain for column in table.columns]
        if console.measure(table, options=endless).maximum > width:
            if not any(is_sentence(text, at) for at, row in enumerate(cells) for text in row):
                table.padding = 0  # figures alone may stand close
            for at, (column, texts) in enumerate(zip(table.columns, cells, strict=True)):
                words = names[at].split() + [
                    word
                    for text in texts
                    for word in (text.plain.split() if is_sentence(text, at) else [text.plain])
                ]
                column.no_wrap = not any(is_sentence(text, at) for text in texts)
                column.overflow = "fold"
                column.min_width = max(map(len, words), default=1)
                if column.no_wrap:  # a heading of some words may be higher than wide
                    column.header = "\n".join(textwrap.wrap(names[at], max(1, column.min_width)))
        least = console.measure(table, options=endless).minimum
        if least <= width:
            self._share(width - least)
            yield table
            return
        if table.title:
            yield as_text(table.title, console)
        for row in zip(*cells, strict=True):
            yield from record([name.replace("\n", " ") for name in names], row, width)
        if table.caption:
            yield as_text(table.caption, console)

    def _share(self, spare: int) -> None:
        """Set widths where they matter: columns of sentences share what the others leave."""
        broken = [column for column in self.table.columns if not column.no_wrap]
        for column in self.table.columns:
            if column.min_width is not None:
                more = 0 if column.no_wrap else spare // len(broken)
                column.width = column.min_width + more


def record(names: Sequence[str], row: Sequence[Text], width: int) -> RenderResult:
    """A row by itself: its name, behind a sign where there is one, then the others below."""
    first = next((at for at, text in enumerate(row) if text.cell_len > 1), 0)
    yield Text(" ").join(text for text in row[: first + 1] if text.plain)
    for name, text in list(zip(names, row, strict=True))[first + 1 :]:
        if text.plain:
            goes_below = not is_sentence(text) and len(name) + 2 + text.cell_len > width - STEP
            end = "\n" if goes_below else " "  # so that a number keeps its unit
            line = Text.assemble((f"{name}:{end}", "dim"), text)
            line.overflow = "fold"
            yield Padding(line, (0, 0, 0, STEP))


def is_sentence(text: Text, column: int = 1) -> bool:
    """Whether a cell may be broken; a row's name, in the first column, only if it is very long."""
    return " " in text.plain and text.cell_len > (SENTENCE if column else 2 * SENTENCE)


def as_text(cell: object, console: Console) -> Text:
    """What a cell says."""
    return cell if isinstance(cell, Text) else console.render_str(str(cell))


def knows_width(console: Console) -> bool:
    """Whether anybody looks, or says how wide it is."""
    return console.is_terminal or "COLUMNS" in os.environ


def say(console: Console, text: str, hang: int = 0) -> None:
    """Print a line of markup; where it is too long, its other lines hang by so many columns."""
    line = Text.from_markup(text, emoji=False)
    if not knows_width(console) or line.cell_len <= console.width:
        console.print(line, soft_wrap=True)
        return
    hang = min(hang, HANG, console.width // 2)
    for at, part in enumerate(line[hang:].wrap(console, console.width - hang)):
        part.rstrip()
        head = line[:hang] if not at else Text(" " * hang)
        console.print(Text.assemble(head, part), soft_wrap=True)


def say_command(console: Console, line: str, indent: int = STEP) -> None:
    """Print a command; a long one goes on behind a backslash, so that it can still be copied."""
    room = console.width - indent - 2
    if not knows_width(console) or len(line) <= room:
        console.print(Text(" " * indent + line), soft_wrap=True)
        return
    parts = textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False)
    for at, part in enumerate(parts):
        goes_on = " \\" if at < len(parts) - 1 else ""
        console.print(Text(" " * indent + part + goes_on), soft_wrap=True)


def columns_of(console: Console) -> int:
    """How wide a drawing is to be: as the terminal, but no wider than what is easy to read."""
    return min(console.width, USUAL) if knows_width(console) else USUAL


def print_drawing(lines: Sequence[str], console: Console) -> None:
    """Print lines that can't be broken; those that are too wide end in a mark, and it is said."""
    for line in lines:
        print(cut(line, console))
    widest = max(map(len, lines), default=0)
    if knows_width(console) and widest > console.width:
        print(
            f"(It takes {widest} columns; {CUT} is where lines of the drawing were cut.)"[
                : console.width
            ]
        )


def cut(line: str, console: Console) -> str:
    """A line of a drawing, and a mark where the terminal ends before it."""
    if not knows_width(console) or len(line) <= console.width:
        return line
    return line[: console.width - 1] + CUT


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


@contextmanager
def token_progress(loops: list[str], total: int) -> Iterator[Callable[[str, Output], None]]:
    """One bar for each loop, counting tokens up to ``total`` at most."""
    columns = TextColumn("{task.description:>10}"), BarColumn()
    with progress(*columns, TextColumn("{task.completed} tokens")) as shown:
        bars = {loop: shown.add_task(loop, total=total, start=False) for loop in loops}

        def on_output(loop: str, output: Output) -> None:
            shown.start_task(bars[loop])
            if output.token is not None:
                shown.advance(bars[loop])

        yield on_output


class Work:
    """What a command is at: a file of which so much was read, or something without a measure."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.bar = progress.add_task("", total=None)

    def at(self, what: str) -> None:
        """From now on it does this, and nobody knows for how long."""
        self.progress.reset(self.bar, total=None, description=what)

    def reading(self, path: Path) -> Callable[[int], None]:
        """From now on it reads a file; what this gives is told how many bytes were read."""
        size = path.stat().st_size if path.is_file() else None
        self.progress.reset(self.bar, total=size or None, description=f"reading {path}")
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
