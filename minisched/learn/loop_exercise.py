"""Write a loop that overlaps: the laws on many workloads, and then its speed."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..loops.run import Run
from ..trace import Trace
from .callable_check import one_argument
from .exercise import right, try_all
from .figure import timing
from .simulate import milliseconds, settled_step_ms, simulate
from .trial import Loop, Trial, play
from .verdict import Verdict
from .workload import Asked, Shape, Workload

PAIRS = ((6, 10), (10, 6), (9, 9))  # host and device, in ms a step
COPY = 1


def check_loop(my_loop: Loop) -> Verdict:
    """Whether a loop gives the right tokens, ends, and hides the shorter of host and device.

    ``my_loop(engine)`` is a generator like those in ``loops/``, turned with a ring FutureMap.
    """
    if problem := one_argument(my_loop, "my_loop", "engine", generator=True):
        return Verdict(False, [problem])
    if failed := try_all(partial(play, loop=my_loop), Shape()):
        return failed
    return too_slow(my_loop, "ring", "overlap") or right(
        f"It overlaps: with {_pairs()} a settled step takes no longer than it must."
    )


def too_slow(loop: Loop, relay: str, rival: str) -> Verdict | None:
    """A verdict if a settled step takes longer than max(d, h, c, (d + h + c) / 2)."""
    for host, device in PAIRS:
        trial = steady_trial(loop, relay, host, device)
        took, best = step_of(trial.trace), best_step_ms(host, device, COPY)
        if took is None or took > best + 1e-6:
            return _slow_verdict(trial, rival, host, device, took, best)
    return None


def steady_trial(loop: Loop, relay: str, host: int, device: int) -> Trial:
    """Two equal requests that decode for a while."""
    asked = tuple(Asked(rid, tuple(range(at, at + 4)), 14) for at, rid in enumerate("ab"))
    return play(Workload(asked), loop, relay, cost=milliseconds(host, device, COPY))


def best_step_ms(host: float, device: float, copy: float) -> float:
    """What a settled step takes with two steps in flight."""
    return max(device, host, copy, (device + host + copy) / 2)


def step_of(trace: Trace) -> float | None:
    """Milliseconds from one settled step to the next."""
    return settled_step_ms(Run(trace.loop, (), trace))


def _slow_verdict(
    trial: Trial, rival: str, host: int, device: int, took: float | None, best: float
) -> Verdict:
    other = simulate(rival, host_ms=host, device_ms=device, copy_ms=COPY, new_tokens=14)
    lasted: Any = "too few settled steps" if took is None else f"{took:g} ms a step"
    return Verdict(
        False,
        [
            f"Every token is right, but it is slow. With host {host} ms, device {device} ms and "
            f"copy {COPY} ms a step, it takes {lasted}; {best:g} ms would be enough.",
            "Look at the gaps: whose turn is it while the other one waits? Below yours: what a "
            "loop that overlaps does with the same requests.",
        ],
        [timing(trial.trace, other)],
    )


def _pairs() -> str:
    return "; ".join(f"host {host} and device {device} ms" for host, device in PAIRS)
