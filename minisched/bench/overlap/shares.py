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
than with a sleep. Handing work over and back takes some 0.5 ms, which goes with the cores: where
the lock costs less than nothing, Python beside the device is the better way. A sleep needs neither
of them, so what it hides is what the loop by itself hides. What a quicker way to the lock hides is
told too (``ways.py``).

All of them change places every few steps (``arm.py``), as a machine that is shared is faster at one
moment and slower at the next. Where repetitions still disagree, the aim is neither met nor missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ...devices.wall_clock import Way
from ..arm import ArmStopped
from ..case import Case
from ..rows import Figure, figure, not_measured
from .in_turn import Entry, in_turn
from .step import Step
from .ways import PROCESS, PYTHON, QUICK, QUICK_S, SERIAL, SLEEP, ways_for

AIM = 90.0  # percent of what could be hidden
LEAST_MS = 1.0  # where less could be hidden, its share says nothing, and has no aim
AGREE = 0.8  # of the repetitions have to be on one side of the aim, for it to be met or missed
Steps = Mapping[str, list[Step]]  # of each way, one for each repetition


@dataclass(frozen=True)
class Cell:
    """A loop beside the serial one, with so much work added to a step, for some rounds.

    With a ``reason`` there is nothing to measure.
    """

    name: str
    case: Case
    loop: str
    work_ms: float
    rounds: int
    reason: str = ""


def overlap_figures(
    cells: Sequence[Cell],
    ways: Mapping[str, Way],
    repetitions: int,
    report: Callable[[str], None],
) -> list[Figure]:
    """All figures of cells that are measured in turn. One that fails costs its own rows alone."""
    steps: list[dict[str, list[Step]]] = [{way: [] for way in ways} for _ in cells]
    reasons = [cell.reason for cell in cells]
    for repetition in range(repetitions):
        for at, cell in enumerate(cells):
            if reasons[at]:
                continue
            report(f"{cell.name}, repetition {repetition + 1} of {repetitions}")
            try:
                for way, step in side_by_side(cell, ways).items():
                    steps[at][way].append(step)
            except ArmStopped as error:
                reasons[at] = str(error)
    rows: list[Figure] = []
    for cell, found, reason in zip(cells, steps, reasons, strict=True):
        missing = not_measured(f"{cell.name}: hidden", "%", reason)
        rows += [missing] if reason else share_rows(cell.name, found)
    return rows


def side_by_side(cell: Cell, ways: Mapping[str, Way]) -> dict[str, Step]:
    """A step of each way in which the cell's work can be done, from loops that take turns."""
    entries = {
        way: Entry(
            "serial" if way == SERIAL else cell.loop,
            cell.work_ms,
            ways[way],
            QUICK_S if way == QUICK else None,
        )
        for way in ways_for(cell.work_ms)
    }
    return in_turn(cell.case, entries, cell.rounds)


def share_rows(name: str, steps: Steps) -> list[Figure]:
    """The figures of one cell. Without added work nobody else does it."""
    taken = {way: [step.whole_ms for step in found] for way, found in steps.items()}
    whole, alone = taken[SERIAL], [step.device_ms for step in steps[SERIAL]]
    host = [max(0.0, both - part) for both, part in zip(whole, alone, strict=True)]
    ideal = [max(pair) for pair in zip(host, alone, strict=True)]
    longer = less([step.device_ms for step in steps[PYTHON]], alone)
    why = f"beside the host the device takes {median(longer):.1f} ms longer"
    costs = []
    if taken[SLEEP]:
        lock, cores = less(taken[PYTHON], taken[PROCESS]), less(taken[PROCESS], taken[SLEEP])
        why += f"; the lock costs {median(lock):.1f} ms, and the cores {median(cores):.1f}"
        aside = f"the cores cost {median(cores):.1f} ms"
        costs = [
            hidden_share(
                f"{name}: hidden, by a worker process", whole, ideal, taken[PROCESS], aside
            ),
            hidden_share(f"{name}: hidden, by a sleep", whole, ideal, taken[SLEEP]),
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
        hidden_share(f"{name}: hidden", whole, ideal, taken[PYTHON], why),
        hidden_share(f"{name}: hidden, {QUICK}", whole, ideal, taken[QUICK]),
        *costs,
    ]


def hidden_share(
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
