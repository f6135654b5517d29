"""The cases that broke a law: how to repeat each, and the first one made small."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ..checks.case_text import case_text
from ..checks.judge import Case, Finding, judge
from ..checks.many import case_of
from ..checks.shrink import breaks_the_same, shrink
from ..checks.tally import Failure, Tally
from ..export import native
from .check_picture import offence_in, picture

MOST_TRIALS = 300  # cases that are looked at for a smaller one
LONGEST = 300  # characters of a finding


def report_failures(console: Console, tally: Tally, files: list[str]) -> None:
    """The first of each law with the command that repeats it, and the very first one small."""
    first = {failure.law: failure for failure in reversed(tally.failures)}
    for failure in sorted(first.values()):
        console.print(
            f"[red]✗[/] seed {failure.seed}, {failure.loop}: {failure.law}: "
            f"{escape(shortened(failure.sentence))}",
            soft_wrap=True,
        )
        console.print(f"  {command(failure, tally.device)}", soft_wrap=True)
    if (more := len(tally.failures) - len(first)) > 0:
        console.print(f"  and {more} more; --json has them all")
    if tally.failures:
        report_small(console, tally.failures[0], tally.device)
    for file in files:
        console.print(file, soft_wrap=True)


def report_small(console: Console, failure: Failure, device: str) -> None:
    """The smallest case that was found to break the same law."""
    small = make_small(failure, device)
    found = judge(small).broke(failure.law)
    console.print("the first of them, made as small as it could be:")
    for line in case_text(small):
        console.print(f"  {escape(line)}", soft_wrap=True)
    if found is not None:
        console.print(f"  {failure.law}: {escape(shortened(found.sentence))}", soft_wrap=True)


@cache
def make_small(failure: Failure, device: str) -> Case:
    """The failure's case with everything taken away that its law does not need."""
    case = case_of(failure.seed, failure.loop, device)
    shows = breaks_the_same(Finding(failure.law, failure.sentence))
    return shrink(case, shows, MOST_TRIALS)


def save_failure(tally: Tally, folder: Path) -> list[str]:
    """Write the trace of the first failure, made small, and its picture; the files.

    Raises:
        ValueError: they can't be written.
    """
    failure = tally.failures[0]
    verdict = judge(make_small(failure, tally.device))
    stem = f"seed-{failure.seed}-{failure.loop.replace(':', '-')}"
    texts = {f"{stem}.json": native.to_json(verdict.trace)}
    if (found := verdict.broke(failure.law)) is not None:
        texts[f"{stem}.svg"] = picture(verdict.trace, offence_in(verdict, found), ".svg")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ValueError(f"--out {folder} can't be written: {error.strerror}.") from error
    return [str(folder / name) for name in texts]


def command(failure: Failure, device: str) -> str:
    """What repeats a failure."""
    on = "" if device == "sim" else f" --device {device}"
    return f"minisched check --workloads 1 --seed {failure.seed} --loop {failure.loop}{on}"


def shortened(sentence: str) -> str:
    """The first part of a long one."""
    return sentence if len(sentence) <= LONGEST else f"{sentence[:LONGEST]}..."
