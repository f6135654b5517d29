"""How far ``sim`` is from the clock: held-out workloads on both, by costs measured in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    taken: list[dict[tuple[str, str], int]] = []
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


def predicted(loops: Sequence[str], vocab: int, cost: CostModel) -> dict[tuple[str, str], int]:
    """Each loop's makespan on ``sim`` for each workload."""
    model = HashModel(vocab)
    return {
        (loop, name): makespan(predict(loop, model, load, cost).trace)
        for name, load in HELD_OUT.items()
        for loop in loops
    }


def figures(
    loops: Sequence[str],
    taken: Sequence[dict[tuple[str, str], int]],
    foreseen: dict[tuple[str, str], int],
) -> list[Figure]:
    """The rows: loops first, then workloads."""
    rows = []
    for loop in loops:
        errors = errors_of(loop, taken, foreseen)
        rows.append(row(f"{loop}: makespan, off by", list(map(mean, errors.makespan))))
        if loop != "serial":
            rows.append(row(f"{loop}: speed-up, off by", list(map(mean, errors.speedup))))
    for at, name in enumerate(HELD_OUT):
        every = [errors_of(loop, taken, foreseen).makespan for loop in loops]
        found = [mean(errors[turn][at] for errors in every) for turn in range(len(taken))]
        rows.append(row(f"{name}: makespan of all loops, off by", found))
    return rows


def errors_of(
    loop: str,
    taken: Sequence[dict[tuple[str, str], int]],
    foreseen: dict[tuple[str, str], int],
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


def row(name: str, values: Sequence[float]) -> Figure:
    """A figure with the aim."""
    return Figure(name, median(values), min(values), max(values), "%", AIM, at_most=True)
