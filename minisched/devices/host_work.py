"""Pure-Python work of a chosen length, to make a wall-clock host as busy as a real scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from time import perf_counter_ns

ROUNDS = 20_000  # a millisecond or so: short enough to find a run that nobody disturbed
Way = Callable[[int], object]  # spends so many nanoseconds of work


def work(rounds: int) -> int:
    """Arithmetic that holds the interpreter lock for as long as ``rounds`` take."""
    x = 1
    for _ in range(rounds):
        x = (x * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
    return x


@cache
def nanoseconds_per_round() -> float:
    """The shortest of 20 timings, measured once in a process while nothing else should run."""
    times = []
    for _ in range(20):
        start = perf_counter_ns()
        work(ROUNDS)
        times.append(perf_counter_ns() - start)
    return min(times) / ROUNDS


def rounds_of(cost: int) -> int:
    """How many rounds take ``cost`` nanoseconds when a thread runs alone."""
    return round(cost / nanoseconds_per_round())


def compute(cost: int) -> None:
    """The work itself, in this thread."""
    work(rounds_of(cost))


_ways: list[Way] = [compute]


def spend(cost: int) -> None:
    """Do the amount of work that takes ``cost`` nanoseconds when this thread runs alone.

    It is a fixed amount of work, not a deadline: while another thread holds the interpreter lock
    or the core, no time passes for it. Only so does a measurement show what is really hidden.
    """
    if cost:
        _ways[-1](cost)


@contextmanager
def done_by(way: Way) -> Iterator[None]:
    """Let ``way`` do the work meanwhile: a bench asks what it costs elsewhere."""
    _ways.append(way)
    try:
        yield
    finally:
        _ways.remove(way)
