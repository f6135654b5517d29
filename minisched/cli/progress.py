"""A progress bar on stderr, so that stdout stays what it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
