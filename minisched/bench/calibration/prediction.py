"""How far ``sim`` is from the clock: held-out workloads on both, by costs measured in between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from ...compare import warm_up
from ...devices.cost import MILLISECOND, CostModel
from ...models.base import Model
from ...models.length import LengthModel
from ..rows import Figure, figure
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

TURNS = 3  # runs of each in a repetition, of which the median counts: one alone is a matter of luck

Makespans = Mapping[tuple[str, str], float]  # of a loop and a workload, in nanoseconds


def prediction(
    device: str,
    model: Model,
    loops: Sequence[str],
    repetitions: int,
    report: Callable[[str], None] = lambda doing: None,
) -> list[Figure]:
    """For each loop by how much makespan and speed-up are off, and for each workload.

    Each repetition calibrates once and measures each workload in a few turns, so that a machine
    that gets slower does so for both.
    """
    loops = list(dict.fromkeys(["serial", *loops]))
    warm_up(device, model, HELD_OUT["3 at once"].config)
    runs: list[Observed] = []
    taken: list[Makespans] = []
    for repetition in range(repetitions):
        runs += observe_all(device, model, loops, report=report)
        report(f"held-out workloads, repetition {repetition + 1} of {repetitions}")
        taken.append(measured(device, model, loops))
    cost = fit_cost(runs, model.pad_to)
    report("predicting")
    return figures(loops, taken, predicted(loops, model, cost))


def measured(device: str, model: Model, loops: Sequence[str]) -> Makespans:
    """Each loop's makespan by the clock for each workload, the median of its turns."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(TURNS):
        for name, load in HELD_OUT.items():
            for loop in loops:
                times[loop, name].append(makespan(observe(loop, device, model, load).trace))
    return {run: median(turns) for run, turns in times.items()}


def predicted(loops: Sequence[str], model: Model, cost: CostModel) -> Makespans:
    """Each loop's makespan on ``sim`` for each workload; what the tokens are makes no odds."""
    lengths = LengthModel(model.vocab_size - 1, 1, model.context_len)
    return {
        (loop, name): makespan(predict(loop, lengths, load, cost).trace)
        for name, load in HELD_OUT.items()
        for loop in loops
    }


def figures(loops: Sequence[str], taken: Sequence[Makespans], foreseen: Makespans) -> list[Figure]:
    """The rows: each loop over the workloads, each workload over the loops, then the clock itself.

    What is to be foreseen is the median of all repetitions; how far these are from it comes last.
    """
    middle = {run: median(times[run] for times in taken) for run in foreseen}
    drift = {run: [off(times[run], middle[run]) for times in taken] for run in foreseen}
    rows = []
    for loop in loops:
        runs = [(loop, name) for name in HELD_OUT]
        errors = [off(foreseen[run], middle[run]) for run in runs]
        rows.append(row(f"{loop}: makespan, off by", errors, runs, drift))
        if loop != "serial":
            errors = [off(speedup(foreseen, run), speedup(middle, run)) for run in runs]
            rows.append(row(f"{loop}: speed-up, off by", errors, runs, drift))
    for name in HELD_OUT:
        runs = [(loop, name) for loop in loops]
        errors = [off(foreseen[run], middle[run]) for run in runs]
        rows.append(row(f"{name}: makespan of all loops, off by", errors, runs, drift))
    every = [error for errors in drift.values() for error in errors]
    return [*rows, figure("one repetition's makespan, off their median by", every, "%")]


def speedup(makespans: Makespans, run: tuple[str, str]) -> float:
    """How many times faster a loop is than ``serial`` with the same workload."""
    return makespans["serial", run[1]] / makespans[run]


def off(foreseen: float, measured: float) -> float:
    """The error in per cent, without its sign."""
    return 100 * abs(foreseen / measured - 1)


def row(
    name: str,
    errors: Sequence[float],
    runs: Sequence[tuple[str, str]],
    drift: Mapping[tuple[str, str], Sequence[float]],
) -> Figure:
    """A figure with the aim; if it misses that, how far the clock's repetitions are apart."""
    found = Figure(name, median(errors), min(errors), max(errors), "%", AIM, at_most=True)
    apart = median(error for run in runs for error in drift[run])
    return found.because(f"one repetition is {apart:.1f} % off their median" if apart else "")
