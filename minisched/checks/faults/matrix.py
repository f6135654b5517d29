"""Every fault on every loop, over random workloads: how often it was tried, and how often survived."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import NamedTuple

from ...loops.registry import LOOPS
from ..draw import draw
from ..draw_designs import Design, all_designs, read_design
from ..judge import Finding
from ..many import processes, unheard_interrupt
from .fault import Fault
from .from_client import Aborted, CtrlC, PipeCloses, ReaderRaises, ReaderStops
from .in_memory import NeverFits, RunsOut
from .in_step import CopyFails, ForwardRaises, NotNumbers, OutOfMemory, SamplingRaises
from .in_thread import StreamDies, ThreadDies
from .trial import Trial, try_fault

FAULTS: tuple[type[Fault], ...] = (
    ForwardRaises, SamplingRaises, NotNumbers, CopyFails, OutOfMemory, ThreadDies, StreamDies,
    NeverFits, RunsOut, Aborted, CtrlC, ReaderRaises, ReaderStops, PipeCloses,
)  # fmt: skip
EARLIER = (8, 5, 3, 2, 1)  # chances of which one is chosen; an earlier one where a run was too short


class Cell(NamedTuple):
    """One fault on one loop: what repeats it, and what became of it."""

    fault: str
    loop: str  # as ``--loop`` takes it
    seed: int
    at: int
    trial: Trial


@dataclass(frozen=True)
class Place:
    """Where a fault is to be put in."""

    fault: str
    loop: str
    device: str
    seed: int


def try_place(place: Place) -> Cell:
    """Draw a workload and a moment for the fault; a moment that did not come is drawn earlier.

    With a workload in which it can't happen at all, the next ones' are drawn: a fault that was
    never hit counts as not tried.
    """
    kind = next(item for item in FAULTS if item.name == place.fault)
    rng = Random(f"{place.fault} {place.loop} {place.seed}")
    for seed in range(place.seed, place.seed + 4):
        design = design_for(place.loop, seed)
        case = draw(seed).on(design, place.device)
        for most in EARLIER:
            at, pick = rng.randint(1, most), rng.randrange(1000)
            fault = kind(at, pick)
            trial = try_fault(case, fault)
            if trial.is_hit or trial.findings:
                return Cell(place.fault, design.name, seed, at, trial)
    return Cell(place.fault, design.name, seed, at, trial)


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
        Place(kind.name, loop, device, seed + 10 * number + at)
        for number, kind in enumerate(FAULTS)
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


def findings_of(cells: Sequence[Cell]) -> list[tuple[Cell, Finding]]:
    """What was not survived."""
    return [(cell, item) for cell in cells for item in cell.trial.findings]
