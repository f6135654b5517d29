"""What recording costs a loop on a real device, beside the same loop with nothing recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median

from ..devices.cost import MILLISECOND
from ..loops.run import warm_up
from ..trace import NullRecorder, Recorder
from .arm import SETTLING, Arm, Spent, running
from .case import Case
from .rows import Figure, figure

AIM = 1.03  # at most 3 % more with recording
HOST_AIM = 3.0  # per cent of a step
ROUND = 4  # turns that are timed together
KINDS = {"recorded": Recorder, "not recorded": NullRecorder}
Pair = tuple[Spent, Spent]  # of a round: recorded, and not recorded


def recording(
    case: Case, loop: str, repetitions: int, report: Callable[[str], None]
) -> list[Figure]:
    """Both loops, a few steps at a time.

    By the clock, what the streams' threads and the device's watcher record counts too. The host's
    own time goes on neither while the host waits nor while others have the processor.
    """
    warm_up(case.device, case.model, case.config)
    taken = []
    for repetition in range(repetitions):
        report(f"{loop} on {case.device}, repetition {repetition + 1} of {repetitions}")
        taken.append(in_turn(case, loop))
    return rows_of(f"{loop} on {case.device}", taken)


def in_turn(case: Case, loop: str) -> list[Pair]:
    """As many rounds as the requests are long."""
    longest = max(request.params.max_new_tokens for request in case.requests)
    pairs = []
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(running(case, loop, recorder=kind, together=True))
            for kind in KINDS.values()
        )
        for _ in range((longest - SETTLING - 1) // (1 + ROUND)):
            pairs.append((timed(one), timed(other)))
        one.finish()
        other.finish()
    return pairs


def timed(arm: Arm) -> Spent:
    """A round, behind a step that waits for nothing: the one before it ended in the other's."""
    arm.go_on(1)
    return arm.go_on(ROUND)


def rows_of(name: str, taken: Sequence[Sequence[Pair]]) -> list[Figure]:
    """The figures of all repetitions; a repetition's is the median of its rounds."""
    steps = [
        [median(pair[which].wall for pair in pairs) / ROUND / MILLISECOND for pairs in taken]
        for which in range(len(KINDS))
    ]
    ratios = [median(more.wall / less.wall for more, less in pairs) for pairs in taken]
    added = [
        median(100 * (more.host - less.host) / less.wall for more, less in pairs) for pairs in taken
    ]
    drift = f"steps not recorded take {min(steps[1]):.1f} to {max(steps[1]):.1f} ms"
    own = f"recording: {name}, added to the host's time"
    return [
        *(figure(f"{name}, {kind}", step, "ms") for kind, step in zip(KINDS, steps, strict=True)),
        figure(f"recording: {name}", ratios, "ratio", AIM, at_most=True).because(drift),
        figure(own, added, "% of a step", HOST_AIM, at_most=True),
    ]
