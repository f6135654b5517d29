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
- ``side by side``: of the overlapped step alone, how much of the shorter of host and device ran
  beside the longer. It tells that the order is right, on a machine that is faster in one run than
  in the next too. What running side by side costs, such as waiting for the lock, it does not tell:
  so it has no aim.

The host's added work is pure Python. What the lock costs is how much longer the overlapped step
takes than with the same work in a worker process; what the cores cost, how much longer that takes
than with a sleep (``ways.py``).

The runs of a cell are short and take turns often, as a machine that is shared is faster at one
second and slower at the next. Where they still disagree, the aim is neither met nor missed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from ...compare import warm_up
from ...devices.cost import MILLISECOND
from ...devices.host_work import Way
from ..rows import Figure, Measure, figure, interleave, not_measured
from .hidden import Case
from .step import Step, step_of
from .ways import PROCESS, PYTHON, SLEEP, slowness, stretched

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


def overlap_figures(
    cell: Cell, ways: Mapping[str, Way], repetitions: int, report: Callable[[str], None]
) -> list[Figure]:
    """All figures of one cell, from interleaved runs."""
    if cell.reason:
        return [not_measured(f"{cell.name}: hidden", "%", cell.reason)]
    warm_up(cell.case.device, cell.case.model, cell.case.config)
    steps: dict[tuple[float, str], list[Step]] = defaultdict(list)
    alone: dict[float, list[float]] = defaultdict(list)  # milliseconds that the added work takes

    def run(work: float, how: str) -> float:
        loop, name = ("serial", PYTHON) if how == "serial" else (cell.loop, how)
        way = ways[name]
        if name == SLEEP:
            factor = slowness(round(work * MILLISECOND))
            alone[work].append(factor * work)
            way = stretched(way, factor)
        steps[work, how].append(step_of(cell.case, loop, work, way))
        return steps[work, how][-1].whole_ms

    measures: dict[str, Measure] = {
        f"{cell.name}, {work:g} ms, {how}": partial(run, work, how)
        for work in cell.works_ms
        for how in ["serial", *(ways if work else [PYTHON])]
    }
    interleave(measures, TURNS * repetitions, report)
    return [
        row
        for work in cell.works_ms
        for row in rows_of(
            f"{cell.name}, {work:g} ms",
            steps[work, "serial"],
            {way: steps[work, way] for way in ways},
            alone[work],
        )
    ]


def rows_of(
    name: str, serial: list[Step], steps: Mapping[str, list[Step]], added: Sequence[float] = ()
) -> list[Figure]:
    """The figures of one amount of work; ``steps`` has overlapped steps by way, or none.

    ``added``: milliseconds that the added work takes by itself, turn by turn.
    """
    whole, alone = [step.whole_ms for step in serial], [step.device_ms for step in serial]
    host = [max(0.0, both - part) for both, part in zip(whole, alone, strict=True)]
    ideal = [max(pair) for pair in zip(host, alone, strict=True)]
    taken = {way: [step.whole_ms for step in found] for way, found in steps.items()}
    longer = less([step.device_ms for step in steps[PYTHON]], alone)
    why = f"beside the host the device takes {median(longer):.1f} ms longer"
    costs = []
    if taken[SLEEP]:
        lock, cores = less(taken[PYTHON], taken[PROCESS]), less(taken[PROCESS], taken[SLEEP])
        why += f"; the lock costs {median(lock):.1f} ms, and the cores {median(cores):.1f}"
        aside = f"the cores cost {median(cores):.1f} ms"
        costs = [
            *([figure(f"{name}: added work, alone", added, "ms")] if added else []),
            hidden(f"{name}: hidden, by a worker process", whole, ideal, taken[PROCESS], aside),
            figure(f"{name}: the lock costs", lock, "ms"),
            figure(f"{name}: the cores cost", cores, "ms"),
        ]
    return [
        figure(f"{name}: host", host, "ms"),
        figure(f"{name}: device", alone, "ms"),
        figure(f"{name}: device, longer beside the host", longer, "ms"),
        figure(f"{name}: makespan / max(host, device)", divided(taken[PYTHON], ideal), "ratio"),
        figure(f"{name}: speed-up / ideal", divided(ideal, taken[PYTHON]), "ratio"),
        figure(f"{name}: side by side", [step.beside_percent for step in steps[PYTHON]], "%"),
        hidden(f"{name}: hidden", whole, ideal, taken[PYTHON], why),
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
    return row.because(why)


def less(one: list[float], other: list[float]) -> list[float]:
    """Differences, repetition by repetition."""
    return [a - b for a, b in zip(one, other, strict=True)]


def divided(one: list[float], other: list[float]) -> list[float]:
    """Quotients, repetition by repetition; 0 where there is nothing to divide by."""
    return [a / b if b else 0.0 for a, b in zip(one, other, strict=True)]
