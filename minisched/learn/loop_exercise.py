"""Write a loop that overlaps: the laws on many workloads, and then its speed."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import Any

from ..checks.overlap import measure
from ..loops.run import Run
from ..trace import Trace
from .figure import LessonFigure, timing
from .grade import ExerciseVerdict
from .guard import TooLong, blame, bounded, in_time, one_argument, takes
from .runs import TIE, makespan_ms, milliseconds, outcome, settled_step_ms, simulate, times
from .trial import (
    Asked,
    BrokenLaw,
    ExerciseWorkload,
    Loop,
    Trial,
    WorkloadLimits,
    broken,
    last_step,
    play,
)
from .verdicts import right, try_all

PAIRS = ((6, 10), (10, 6), (9, 9))  # host and device, in ms a step
COPY, MOST_REQUESTS = 1, 4


@in_time
def check_loop(my_loop: Loop) -> ExerciseVerdict:
    """Whether a loop gives the right tokens, ends, and hides the shorter of host and device.

    ``my_loop(engine)`` is a generator like those in ``loops/``, turned with a ring FutureMap.
    """
    if problem := one_argument(my_loop, "my_loop", "engine", generator=True):
        return ExerciseVerdict(False, [problem])
    if failed := try_all(
        partial(play, loop=my_loop, overrun=0), WorkloadLimits(), law=keeps_to_two
    ):
        return failed
    return too_slow(my_loop, "ring", "overlap") or right(
        f"It overlaps: with {_pairs()} a settled step takes, on average, no longer than it must.",
        "At most two steps were in flight, and no turn was spent on nothing.",
    )


def keeps_to_two(trial: Trial) -> BrokenLaw | None:
    """The laws, and: at most two steps in flight, and ``on_idle`` where there is nothing to do."""
    if found := broken(trial):
        return found
    count, step = trial.steps.deepest
    if count > 2:
        sentence = (
            f"when step {step} was launched, {count} steps were on their way and none of them was "
            f"processed: a queue of {count}. Two keep the device busy; with more, a request that "
            "ends leaves more steps behind it that are wasted."
        )
        return BrokenLaw("depth", sentence, step)
    if trial.steps.empty_turns:
        sentence = (
            f"in {times(trial.steps.empty_turns, 'turn')} your loop launched nothing, processed "
            "nothing and did not call on_idle(). That is a busy loop: it keeps a CPU busy with "
            "nothing, until the next request comes."
        )
        return BrokenLaw("idle", sentence, last_step(trial))
    return None


def too_slow(loop: Loop, relay: str, rival: str) -> ExerciseVerdict | None:
    """A verdict if a settled step takes longer than max(d, h, c, (d + h + c) / 2)."""
    for count, (host, device) in [*((2, pair) for pair in PAIRS), (MOST_REQUESTS, PAIRS[0])]:
        trial = steady_trial(loop, relay, host, device, count)
        if trial.problem:
            return ExerciseVerdict(False, [trial.problem])
        took, best = step_of(trial.trace), best_step_ms(host, device, COPY)
        if took is None or took > best + 1e-6:
            return _slow_verdict(trial, rival, host, device, took, best)
    return None


def steady_trial(loop: Loop, relay: str, host: int, device: int, count: int = 2) -> Trial:
    """A few equal requests that decode for a while."""
    asked = tuple(Asked(rid, tuple(range(at, at + 4)), 14) for at, rid in enumerate("abcd"[:count]))
    return play(ExerciseWorkload(asked), loop, relay, cost=milliseconds(host, device, COPY))


def best_step_ms(host: float, device: float, copy: float) -> float:
    """What a settled step takes with two steps in flight."""
    return max(device, host, copy, (device + host + copy) / 2)


def step_of(trace: Trace) -> float | None:
    """Milliseconds from one settled step to the next."""
    return settled_step_ms(Run(trace.loop, (), trace))


def _slow_verdict(
    trial: Trial, rival: str, host: int, device: int, took: float | None, best: float
) -> ExerciseVerdict:
    count = len(trial.workload.asked)
    other = simulate(
        rival, host_ms=host, device_ms=device, copy_ms=COPY, requests=count, new_tokens=14
    )
    lasted: Any = "too few settled steps" if took is None else f"{took:g} ms a step"
    return ExerciseVerdict(
        False,
        [
            f"Every token is right, but it is slow. With {count} requests, host {host} ms, "
            f"device {device} ms and copy {COPY} ms a step, it takes {lasted}, on "
            f"average; {best:g} ms would be enough.",
            "Look at the gaps: whose turn is it while the other one waits? Below yours: what a "
            "loop that overlaps does with the same requests.",
        ],
        [timing(trial.trace, other)],
    )


def _pairs() -> str:
    return "; ".join(f"host {host} and device {device} ms" for host, device in PAIRS)


# -- Steps of which nobody needed the tokens, outlined in a picture of the whole run ---------------

STYLE = (
    "<style>.wasted { fill: none !important; stroke: var(--bubble) !important; stroke-width: 2 } "
    "text.of-wasted { fill: var(--bubble); font-size: 11px }</style>"
)


def mark_wasted(figure: LessonFigure, trace: Trace) -> LessonFigure:
    """The same picture; boxes on the device of steps with a wasted row of ``trace`` are outlined.

    ``trace`` is the run at the bottom of the picture, of one request: a wasted row is a wasted
    step.
    """
    steps = {mark.attrs["step"] for mark in trace.marks if mark.name == "wasted row"}
    svg = figure.svg
    for item in trace.slices:
        if item.step in steps and item.lane != "host":
            svg = _outline(svg, f'data-id="{item.id}" data-start="{item.start}"')
    return LessonFigure(svg.replace("</svg>", f"{STYLE if steps else ''}</svg>"))


def _outline(svg: str, where: str) -> str:
    """The last box with these attributes outlined, and the words on it."""
    at = svg.rfind(where)
    if at < 0:
        return svg
    begin = svg.rindex("<rect", 0, at)
    end = svg.find("</rect>", at) + len("</rect>")
    box = re.sub(r'class="(box|thin) [\w-]+"', r'class="\1 wasted"', svg[begin:end])
    box = box.replace("<title>", "<title>wasted: ", 1)
    words = re.match(r'<text class="on-[\w-]+"([^>]*)>([^<]*)</text>', svg[end:])
    if words is None:
        return svg[:begin] + box + svg[end:]
    said = f'<text class="of-wasted"{words[1]}>{_wasted(words[2])}</text>'
    return svg[:begin] + box + said + svg[end + len(words[0]) :]


def _wasted(label: str) -> str:
    return label.replace("forward", "wasted")


# -- How long a settled step takes: a formula held against runs; and when overlap loses ------------
#
# A step in flight is one that was launched and has not been processed: serial has one, overlap two.

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
