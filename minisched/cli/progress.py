"""A progress bar on stderr, so that stdout stays what it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ..core import Output


@contextmanager
def token_progress(loops: list[str], total: int) -> Iterator[Callable[[str, Output], None]]:
    """One bar for each loop, counting tokens up to ``total`` at most; gone when done."""
    columns = (
        TextColumn("{task.description:>10}"),
        BarColumn(),
        TextColumn("{task.completed} tokens"),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        bars = {loop: progress.add_task(loop, total=total, start=False) for loop in loops}

        def on_output(loop: str, output: Output) -> None:
            progress.start_task(bars[loop])
            if output.token is not None:
                progress.advance(bars[loop])

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
    """One bar for one thing after another; gone when done, and never there without a terminal."""
    console = Console(stderr=True)
    with Progress(
        BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        yield Work(progress)


@contextmanager
def named_progress(total: int) -> Iterator[Callable[[str], None]]:
    """One bar that names what is being worked on, each name a step; gone when done."""
    columns = (BarColumn(), TextColumn("{task.completed} of {task.total}  {task.description}"))
    console = Console(stderr=True)
    with Progress(
        *columns, TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        bar = progress.add_task("", total=total)

        def hear(name: str) -> None:
            progress.update(bar, advance=1, description=name)

        yield hear
