"""How near a Llama's steps on torch come to what the machine allows, by part.

A decode step has to read weights and KV once: its limit is the memory's bandwidth. A prefill has
to multiply: its limit is the rate of large matrices. Both are measured in the same run, in turn
with the steps and on as many threads; the limit is the best of all repetitions.

The number of threads is that of the ``thread`` device, which leaves a core to the host. A single
request's decode is measured on all cores, too, and in a loop on that device (``in_loop.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import torch

from ...models.llama_torch import LlamaTorch
from ..rows import Figure, Measure, figure, interleave
from .in_loop import LOOP, step_ms, threads
from .parts import Part, Shape, parts
from .rates import bandwidth, cleared, matrix_rate

DECODES = (Shape(1, 1, 255), Shape(4, 1, 255), Shape(16, 1, 255))
PREFILL = Shape(1, 512, 0)
RESTS = "norms and the rest"
IN_LOOP = f"step in the loop {LOOP}"
MATRICES = ("qkv", "out", "mlp gate and up", "mlp down", "head")
AIM = 50.0  # percent of the limit: under twice the time, asked of a single request's decode
MEASURED = ("float32", "bfloat16")
DRIFTED = "above 100 % the machine was busy with something else whenever its rate was measured"
WARM_UP = 3  # runs of each part before the first that counts: torch.jit compiles in two of them


def limit(
    folder: Path,
    repetitions: int,
    report: Callable[[str], None] = lambda doing: None,
    dtypes: Sequence[str] = MEASURED,
) -> list[Figure]:
    """All figures of the model in ``folder``."""
    rows = []
    cores = torch.get_num_threads()
    for dtype in dtypes:
        report(f"{dtype}: loading")
        model = LlamaTorch(folder, dtype)
        for shape in (*DECODES, PREFILL):
            beside = {IN_LOOP: partial(step_ms, model, shape, cores)} if shape == DECODES[0] else {}
            with threads(max(1, cores - 1)):
                case = f"{dtype} {kind(shape)}"
                rows += figures_of(model, case, shape, repetitions, report, beside)
        if cores > 1:
            with threads(cores):
                case = f"{dtype} {kind(DECODES[0])}, {cores} threads"
                rows += figures_of(model, case, DECODES[0], repetitions, report)
    return rows


def kind(shape: Shape) -> str:
    """A shape in words."""
    return f"decode, batch {shape.batch}" if shape.extend == 1 else f"prefill of {shape.extend}"


def figures_of(
    model: LlamaTorch,
    case: str,
    shape: Shape,
    repetitions: int,
    report: Callable[[str], None],
    beside: Mapping[str, Measure] = {},
) -> list[Figure]:
    """One step, its parts, and the share of the limit that each reaches.

    What is measured ``beside`` them, in milliseconds, is a step too.
    """
    decodes = shape.extend == 1
    with torch.inference_mode():
        found = parts(model, shape)
        layer = [matrices[0] for matrices in (model.weights.qkv, model.weights.gate_up)]
        limiting = bandwidth() if decodes else matrix_rate(layer, shape.num_tokens)
        clear = cleared()
        measures: dict[str, Measure] = {
            "rate": limiting,
            **{name: partial(milliseconds, part, clear) for name, part in found.items()},
            **beside,
        }
        for part in found.values():
            for _ in range(WARM_UP):
                part.run()
        values = interleave(measures, repetitions, lambda doing: report(f"{case}: {doing}"))
    return rows_of(case, values, found, decodes)


def rows_of(
    case: str, values: dict[str, list[float]], found: dict[str, Part], decodes: bool
) -> list[Figure]:
    """What was measured, as lines of the table."""
    unit = "GB/s" if decodes else "GFLOP/s"
    rows = [figure(f"{case}: limit", [rate / 1e9 for rate in values["rate"]], unit)]
    steps = {IN_LOOP: found["step"]} if IN_LOOP in values else {}
    for name, part in {**found, **steps}.items():
        rows.append(figure(f"{case}: {name}", values[name], "ms"))
        if work := part.num_bytes if decodes else part.operations:
            aim = AIM if name == "step" and decodes and "batch 1," in f"{case}," else None
            shares = share(work, values[name], max(values["rate"]))
            row = figure(f"{case}: {name}, of the limit", shares, "%", aim)
            above = DRIFTED if max(shares) > 100 and name in found else ""
            why = spent(values, found) if row.met is False else above
            rows.append(replace(row, reason=why))
    return [*rows, figure(f"{case}: {RESTS}", rest(values, found), "ms")]


def milliseconds(part: Part, clear: Callable[[], object] = lambda: None) -> float:
    """Of one run, after ``clear`` has emptied the caches."""
    clear()
    start = time.perf_counter()
    part.run()
    return 1000 * (time.perf_counter() - start)


def share(work: int, taken_ms: Sequence[float], rate: float) -> list[float]:
    """Percent of the limit: the least time for so many bytes or operations, over what it took."""
    return [1e5 * work / rate / ms for ms in taken_ms]


def spent(values: dict[str, list[float]], found: dict[str, Part]) -> str:
    """Where a step's time goes, in a sentence without its stop."""
    least = 1000 * found["step"].num_bytes / max(values["rate"])
    matrices = sum(median(values[name]) for name in MATRICES)
    return (
        f"of {median(values['step']):.1f} ms, the limit is {least:.1f}; called by themselves, the "
        f"matrices take {matrices:.1f} and attention {median(values['attention']):.1f}, and "
        f"{RESTS} leave {median(rest(values, found)):.1f}"
    )


def rest(values: dict[str, list[float]], found: dict[str, Part]) -> list[float]:
    """What the parts leave of the step; below zero where the machine drifted in between."""
    names = [name for name in found if name != "step"]
    return [
        step - sum(values[name][at] for name in names) for at, step in enumerate(values["step"])
    ]
