"""``minisched bench mutation``: which changes of the code its tests see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..bench.mutation.mutants import Tried, check_options, try_mutants
from ..bench.mutation.report import to_json, write
from ..bench.mutation.sample import figures
from ..bench.mutation.tree import ROOT, MutationError, Report, check_mutmut
from .bench import table
from .exit import complain

DEFAULT_SAMPLE = "200"
CHILDREN = 2  # mutants tried at once


def check_part(part: str, **options: object) -> None:
    """Refuse options that another part does not take.

    Raises:
        ValueError: one of them was given, and the part is not this one.
    """
    given = [name for name, value in options.items() if value is not None]
    if given and part != "mutation":
        raise ValueError(f"--{given[0]} belongs to bench mutation, not to bench {part}.")


def run_mutation(
    sample: str | None,
    seed: int | None,
    module: str | None,
    folder: Path | None,
    as_json_only: bool,
    root: Path = ROOT,
) -> int:
    """Try a sample of mutants, print the table and the survivors, and keep both under ``traces/``.

    Only a sample of all modules is kept. Gives the exit code: 1 where mutmut did not get through.

    Raises:
        ValueError: an option is bad, mutmut is missing, or this is no checkout.
    """
    size = read_sample(sample or DEFAULT_SAMPLE)
    check_options(size, module)
    check_mutmut(root)
    try:
        tried = in_folder(size, seed or 0, module, folder)
    except MutationError as error:
        return complain(str(error), 1)
    kept = [] if module else write(tried, root)
    if as_json_only:
        print(json.dumps(to_json(tried)))
    else:
        show(tried, kept)
    return 0


def read_sample(text: str) -> int | None:
    """How many mutants are tried; None for all of them.

    Raises:
        ValueError: it is neither a number nor ``all``.
    """
    if text == "all":
        return None
    if not text.isdecimal():
        raise ValueError(f"--sample is {text!r}, but it must be a number of mutants, or all.")
    return int(text)


def in_folder(size: int | None, seed: int, module: str | None, folder: Path | None) -> Tried:
    """Work in a folder that is kept, or in one that goes away."""
    with progress() as report, TemporaryDirectory() as passing:
        work = folder or Path(passing)
        work.mkdir(parents=True, exist_ok=True)
        return try_mutants(work, size, seed, module, CHILDREN, report)


@contextmanager
def progress() -> Iterator[Report]:
    """A bar on stderr: what is being done, and how many mutants are tried; gone when done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total
        )


def show(tried: Tried, kept: list[Path]) -> None:
    """The table, then the survivors that nobody has explained, then those that somebody has."""
    console = Console()
    console.print(table(figures(tried.layers)))
    console.print("min and max are the ends of the 95 % interval.")
    for item in sorted(tried.survivors, key=lambda survivor: survivor.why):
        mutant = item.mutant
        where = f"{mutant.path}:{mutant.line}"
        console.print(f"\n{mutant.function}, {where}: {item.why or 'unexplained'}", markup=False)
        console.print(escape(mutant.diff), highlight=False)
    for path in kept:
        console.print(f"written: {path.name}")
