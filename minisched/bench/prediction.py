"""How far ``sim`` is from the clock: held-out workloads on both, by costs measured in between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from ..defaults import published_loops
from ..devices.cost import MILLISECOND
from ..devices.registry import MissingExtra
from ..models.base import Model
from .calibrate import (
    CalibrationLoad,
    Piece,
    fit_cost,
    makespan,
    observe,
    observe_all,
    predict,
    rotated,
    settle,
)
from .figures import BenchCall, BenchPart, Figure, not_measured
from .overlap import DEVICES, opened

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
        name = call.model or USUAL.get(device, "smollm2")
        try:
            with opened(name, device, call.dtype) as model:
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
    settle(device, model, loops)
    table: list[Piece] = []
    taken: list[Makespans] = []
    for repetition in range(call.repetitions):
        table += observe_all(device, model, loops, repetition, report=call.report)
        call.report(f"held-out workloads, repetition {repetition + 1} of {call.repetitions}")
        times: dict[tuple[str, str], list[float]] = defaultdict(list)
        for turn in range(TURNS):
            for name, load in HELD_OUT.items():
                for loop in rotated(loops, repetition * TURNS + turn):
                    times[loop, name].append(makespan(observe(loop, device, model, load)[0]))
        taken.append({run: median(turns) for run, turns in times.items()})
    call.report("predicting")
    cost = fit_cost(table, model.pad_to)
    foreseen = {
        (loop, name): makespan(predict(loop, model, load, cost))
        for loop in loops
        for name, load in HELD_OUT.items()
    }
    return figures(title, taken, foreseen)


def figures(title: str, taken: Sequence[Makespans], foreseen: Makespans) -> list[Figure]:
    """A row for each loop and workload, then how many are near enough, and how far the clock is.

    An error is of what is foreseen against each repetition; with less than nothing the prediction
    is too short. So its median is the error against the median repetition.
    """

    def speedup(makespans: Makespans, run: tuple[str, str]) -> float:
        return makespans["serial", run[1]] / makespans[run]

    def row(run: tuple[str, str], what: str, errors: list[float]) -> Figure:
        return Figure(f"{title}, {', '.join(run)}: {what}, off by", errors, "%", AIM, at_most=True)

    rows = {
        "makespans": [
            row(run, "makespan", [off(foreseen[run], times[run]) for times in taken])
            for run in foreseen
        ],
        "speed-ups": [
            row(run, "speed-up", [off(speedup(foreseen, run), speedup(it, run)) for it in taken])
            for run in foreseen if run[0] != "serial"
        ],
    }  # fmt: skip
    near = [
        Figure(f"{title}: {what} off by at most {AIM:g} %",
               [100 * sum(bool(each.met) for each in of) / len(of)], "%")
        for what, of in rows.items() if of
    ]  # fmt: skip
    middle = {run: median(times[run] for times in taken) for run in foreseen}
    drift = [abs(off(times[run], middle[run])) for times in taken for run in foreseen]
    name = f"{title}: one repetition's makespan, off their median by"
    return [*near, Figure(name, drift, "%"), *rows["makespans"], *rows["speed-ups"]]


def off(foreseen: float, measured: float) -> float:
    """The error in per cent; less than nothing where too little was foreseen."""
    return 100 * (foreseen / measured - 1)


PART = BenchPart(prediction_rows, ("device", "model", "dtype"), DEVICES)
