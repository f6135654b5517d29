"""How much of what could be hidden a loop hides, and what the lock and the cores cost.

Of a settled decode step, all in milliseconds:

- ``serial`` and ``overlapped``: from the start of a step's forward to the start of the next one's,
  in the loop ``serial`` and in the device's overlapped loop.
- ``device``: how long the device was busy in a step of the serial run, undisturbed by the host;
  how much longer beside it, is what the host's company costs it.
- ``host`` = serial - device: what the host takes when the device does nothing meanwhile.
- ``ideal`` = max(host, device): no order of the same work takes less, and
  ``hideable`` = min(host, device) = serial - ideal is what overlap could save.
- ``hidden`` = serial - overlapped: what it does save. Its aim is 90 % of what is hideable.

The host's added work is pure Python. What the lock costs is how much longer the overlapped step
takes than with the same work in a worker process; what the cores cost, how much longer that takes
than with a sleep (``ways.py``).

The runs of a cell are short and take turns often, as a machine that is shared is faster at one
second and slower at the next. Where they still disagree, the aim is neither met nor missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import median

from ...checks.overlap.overlap import device_busy, forwards, intersection, length
from ...compare import fresh, run_to_end, warm_up
from ...devices.cost import MILLISECOND, NO_COST
from ...devices.host_work import Way, done_by
from ..rows import Figure, Measure, figure, interleave, not_measured
from ..steady import SETTLED
from .hidden import Case
from .ways import PROCESS, PYTHON, SLEEP

AIM = 90.0  # percent of what could be hidden
LEAST_MS = 1.0  # where less could be hidden, its share says nothing, and has no aim
TURNS = 2  # of each run in a repetition
AGREE = 0.8  # of the runs have to be on one side of the aim, for it to be met or missed


@dataclass(frozen=True)
class Cell:
    """A workload, the loop that overlaps it, and the amounts of work to add to a step.

    With a ``reason`` there is nothing to measure.
    """

    name: str
    case: Case
    loop: str
    works_ms: Sequence[float]
    reason: str = ""


@dataclass(frozen=True)
class Step:
    """What a settled step took, by the trace."""

    whole_ms: float
    device_ms: float


def step_of(case: Case, loop: str, work_ms: float, way: Way) -> Step:
    """Run the workload once; medians over its settled steps."""
    cost = NO_COST.with_host_work(round(work_ms * MILLISECOND))
    with done_by(way):
        requests = [fresh(request) for request in case.requests]
        run = run_to_end(loop, case.device, case.model, requests, case.config, cost)
    starts = [item.start for item in forwards(run.trace)][SETTLED:-SETTLED]
    busy = device_busy(run.trace)
    steps = list(pairwise(starts))
    return Step(
        median(end - start for start, end in steps) / MILLISECOND,
        median(length(intersection(busy, (step,))) for step in steps) / MILLISECOND,
    )


def overlap_figures(
    cell: Cell, ways: Mapping[str, Way], repetitions: int, report: Callable[[str], None]
) -> list[Figure]:
    """All figures of one cell, from interleaved runs."""
    if cell.reason:
        return [not_measured(f"{cell.name}: hidden", "%", cell.reason)]
    warm_up(cell.case.device, cell.case.model, cell.case.config)
    alone: dict[float, list[float]] = {work: [] for work in cell.works_ms}
    beside: dict[float, list[float]] = {work: [] for work in cell.works_ms}

    def serial(work: float) -> float:
        step = step_of(cell.case, "serial", work, ways[PYTHON])
        alone[work].append(step.device_ms)
        return step.whole_ms

    def overlapped(work: float, way: str) -> float:
        step = step_of(cell.case, cell.loop, work, ways[way])
        if way == PYTHON:
            beside[work].append(step.device_ms)
        return step.whole_ms

    measures: dict[str, Measure] = {}
    for work in cell.works_ms:
        measures[f"{cell.name}, serial, {work:g} ms"] = partial(serial, work)
        for way in ways if work else [PYTHON]:
            measures[f"{cell.name}, {work:g} ms by {way}"] = partial(overlapped, work, way)
    values = interleave(measures, TURNS * repetitions, report)
    return [
        row
        for work in cell.works_ms
        for row in rows_of(
            f"{cell.name}, {work:g} ms",
            values[f"{cell.name}, serial, {work:g} ms"],
            alone[work],
            beside[work],
            {way: values.get(f"{cell.name}, {work:g} ms by {way}", []) for way in ways},
        )
    ]


def rows_of(
    name: str,
    serial: list[float],
    alone: list[float],
    beside: list[float],
    taken: Mapping[str, list[float]],
) -> list[Figure]:
    """The figures of one amount of work.

    ``alone`` and ``beside`` are the device's times in serial steps and beside the host, and
    ``taken`` has overlapped steps by way, or none.
    """
    host = [max(0.0, whole - part) for whole, part in zip(serial, alone, strict=True)]
    ideal = [max(pair) for pair in zip(host, alone, strict=True)]
    longer = less(beside, alone)
    why = f"beside the host the device takes {median(longer):.1f} ms longer"
    costs = []
    if taken[SLEEP]:
        lock, cores = less(taken[PYTHON], taken[PROCESS]), less(taken[PROCESS], taken[SLEEP])
        why += f"; the lock costs {median(lock):.1f} ms, and the cores {median(cores):.1f}"
        costs = [
            hidden(f"{name}: hidden, by a worker process", serial, ideal, taken[PROCESS]),
            figure(f"{name}: the lock costs", lock, "ms"),
            figure(f"{name}: the cores cost", cores, "ms"),
        ]
    return [
        figure(f"{name}: host", host, "ms"),
        figure(f"{name}: device", alone, "ms"),
        figure(f"{name}: device, longer beside the host", longer, "ms"),
        figure(f"{name}: makespan / max(host, device)", divided(taken[PYTHON], ideal), "ratio"),
        figure(f"{name}: speed-up / ideal", divided(ideal, taken[PYTHON]), "ratio"),
        hidden(f"{name}: hidden", serial, ideal, taken[PYTHON], why),
        *costs,
    ]


def hidden(
    name: str, serial: list[float], ideal: list[float], taken: list[float], why: str = ""
) -> Figure:
    """The share of what could be hidden that is hidden; ``why`` it is no more than that."""
    hideable = less(serial, ideal)
    share = [100 * part for part in divided(less(serial, taken), hideable)]
    row = figure(name, share, "%", AIM if median(hideable) >= LEAST_MS else None)
    same_side = [(value >= AIM) == row.met for value in share]
    if row.met is not None and sum(same_side) < AGREE * len(share):
        steps = f"serial steps alone from {min(serial):.1f} to {max(serial):.1f} ms"
        why = f"not told: {steps}, of which {median(hideable):.1f} could be hidden"
        return replace(row, aim=None, reason=why)
    return replace(row, reason=why) if row.met is False else row


def less(one: list[float], other: list[float]) -> list[float]:
    """Differences, repetition by repetition."""
    return [a - b for a, b in zip(one, other, strict=True)]


def divided(one: list[float], other: list[float]) -> list[float]:
    """Quotients, repetition by repetition; 0 where there is nothing to divide by."""
    return [a / b if b else 0.0 for a, b in zip(one, other, strict=True)]
