"""Every fault on every loop, over random workloads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from ...loops.design import LOOPS
from ..draw.designs import Design, all_designs, read_design
from ..draw.draw import draw
from ..many import processes, unheard_interrupt
from .fault import Fault
from .from_client import Aborted, CtrlC, PipeCloses, ReaderRaises, ReaderStops
from .in_memory import NeverFits, NoneAtStart, RunsOut
from .in_step import CopyFails, ForwardRaises, NotNumbers, OutOfMemory, SamplingRaises
from .in_thread import StreamDies, ThreadDies, ThreadRaises
from .trial import Trial, try_fault

FAULTS: tuple[type[Fault], ...] = (
    ForwardRaises, SamplingRaises, NotNumbers, CopyFails, StreamDies, OutOfMemory,
    ThreadRaises, ThreadDies, NoneAtStart, NeverFits, RunsOut,
    Aborted, CtrlC, ReaderRaises, ReaderStops, PipeCloses,
)  # fmt: skip
LATEST = 8  # of the chances in a run, one among so many is chosen
MOST_WORKLOADS = 12  # that are drawn for a place
MANY = 10**6  # workloads that these are among


@dataclass(frozen=True)
class Place:
    """Where a fault is to be put in."""

    fault: str
    loop: str
    device: str
    seed: int


class Cell(NamedTuple):
    """One fault on one loop, and what became of it; the place repeats it."""

    place: Place
    loop: str  # as it was run, with relay and options
    at: int
    trial: Trial


def try_place(place: Place) -> Cell:
    """Draw a workload and a moment for the fault, until the trial tells something.

    Where the moment did not come, the run was too short, and it is drawn once more from those that
    did. Another workload is drawn where the fault can't happen in it at all, where it hits nobody
    but whom the workload itself gives up, and where nobody is left who must not notice. If none of
    them will do, it is the trial that tells most: one that was never hit, or that hit nobody,
    counts as not tried.
    """
    kind = next(item for item in FAULTS if item.name == place.fault)
    rng = Random(f"{place.fault} {place.loop} {place.seed}")
    cells: list[Cell] = []
    for _ in range(MOST_WORKLOADS):
        seed = rng.randrange(MANY)
        design = design_for(place.loop, seed)
        case, latest = draw(seed, odd=False).on(design, place.device), LATEST
        while latest:
            at, pick = rng.randint(1, latest), rng.randrange(1000)
            trial = try_fault(case, kind(at, pick))
            cells.append(Cell(place, design.name, at, trial))
            if trial.findings or trial.whom.tells:
                return cells[-1]
            latest = 0 if trial.is_hit else min(trial.num_chances, at - 1)
    return max(cells, key=lambda cell: (cell.trial.is_hit, cell.trial.whom.struck))


def design_for(loop: str, seed: int) -> Design:
    """A loop's relays and options, one after the other; those that take the workload's drafts."""
    if ":" in loop:
        return read_design(loop)
    algorithm = draw(seed).workload.config.speculative_algorithm
    mine = [item for item in all_designs() if item.loop == loop]
    taking = [item for item in mine if algorithm not in item.refuses()]
    designs = taking or mine
    return designs[seed % len(designs)]


def places(device: str, seed: int, times: int, loops: Sequence[str] = ()) -> list[Place]:
    """Every fault that can happen on a loop, on every loop, so many times."""
    return [
        Place(kind.name, loop, device, seed + at)
        for kind in FAULTS
        for loop in loops or LOOPS
        if device in LOOPS[loop.partition(":")[0]].devices and kind.fits(loop, device)
        for at in range(times)
    ]


def try_all(wanted: Sequence[Place], jobs: int = 1) -> Iterator[Cell]:
    """Each of them, in order, in so many processes."""
    if jobs == 1:
        yield from map(try_place, wanted)
        return
    with processes(jobs) as pool:
        with unheard_interrupt():
            results = pool.map(try_place, wanted, chunksize=8)
        yield from results
