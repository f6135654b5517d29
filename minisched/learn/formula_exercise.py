"""How long a settled step takes: a formula held against runs; and when overlap loses.

A step in flight is one that was launched and has not been processed: serial has one, overlap two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product

from ..checks.overlap import measure
from ..loops.run import Run
from .blame import blame
from .callable_check import takes
from .figure import timing
from .guard import TooLong, bounded, in_time
from .simulate import TIE, makespan_ms, outcome, settled_step_ms, simulate
from .verdict import ExerciseVerdict
from .wasted_steps import mark_wasted

COSTS, COPIES = (6, 10, 2, 14), (1, 0, 4, 20)  # ms a step; of host and device, and of the copy
LOOP_OF = {1: "serial", 2: "overlap"}  # by steps in flight
StepTime = Callable[[float, float, float, int], float]


@in_time
def check_step_time(step_time: StepTime) -> ExerciseVerdict:
    """Hold ``step_time(host, device, copy, in_flight)``, in ms, against a run for every cost."""
    if problem := takes(step_time, "step_time", "host", "device", "copy", "in_flight"):
        return ExerciseVerdict(False, [problem])
    cases = list(product(LOOP_OF, COPIES, COSTS, COSTS))
    for in_flight, copy, host, device in cases:
        if failed := _against_a_run(step_time, host, device, copy, in_flight):
            return failed
    return ExerciseVerdict(
        True,
        [
            f"Checked against {len(cases)} runs: host and device at {_listed(COSTS)} ms, copies at "
            f"{_listed(COPIES)} ms, with one and two steps in flight. On average, a settled "
            "step took exactly what you say."
        ],
    )


def _against_a_run(
    step_time: StepTime, host: int, device: int, copy: int, in_flight: int
) -> ExerciseVerdict | None:
    given = f"With host {host}, device {device}, copy {copy} ms and in_flight {in_flight}"
    try:
        with bounded():
            said = step_time(host, device, copy, in_flight)
    except (Exception, TooLong) as error:
        return ExerciseVerdict(False, [f"{given}: {blame(error)}"])
    if isinstance(said, bool) or not isinstance(said, int | float):
        kind = type(said).__name__
        return ExerciseVerdict(
            False, [f"{given}, step_time gives {said!r}, of type {kind}, not a number."]
        )
    run = steady(LOOP_OF[in_flight], host, device, copy)
    took = settled_step_ms(run)
    assert took is not None
    if abs(said - took) < 1e-6:
        return None
    words = f"{given}, you say {said:g} ms; the run took {took:g} ms from one step to the next"
    return ExerciseVerdict(False, [f"{words}, on average.", _hint(said, took)], [timing(run)])


def _hint(said: float, took: float) -> str:
    if said > took:
        return "Some of what you add up happens at the same time: what lies above what?"
    return "Something takes longer than you say: which way round, or whose lane, has no gap in it?"


@cache
def steady(loop: str, host: int, device: int, copy: int) -> Run:
    """One request that decodes long enough to settle."""
    return simulate(
        loop, host_ms=host, device_ms=device, copy_ms=copy, requests=1, new_tokens=14
    )  # fmt: skip


@in_time
def check_losing_case(
    *, host_ms: float, device_ms: float, new_tokens: int, copy_ms: float = 1
) -> ExerciseVerdict:
    """Whether overlap takes longer than serial with these costs, for one request; both drawn.

    A stop token ends it after ``new_tokens``, which neither loop knows before.
    """
    try:
        _at_most(new_tokens, 40)
        runs = [
            simulate(loop, host_ms=host_ms, device_ms=device_ms, copy_ms=copy_ms,
                     requests=1, new_tokens=new_tokens, stop=True)
            for loop in LOOP_OF.values()
        ]  # fmt: skip
    except (TypeError, ValueError) as error:
        return ExerciseVerdict(False, [str(error)])
    serial, overlap = map(makespan_ms, runs)
    report = measure(runs[1].trace)
    said = f"Serial takes {serial:g} ms, overlap {overlap:g} ms"
    figures = [mark_wasted(timing(*runs, whole=True), runs[1].trace)]
    if (found := outcome(serial, overlap)) != "lose":
        tie = f"a tie, within {100 * TIE:g} %"
        words = tie if found == "tie" else f"overlap wins, {serial / overlap:.2f}×"
        hint = "What does overlap do that serial does not? Count the steps of both."
        return ExerciseVerdict(False, [f"{said}: {words}.", hint], figures)
    return ExerciseVerdict(
        True,
        [
            f"{said}: overlap loses, {serial / overlap:.2f}×. It ran {report.steps} steps, and "
            f"{wasted(report.wasted_rows)}: when the last step was launched, the host had not yet "
            "seen the stop token that ended the request."
        ],
        figures,
    )


def wasted(rows: int) -> str:
    """How many rows nobody had any use for; of one request, a step has one row."""
    return f"{rows} of them {'was' if rows == 1 else 'were'} wasted, outlined in the picture"


def _at_most(count: int, most: int) -> None:
    """Whether a run of so many tokens can be drawn.

    Raises:
        ValueError: there are too many, or it is no whole number.
    """
    if not isinstance(count, int) or count > most:
        raise ValueError(f"new_tokens is {count}, but it must be a whole number of at most {most}.")


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, sorted(numbers)))
