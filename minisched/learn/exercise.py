"""Tries many small workloads, shrinks the first that fails, and says what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .counterexample import draw_until
from .figure import Figure
from .guard import is_late
from .laws import Broken, broken
from .trial import Trial
from .verdict import Verdict
from .workload import Shape, Workload, simpler

NUM_WORKLOADS, MOST_SHRINKS = 60, 80
Play = Callable[[Workload], Trial]
Explain = Callable[[Trial, Broken], Sequence[str]]
Draw = Callable[[Trial, Broken], Sequence[Figure]]
Law = Callable[[Trial], Broken | None]


@dataclass(frozen=True)
class Failure:
    """A workload on which a learner's lines break a law."""

    trial: Trial
    what: Broken


def no_words(trial: Trial, what: Broken) -> Sequence[str]:
    """Nothing more to say."""
    return ()


def draw_trial(trial: Trial, what: Broken) -> list[Figure]:
    """The steps up to the one at which the law is broken."""
    title, flag = {
        "identity": ("The counterexample: a wrong token", f"step {what.step}: {what.rid}'s token"),
        "waits": ("The counterexample", f"step {what.step}: {what.rid} waits"),
    }.get(what.law, ("The run as far as it came", ""))
    figure = draw_until(trial.trace, what.step, title, flag)
    return [figure] if figure else []


def try_all(
    play: Play,
    shape: Shape,
    law: Law = broken,
    explain: Explain = no_words,
    draw: Draw = draw_trial,
    hard: Sequence[Workload] = (),
) -> Verdict | None:
    """Play random workloads of a shape, and then some ``hard`` ones.

    Gives the verdict on the first that breaks a law, shrunk; None if all is well.
    """
    for workload in [*map(shape.draw, range(NUM_WORKLOADS)), *hard]:
        if failure := attempt(play, law, workload):
            return verdict_on(shrink(failure, play, law), explain, draw)
    return None


def attempt(play: Play, law: Law, workload: Workload) -> Failure | None:
    """Play one workload; a failure if a law does not hold."""
    trial = play(workload)
    what = law(trial)
    return Failure(trial, what) if what else None


def shrink(failure: Failure, play: Play, law: Law) -> Failure:
    """The simplest workload to be found that breaks the same law."""
    tries: Iterator[Workload] = simpler(failure.trial.workload)
    for _ in range(15 if failure.trial.is_endless else MOST_SHRINKS):
        workload = next(tries, None)
        if workload is None or is_late():
            break
        found = attempt(play, law, workload)
        if found and not is_late() and found.what.law == failure.what.law:
            failure, tries = found, simpler(workload)
    return failure


def verdict_on(failure: Failure, explain: Explain, draw: Draw) -> Verdict:
    """Words and pictures for a failure."""
    trial, what = failure.trial, failure.what
    said = [what.sentence[:1].upper() + what.sentence[1:], *explain(trial, what)]
    said.append(f"The smallest workload that was found: {trial.workload.about}.")
    return Verdict(False, said, draw(trial, what))


def right(*sentences: str) -> Verdict:
    """The verdict on what passed, with what was checked."""
    checked = (
        f"Checked on {NUM_WORKLOADS} random workloads: every token of every request is the one "
        "that it gets alone, and every request ends once."
    )
    return Verdict(True, [checked, *sentences])
