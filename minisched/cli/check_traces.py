"""``minisched check TRACE``: is it identical, does it leak, does it race, does it overlap?"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..checks.answers import Answer, Recorded
from ..checks.identical import answer_all, verdict_on
from ..checks.offence import Offence
from ..checks.stopped import stopped_with
from ..export.recorded import read_recorded
from ..trace import Trace
from ..trace.files import write_whole
from .check_picture import picture
from .exit import complain
from .layout import HANG, say
from .progress import work_progress

MOST_SHOWN = 8  # details of one answer
SIGNS = {
    True: {"yes": "[green]✓[/]", "no": "[green]✓[/]", "partly": "~", "unknown": "?"},
    False: dict.fromkeys(("yes", "no", "partly", "unknown"), "[red]✗[/]"),
}


def check_traces(
    paths: Sequence[Path], draw: Path | None, as_json_only: bool, step: str = ""
) -> int:
    """Answer the four questions about each run; 1 if one of the first three has a bad answer.

    ``step`` is the name of the ranges that are steps in a profiler's trace.

    Raises:
        ValueError: a file can't be read, or the picture can't be written.
    """
    if draw is not None and draw.suffix not in (".svg", ".txt"):
        raise ValueError(f"--draw is {draw}, but its name must end in .svg or .txt.")
    with work_progress() as work, no_more_collected():
        runs = [read_recorded(path, step, work.reading(path)) for path in paths]
        gc.freeze()
        work.at("looking at what ran")
        answers = answer_all(runs)
    holds = verdict_on(runs, answers)
    if as_json_only:
        print(json.dumps(answers_json(runs, answers, holds)))
    else:
        report_answers(Console(highlight=False, emoji=False), runs, answers)
    if draw is not None:
        draw_first(draw, runs, answers)
    return 1 if holds is False else 0


@contextmanager
def no_more_collected() -> Iterator[None]:
    """What is frozen meanwhile is not looked at for cycles, a million events at a time."""
    try:
        yield
    finally:
        gc.unfreeze()


def report_answers(
    console: Console, runs: Sequence[Recorded], answers: dict[str, list[Answer]]
) -> None:
    """Four lines for each run, each with its details."""
    for run in runs:
        trace = run.trace
        parts = [trace.loop, "on", trace.device, trace.model, trace.dtype]
        what = " ".join(filter(None, parts))
        say(console, f"[bold]{escape(run.file)}[/]: {escape(what)}, {trace.clock} clock", 2)
        if error := stopped_with(trace):
            say(console, f"  [red]✗[/] it stopped with {escape(error)}", 4)
        for answer in answers[run.file]:
            sign = SIGNS[answer.holds][answer.word]
            if answer.question == "overlaps" and answer.word == "no":
                sign = "-"  # no law is broken
            question = f"{answer.question}?"
            say(console, f"  {sign} {question:<11} {escape(answer.sentence)}", HANG)
            for line in first_few(answer.details):
                say(console, f"    {'':<11} {escape(line)}", HANG)


def first_few(details: Sequence[str]) -> Iterator[str]:
    """The first of them, and how many more there are."""
    yield from details[:MOST_SHOWN]
    if len(details) > MOST_SHOWN:
        yield f"and {len(details) - MOST_SHOWN} more; --json has them all"


def answers_json(
    runs: Sequence[Recorded], answers: dict[str, list[Answer]], holds: bool | None
) -> dict[str, Any]:
    """``holds``, and of each of ``runs`` its ``file``, its header, and the answers by question.

    ``holds`` is None where nothing could be said about any law. A run that stopped with an error
    has it as ``stopped``.

    An answer has ``answer`` (yes, no, partly or unknown), ``sentence``, ``details``, and that on
    overlap ``figures`` in nanoseconds.
    """
    header = ("loop", "device", "model", "clock", "dtype")
    return {
        "holds": holds,
        "runs": [
            {
                "file": run.file,
                **{name: getattr(run.trace, name) for name in header},
                **({"stopped": error} if (error := stopped_with(run.trace)) else {}),
                **{item.question: item.as_json() for item in answers[run.file]},
            }
            for run in runs
        ],
    }


def draw_first(target: Path, runs: Sequence[Recorded], answers: dict[str, list[Answer]]) -> None:
    """Draw what was found first; where nothing was, say so.

    Raises:
        ValueError: the picture can't be written.
    """
    found = next(offences(runs, answers), None)
    if found is None:
        complain(f"nothing was found that could be drawn, so {target} is not written.", 0)
        return
    write_whole(target, picture(*found, target.suffix), f"--draw {target}")


def offences(
    runs: Sequence[Recorded], answers: dict[str, list[Answer]]
) -> Iterator[tuple[Trace, Offence]]:
    """What a picture can show, run by run."""
    for run in runs:
        for answer in answers[run.file]:
            for offence in answer.offences:
                if offence.slices:
                    yield run.trace, offence
