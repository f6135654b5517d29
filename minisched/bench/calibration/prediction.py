"""How far ``sim`` is from the clock: held-out workloads on both, by costs measured in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

from ...compare import warm_up
from ...devices.cost import MILLISECOND, CostModel
from ...models.base import Model
from ...models.hash import HashModel
from ..rows import Figure
from .calibrate import Load, makespan, observe, observe_all, predict
from .fitted import fit_cost
from .observed import Observed

AIM = 5.0  # per cent
HELD_OUT = {  # other batches, prompts, lengths, arrivals and host work than those calibrated with
    "3 at once": Load(3, 50, 14),
    "6 at once, 5 ms added": Load(6, 20, 12, 5 * MILLISECOND),
    "12 at once": Load(12, 10, 8),
    "5 in turn, 10 ms added": Load(5, 33, 10, 10 * MILLISECOND, 120 * MILLISECOND),
}

Makespans = Mapping[tuple[str, str], float]  # of a loop and a workload, in nanoseconds


@dataclass(frozen=True)
class Errors:
    """Per cent by which a prediction was off, [repetition][workload]."""

    makespan: list[list[float]]
    speedup: list[list[float]]


def prediction(
    device: str,
    model: Model,
    loops: Sequence[str],
    repetitions: int,
    report: Callable[[str], None] = lambda doing: None,
) -> list[Figure]:
    """For each loop by how much makespan and speed-up are off, and for each workload.

    Each repetition calibrates once and measures each workload once, so that a machine that gets
    slower does so for both. A loop's error in a repetition is the mean over workloads.
    """
    loops = list(dict.fromkeys(["serial", *loops]))
    warm_up(device, model, HELD_OUT["3 at once"].config)
    runs: list[Observed] = []
    taken: list[Makespans] = []
    for repetition in range(repetitions):
        runs += observe_all(device, model, loops, report=report)
        report(f"held-out workloads, repetition {repetition + 1} of {repetitions}")
        taken.append(
            {
                (loop, name): makespan(observe(loop, device, model, load).trace)
                for name, load in HELD_OUT.items()
                for loop in loops
            }
        )
    cost = fit_cost(runs, model.pad_to)
    report("predicting")
    return figures(loops, taken, predicted(loops, model.vocab_size, cost))


def predicted(loops: Sequence[str], vocab: int, cost: CostModel) -> Makespans:
    """Each loop's makespan on ``sim`` for each workload."""
    model = HashModel(vocab)
    return {
        (loop, name): makespan(predict(loop, model, load, cost).trace)
        for name, load in HELD_OUT.items()
        for loop in loops
    }


def figures(
    loops: Sequence[str],
    taken: Sequence[Makespans],
    foreseen: Makespans,
) -> list[Figure]:
    """The rows: loops first, then workloads."""
    middle = {run: median(times[run] for times in taken) for run in foreseen}
    found, own = ({loop: errors_of(loop, taken, by) for loop in loops} for by in (foreseen, middle))
    rows = []
    for loop in loops:
        name = f"{loop}: makespan, off by"
        rows.append(row(name, found[loop].makespan, own[loop].makespan))
        if loop != "serial":
            name = f"{loop}: speed-up, off by"
            rows.append(row(name, found[loop].speedup, own[loop].speedup))
    for at, load in enumerate(HELD_OUT):
        name = f"{load}: makespan of all loops, off by"
        rows.append(row(name, of_workload(at, found), of_workload(at, own)))
    return rows


def of_workload(at: int, found: Mapping[str, Errors]) -> list[list[float]]:
    """Every loop's errors of one workload, [repetition][loop]."""
    turns = zip(*(errors.makespan for errors in found.values()), strict=True)
    return [[loads[at] for loads in turn] for turn in turns]


def errors_of(
    loop: str,
    taken: Sequence[Makespans],
    foreseen: Makespans,
) -> Errors:
    """How far one loop's predictions are from each repetition."""
    makespans, speedups = [], []
    for times in taken:
        makespans.append([off(foreseen[loop, name], times[loop, name]) for name in HELD_OUT])
        speedups.append(
            [
                off(
                    foreseen["serial", name] / foreseen[loop, name],
                    times["serial", name] / times[loop, name],
                )
                for name in HELD_OUT
            ]
        )
    return Errors(makespans, speedups)


def off(foreseen: float, measured: float) -> float:
    """The error in per cent, without its sign."""
    return 100 * abs(foreseen / measured - 1)


def row(name: str, found: list[list[float]], own: list[list[float]]) -> Figure:
    """A figure with the aim; each repetition's is the mean over its second index.

    ``own`` is how far the clock is from its own medians: no prediction can do much better.
    """
    values = list(map(mean, found))
    figure = Figure(name, median(values), min(values), max(values), "%", AIM, at_most=True)
    if figure.met or len(own) == 1:
        return figure
    apart = median(map(mean, own))
    return replace(figure, reason=f"the clock is {apart:.1f} % off its own medians")
