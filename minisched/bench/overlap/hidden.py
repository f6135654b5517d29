"""How much of the host's work a loop hides: the same work added to every step of two loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...loops.run import warm_up
from ..case import Case
from ..rows import Figure, figure
from .in_turn import Entry, in_turn, rounds_in, tokens_for
from .shares import less
from .step import Step

AIMS_MS = {("thread", 20.0): 15.0, ("mlx", 20.0): 12.0}  # of SmolLM2, two cores


def hidden(
    case: Case,
    loop: str,
    works_ms: Sequence[float],
    repetitions: int,
    report: Callable[[str], None] = lambda doing: None,
) -> list[Figure]:
    """For each amount of work: what a step costs in both loops, and how much of it is hidden.

    Hidden is what the work costs a serial step, less what it costs a step of ``loop``.

    Raises:
        ValueError: the requests are too short for a round.
    """
    shortest = min(request.params.max_new_tokens for request in case.requests)
    rounds = rounds_in(shortest)
    if rounds < 1:
        raise ValueError(
            f"--max-new-tokens is {shortest}, but bench hidden needs at least {tokens_for(1)}."
        )
    warm_up(case.device, case.model, case.config)
    entries = {
        f"{name} step, {added:g} ms added": Entry(name, added)
        for added in (0.0, *works_ms)
        for name in ("serial", loop)
    }
    taken: list[dict[str, Step]] = []
    for repetition in range(repetitions):
        report(f"serial and {loop}, repetition {repetition + 1} of {repetitions}")
        taken.append(in_turn(case, entries, rounds))
    return hidden_rows(
        case.device,
        loop,
        works_ms,
        {name: [turn[name].whole_ms for turn in taken] for name in entries},
    )


def hidden_rows(
    device: str, loop: str, works_ms: Sequence[float], steps: Mapping[str, list[float]]
) -> list[Figure]:
    """The figures of all steps, in milliseconds by name; then what is hidden of each work."""
    figures = [figure(name, times, "ms") for name, times in steps.items()]
    for added in works_ms:
        serial, other = (
            less(steps[f"{name} step, {added:g} ms added"], steps[f"{name} step, 0 ms added"])
            for name in ("serial", loop)
        )
        aim = AIMS_MS.get((device, added))
        figures.append(figure(f"{loop} hides, of {added:g} ms", less(serial, other), "ms", aim))
    return figures
