"""Several loops side by side, a few steps at a time, and what a step of each of them takes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ...devices.cost import MILLISECOND, NO_COST
from ...devices.wall_clock import Way, compute, done_by
from ..arm import SETTLING, running
from ..case import Case
from .step import ROUND, Step, steps_by_round, typical

SPARE = 3  # tokens of a request that come after the last round: nobody ends in one


@dataclass(frozen=True)
class Entry:
    """A loop with so many milliseconds of work added to a step, and the way to do it.

    ``switch_s``: after how long a thread takes the interpreter from a busy one; None is for what
    the device wants.
    """

    loop: str
    work_ms: float = 0.0
    way: Way = compute
    switch_s: float | None = None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside, the host works as this entry says."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(self.switch_s or before)
        try:
            with done_by(self.way):
                yield
        finally:
            sys.setswitchinterval(before)


def tokens_for(rounds: int) -> int:
    """New tokens of a request that lives through so many rounds."""
    return SETTLING + rounds * ROUND + SPARE


def rounds_in(new_tokens: int) -> int:
    """For how many rounds such requests last."""
    return (new_tokens - SETTLING - SPARE) // ROUND


def in_turn(case: Case, entries: Mapping[str, Entry], rounds: int) -> dict[str, Step]:
    """A step of each, by its name; the first one tells how fast the machine was in each round.

    Raises:
        ArmStopped: a request has failed, or is too short.
    """
    arms = {}
    with ExitStack() as stack:
        for name, entry in entries.items():
            cost = NO_COST.with_host_work(round(entry.work_ms * MILLISECOND))
            arms[name] = stack.enter_context(running(case, entry.loop, cost, together=True))
        for _ in range(rounds):
            for name, arm in arms.items():
                with entries[name].at_work():
                    arm.go_on(ROUND)
        found = {name: steps_by_round(arm.finish().trace, rounds) for name, arm in arms.items()}
    first = next(iter(found.values()))
    return {name: typical(steps, first) for name, steps in found.items()}
