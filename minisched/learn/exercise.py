"""Tries many small workloads, shrinks the first that fails, and says what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .counterexample import draw_until
from .figure import LessonFigure
from .guard import is_late
from .laws import BrokenLaw, broken
from .trial import Trial
from .verdict import ExerciseVerdict
from .workload import ExerciseWorkload, WorkloadLimits, simpler

NUM_WORKLOADS, MOST_SHRINKS = 60, 80
Play = Callable[[ExerciseWorkload], Trial]
Explain = Callable[[Trial, BrokenLaw], Sequence[str]]
Draw = Callable[[Trial, BrokenLaw], Sequence[LessonFigure]]
Law = Callable[[Trial], BrokenLaw | None]


@dataclass(frozen=True)
class Counterexample:
    """A workload on which a learner's lines break a law."""

    trial: Trial
    what: BrokenLaw


def no_words(trial: Trial, what: BrokenLaw) -> Sequence[str]:
    """Nothing more to say."""
    return ()


def draw_trial(trial: Trial, what: BrokenLaw) -> list[LessonFigure]:
    """The steps up to the one at which the law is broken."""
    title, flag = {
        "identity": ("The counterexample: a wrong token", f"step {what.step}: {what.rid}'s token"),
        "waits": ("The counterexample", f"step {what.step}: {what.rid} waits"),
    }.get(what.law, ("The run as far as it came", ""))
    figure = draw_until(trial.trace, what.step, title, flag)
    return [figure] if figure else []


def try_all(
    play: Play,
    shape: WorkloadLimits,
    law: Law = broken,
    explain: Explain = no_words,
    draw: Draw = draw_trial,
    hard: Sequence[ExerciseWorkload] = (),
) -> ExerciseVerdict | None:
    """Play random workloads of a shape, and then some ``hard`` ones.

    Gives the verdict on the first that breaks a law, shrunk; None if all is well.
    """
    for workload in [*map(shape.draw, range(NUM_WORKLOADS)), *hard]:
        if failure := attempt(play, law, workload):
            return verdict_on(shrink(failure, play, law), explain, draw)
    return None


def attempt(play: Play, law: Law, workload: ExerciseWorkload) -> Counterexample | None:
    """Play one workload; a failure if a law does not hold."""
    trial = play(workload)
    what = law(trial)
    return Counterexample(trial, what) if what else None


def shrink(failure: Counterexample, play: Play, law: Law) -> Counterexample:
    """The simplest workload to be found that breaks the same law."""
    tries: Iterator[ExerciseWorkload] = simpler(failure.trial.workload)
    for _ in range(15 if failure.trial.is_endless else MOST_SHRINKS):
        workload = next(tries, None)
        if workload is None or is_late():
            break
        found = attempt(play, law, workload)
        if found and not is_late() and found.what.law == failure.what.law:
            failure, tries = found, simpler(workload)
    return failure


def verdict_on(failure: Counterexample, explain: Explain, draw: Draw) -> ExerciseVerdict:
    """Words and pictures for a failure."""
    trial, what = failure.trial, failure.what
    said = [what.sentence[:1].upper() + what.sentence[1:], *explain(trial, what)]
    said.append(f"The smallest workload that was found: {trial.workload.about}.")
    return ExerciseVerdict(False, said, draw(trial, what))


def right(*sentences: str) -> ExerciseVerdict:
    """The verdict on what passed, with what was checked."""
    checked = (
        f"Checked on {NUM_WORKLOADS} random workloads: every token of every request is the one "
        "that it gets alone, and every request ends once."
    )
    return ExerciseVerdict(True, [checked, *sentences])
