"""The cases that broke a law: how to repeat each, and the first one made small."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ..checks.case import Case
from ..checks.case_text import case_text
from ..checks.identical import ORACLE, story_of
from ..checks.judge import Finding, Verdict, judge
from ..checks.many import case_of
from ..checks.shrink import MOST_TRIALS, breaks_the_same, shrink
from ..checks.tally import CAUSES, Failure, Tally
from ..checks.tokens.oracle import oracle_trace
from ..export import native
from ..trace.files import write_whole
from .check_picture import offence_in, picture, wrong_token
from .layout import say, say_command

LONGEST = 300  # characters of a finding


def report_failures(console: Console, tally: Tally, files: list[str]) -> None:
    """The first of each law with the command that repeats it, causes first; and that one small."""
    for failure in tally.first:
        said = f"{failure.law}: {escape(shortened(failure.sentence))}"
        say(console, f"[red]✗[/] seed {failure.seed}, {failure.loop}: {said}", 2)
        if failure.law == "identity":
            print_why(console, judge(case_of(failure.seed, failure.loop, tally.device)))
        say_command(console, command(failure, tally.device))
    if (more := len(tally.failures) - len(tally.first)) > 0:
        console.print(f"  and {more} more; --json has them all")
    if tally.failures:
        report_small(console, tally.first[0], tally.device)
    for file in files:
        say(console, escape(file))
    if pair := [file for file in files if file.endswith(".json")]:
        say_command(console, f"minisched check {' '.join(pair)}")


def report_small(console: Console, failure: Failure, device: str) -> None:
    """The smallest case that was found to break the same law, and all that it breaks."""
    small = make_small(failure, device)
    verdict = judge(small)
    console.print("the first of them, made as small as it could be:")
    for line in case_text(small):
        say(console, f"  {escape(line)}", 4)
    for finding in sorted(verdict.findings, key=lambda item: CAUSES.index(item.law)):
        say(console, f"  {finding.law}: {escape(shortened(finding.sentence))}", 4)
        if finding.law == "identity":
            print_why(console, verdict)


def print_why(console: Console, verdict: Verdict) -> None:
    """How the first wrong token came about."""
    difference = wrong_token(verdict)
    for line in story_of(difference, verdict.trace)[0] if difference else ():
        say(console, f"    {escape(line)}", 6)


@cache
def make_small(failure: Failure, device: str) -> Case:
    """The failure's case with everything taken away that its law does not need."""
    case = case_of(failure.seed, failure.loop, device)
    shows = breaks_the_same(Finding(failure.law, failure.sentence))
    return shrink(case, shows, MOST_TRIALS)


def save_failure(tally: Tally, folder: Path) -> list[str]:
    """Write the trace of the first cause, made small, its baseline and its picture; the files.

    The baseline comes first: it is what the oracle says, so that wrong tokens can be explained.

    Raises:
        ValueError: they can't be written.
    """
    failure = tally.first[0]
    verdict = judge(make_small(failure, tally.device))
    stem = f"seed-{failure.seed}-{failure.loop.replace(':', '-')}"
    texts = {
        f"{stem}{ORACLE}.json": native.to_json(oracle_trace(verdict.workload, verdict.refused)),
        f"{stem}.json": native.to_json(verdict.trace),
    }
    if (found := verdict.broke(failure.law)) is not None:
        texts[f"{stem}.svg"] = picture(verdict.trace, offence_in(verdict, found), ".svg")
    for name, text in texts.items():
        write_whole(folder / name, text, f"--out {folder}", with_folders=True)
    return [str(folder / name) for name in texts]


def command(failure: Failure, device: str) -> str:
    """What repeats a failure."""
    on = "" if device == "sim" else f" --device {device}"
    return f"minisched check --workloads 1 --seed {failure.seed} --loop {failure.loop}{on}"


def shortened(sentence: str) -> str:
    """The first part of a long one."""
    return sentence if len(sentence) <= LONGEST else f"{sentence[:LONGEST]}..."
