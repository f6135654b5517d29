"""How much of the host's work a loop hides: the same work added to every step of two loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ...compare import fresh, run_to_end, warm_up
from ...devices.cost import MILLISECOND, CostModel
from ..case import Case
from ..rows import Figure, figure, interleave
from ..steady import steady_step_ms

AIMS_MS = {("thread", 20.0): 15.0, ("mlx", 20.0): 12.0}  # of SmolLM2, two cores


def step_ms(case: Case, loop: str, work_ms: float) -> float:
    """Milliseconds of a settled decode step with ``work_ms`` of pure Python added to the host."""
    half = round(work_ms * MILLISECOND / 2)
    cost = CostModel({"schedule": half, "process": half})
    requests = [fresh(request) for request in case.requests]
    run = run_to_end(loop, case.device, case.model, requests, case.config, cost)
    return steady_step_ms(run.trace)


def hidden(
    case: Case,
    loop: str,
    works_ms: Sequence[float],
    repetitions: int,
    report: Callable[[str], None] = lambda doing: None,
) -> list[Figure]:
    """For each amount of work: what a step costs in both loops, and how much of it is hidden.

    Hidden is what the work costs a serial step, less what it costs a step of ``loop``.
    """
    warm_up(case.device, case.model, case.config)
    measures = {
        f"{name} step, {work:g} ms added": partial(step_ms, case, name, work)
        for work in (0.0, *works_ms)
        for name in ("serial", loop)
    }
    values = interleave(measures, repetitions, report)
    figures = [figure(name, taken, "ms") for name, taken in values.items()]
    for work in works_ms:
        serial, other = (
            [
                after - before
                for after, before in zip(
                    values[f"{name} step, {work:g} ms added"],
                    values[f"{name} step, 0 ms added"],
                    strict=True,
                )
            ]
            for name in ("serial", loop)
        )
        saved = [a - b for a, b in zip(serial, other, strict=True)]
        aim = AIMS_MS.get((case.device, work))
        figures.append(figure(f"{loop} hides, of {work:g} ms", saved, "ms", aim))
    return figures
