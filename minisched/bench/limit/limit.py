"""How near a Llama's steps on torch come to what the machine allows, by part.

A decode step has to read weights and KV once: its limit is the memory's bandwidth. A prefill has
to multiply: its limit is the rate of large matrices. Both are measured in the same run, in turn
with the steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from ...models.llama_torch import DTYPES, LlamaTorch
from ..rows import Figure, Measure, figure, interleave
from .parts import Part, Shape, parts
from .rates import bandwidth, matrix_rate

DECODES = (Shape(1, 1, 255), Shape(4, 1, 255), Shape(16, 1, 255))
PREFILL = Shape(1, 512, 0)
RESTS = "norms and the rest"
AIM = 50.0  # percent of the limit: under twice the time, asked of a single request's decode
MEASURED = ("float32", "bfloat16")


def limit(
    folder: Path,
    repetitions: int,
    report: Callable[[str], None] = lambda doing: None,
    dtypes: Sequence[str] = MEASURED,
) -> list[Figure]:
    """All figures of the model in ``folder``."""
    rows = []
    for dtype in dtypes:
        report(f"{dtype}: loading")
        model = LlamaTorch(folder, dtype)
        for shape in (*DECODES, PREFILL):
            rows += figures_of(model, dtype, shape, repetitions, report)
    return rows


def figures_of(
    model: LlamaTorch,
    dtype: str,
    shape: Shape,
    repetitions: int,
    report: Callable[[str], None],
) -> list[Figure]:
    """One step, its parts, and the share of the limit that each reaches."""
    decodes = shape.extend == 1
    kind = f"decode, batch {shape.batch}" if decodes else f"prefill of {shape.extend}"
    case = f"{dtype} {kind}"
    with torch.inference_mode():
        found = parts(model, shape)
        limiting = bandwidth() if decodes else matrix_rate(DTYPES[dtype])
        measures: dict[str, Measure] = {
            "rate": limiting,
            **{name: partial(milliseconds, part) for name, part in found.items()},
        }
        for name in found:
            measures[name]()  # compiles
        values = interleave(measures, repetitions, lambda doing: report(f"{case}: {doing}"))
    unit = "GB/s" if decodes else "GFLOP/s"
    rows = [figure(f"{case}: limit", [rate / 1e9 for rate in values["rate"]], unit)]
    for name, part in found.items():
        rows.append(figure(f"{case}: {name}", values[name], "ms"))
        if work := part.num_bytes if decodes else part.operations:
            aim = AIM if name == "step" and shape.batch == 1 and decodes else None
            shares = share(work, values[name], values["rate"])
            rows.append(figure(f"{case}: {name}, of the limit", shares, "%", aim))
    return [*rows, figure(f"{case}: {RESTS}", rest(values, found), "ms")]


def milliseconds(part: Part) -> float:
    """Of one run."""
    start = time.perf_counter()
    part.run()
    return 1000 * (time.perf_counter() - start)


def share(work: int, taken_ms: Sequence[float], rates: Sequence[float]) -> list[float]:
    """Percent of the limit: the least time for so many bytes or operations, over what it took."""
    return [1e5 * work / rate / ms for ms, rate in zip(taken_ms, rates, strict=True)]


def rest(values: dict[str, list[float]], found: dict[str, Part]) -> list[float]:
    """What the parts leave of the step; below zero where the machine drifted in between."""
    names = [name for name in found if name != "step"]
    return [
        step - sum(values[name][at] for name in names) for at, step in enumerate(values["step"])
    ]
