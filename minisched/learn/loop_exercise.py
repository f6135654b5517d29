"""Write a loop that overlaps: the laws on many workloads, and then its speed."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..loops.run import Run
from ..trace import Trace
from .callable_check import one_argument
from .exercise import right, try_all
from .figure import timing
from .guard import in_time
from .laws import BrokenLaw, broken, last_step
from .simulate import milliseconds, settled_step_ms, simulate
from .trial import Loop, Trial, play
from .verdict import ExerciseVerdict
from .wording import times
from .workload import Asked, ExerciseWorkload, WorkloadLimits

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
