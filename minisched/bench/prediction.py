"""How far ``sim`` is from the clock: held-out workloads on both, by costs measured in between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from ..defaults import published_loops
from ..devices.cost import MILLISECOND, CostModel
from ..devices.registry import MissingExtra
from ..loops.run import warm_up
from ..models.base import Model
from .calibrate import (
    CalibrationLoad,
    Observed,
    check_model,
    check_real_time,
    fit_cost,
    makespan,
    observe,
    observe_all,
    predict,
    rotated,
    stand_in,
)
from .figures import BenchCall, BenchPart, Figure, figure, not_measured
from .overlap import opened

# Device and model; stock MLX on a CPU takes seconds for a prompt of SmolLM2.
USUAL = {"thread": "smollm2", "mlx": "small"}
AIM = 5.0  # per cent
HELD_OUT = {  # other batches, prompts, lengths, arrivals and host work than those calibrated with
    "3 at once": CalibrationLoad(3, 50, 14),
    "6 at once, 5 ms added": CalibrationLoad(6, 20, 12, 5 * MILLISECOND),
    "12 at once": CalibrationLoad(12, 10, 8),
    "5 in turn, 10 ms added": CalibrationLoad(5, 33, 10, 10 * MILLISECOND, 120 * MILLISECOND),
}

TURNS = 3  # runs of each in a repetition, of which the median counts: one alone is a matter of luck

Makespans = Mapping[tuple[str, str], float]  # of a loop and a workload, in nanoseconds


def prediction_rows(call: BenchCall) -> list[Figure]:
    """By how much makespan and speed-up of each loop are off, on the device named or on both."""
    rows = []
    for device in [call.device] if call.device else USUAL:
        check_real_time(device, "bench")
        name = call.model or USUAL.get(device, "smollm2")
        try:
            with opened(name, device, call.dtype) as model:
                check_model(model)
                rows += predictions(f"{device}, {Path(name).name}", device, model, call)
        except MissingExtra as error:
            if call.device:
                raise
            rows.append(not_measured(f"{device}: makespans, off by", "%", str(error), AIM))
    return rows


def predictions(title: str, device: str, model: Model, call: BenchCall) -> list[Figure]:
    """One device: each loop and workload.

    Each repetition calibrates once and measures each workload in a few turns, so that a machine
    that gets slower does so for both; costs are fitted to all calibrations together.
    """
    loops = list(dict.fromkeys(["serial", *published_loops(device)]))
    warm_up(device, model, HELD_OUT["3 at once"].config)
    runs: list[Observed] = []
    taken: list[Makespans] = []
    for repetition in range(call.repetitions):
        runs += observe_all(device, model, loops, report=call.report, turn=repetition)
        call.report(f"held-out workloads, repetition {repetition + 1} of {call.repetitions}")
        taken.append(measured(device, model, loops, repetition * TURNS))
    cost = fit_cost(runs, model.pad_to)
    call.report("predicting")
    return figures(title, loops, taken, predicted(loops, model, cost))


def measured(device: str, model: Model, loops: Sequence[str], turn: int) -> Makespans:
    """Each loop's makespan by the clock for each workload, the median of its turns from this on."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for at in range(turn, turn + TURNS):
        for name, load in HELD_OUT.items():
            for loop in rotated(loops, at):
                times[loop, name].append(makespan(observe(loop, device, model, load).trace))
    return {run: median(turns) for run, turns in times.items()}


def predicted(loops: Sequence[str], model: Model, cost: CostModel) -> Makespans:
    """Each loop's makespan on ``sim`` for each workload; what the tokens are makes no odds."""
    lengths = stand_in(model)
    return {
        (loop, name): makespan(predict(loop, lengths, load, cost).trace)
        for name, load in HELD_OUT.items()
        for loop in loops
    }


def figures(
    name: str, loops: Sequence[str], taken: Sequence[Makespans], foreseen: Makespans
) -> list[Figure]:
    """A row for each loop and workload, then how many are near enough, and how far the clock is.

    An error is of what is foreseen against each repetition; with less than nothing the prediction
    is too short. So its median is the error against the median repetition.
    """
    rows = [
        row(f"{name}, {loop}, {load}: makespan, off by",
            [off(foreseen[loop, load], times[loop, load]) for times in taken])
        for loop in loops for load in HELD_OUT
    ]  # fmt: skip
    faster = [
        row(f"{name}, {loop}, {load}: speed-up, off by",
            [off(speedup(foreseen, loop, load), speedup(times, loop, load)) for times in taken])
        for loop in loops if loop != "serial" for load in HELD_OUT
    ]  # fmt: skip
    middle = {run: median(times[run] for times in taken) for run in foreseen}
    drift = [abs(off(times[run], middle[run])) for times in taken for run in foreseen]
    both = {"makespans": rows, "speed-ups": faster}
    return [
        *(near(f"{name}: {what} off by at most {AIM:g} %", of) for what, of in both.items() if of),
        figure(f"{name}: one repetition's makespan, off their median by", drift, "%"),
        *rows,
        *faster,
    ]


def row(name: str, errors: Sequence[float]) -> Figure:
    """The error of one prediction, by repetition."""
    found = figure(name, errors, "%", AIM, at_most=True)
    lasting = "every repetition says so" if min(errors) > 0 or max(errors) < 0 else ""
    return found.because(lasting or "repetitions are on both sides of it")


def near(name: str, rows: Sequence[Figure]) -> Figure:
    """How many predictions are within the aim."""
    return figure(name, [100 * sum(bool(row.met) for row in rows) / len(rows)], "%")


def speedup(makespans: Makespans, loop: str, load: str) -> float:
    """How many times faster a loop is than ``serial`` with the same workload."""
    return makespans["serial", load] / makespans[loop, load]


def off(foreseen: float, measured: float) -> float:
    """The error in per cent; less than nothing where too little was foreseen."""
    return 100 * (foreseen / measured - 1)


PART = BenchPart(prediction_rows, ("device", "model", "dtype"))
