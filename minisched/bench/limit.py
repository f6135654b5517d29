"""How near a Llama's steps on torch come to what the machine allows, by part.

A decode step has to read weights and KV once: its limit is the memory's bandwidth. A prefill has
to multiply: its limit is the rate of large matrices. Both are measured in the same run, in turn
with the steps and on as many threads; the limit is the best of all repetitions.

The number of threads is that of the ``thread`` device, which leaves a core to the host. A single
request's decode is measured on all cores, too, and in a loop on that device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import cast

import torch
from torch import Tensor

from ..models.base import Model
from ..models.llama_torch import (
    ROWS,
    Group,
    LlamaTorch,
    PagedKV,
    attend_group,
    bytes_each,
    linear,
    look,
    make_groups,
    pack,
    script,
)
from .arms import SETTLING, batch_of, running
from .figures import Figure, Measure, figure, interleave

# -- What the machine allows: how fast it reads memory, and how fast it multiplies matrices --------
#
# A limit is what nothing exceeds, so each rate is the fastest of several ways to reach it. A sum
# alone is now and then slower than a product by oneDNN; a plain float32 ``a @ b`` reaches a third
# of the rate of matrices that lie in oneDNN's order.

READ = 1 << 28  # bytes: several times the caches
SIDE = 1024  # of the plain matrices
TRIES = 3  # in one measurement, of which the fastest counts


def fastest(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some tries, after one that nobody times."""
    work()
    taken = []
    for _ in range(TRIES):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def bandwidth() -> Callable[[], float]:
    """Measures bytes a second: a sum, a product of two halves, and a matrix times one row."""
    values = torch.ones(READ // 4)
    side = int(len(values) ** 0.5)
    matrix, row = pack(torch.ones(side, side)), torch.ones(1, side)
    ways = (values.sum, partial(torch.dot, *values.chunk(2)), partial(linear, row, matrix))
    return lambda: READ / min(fastest(way) for way in ways)


def matrix_rate(matrices: Sequence[Tensor], num_tokens: int) -> Callable[[], float]:
    """Measures multiplications and additions a second, at best.

    ``matrices`` are the model's own, each times ``num_tokens`` rows, again and again, so that they
    come from a cache; beside them two plain square ones are multiplied.
    """
    dtype = matrices[0].dtype
    a, b = (torch.ones(SIDE, SIDE, dtype=dtype) for _ in range(2))
    inputs = [torch.ones(num_tokens, matrix.size(1), dtype=dtype) for matrix in matrices]

    def measure() -> float:
        rates = [2 * SIDE**3 / fastest(lambda: a @ b)]
        for x, matrix in zip(inputs, matrices, strict=True):
            taken = fastest(partial(linear, x, matrix))
            rates.append(2 * num_tokens * matrix.numel() / taken)
        return max(rates)

    return measure


def cleared() -> Callable[[], object]:
    """Reads so much that nothing of a model is left in a cache, as the other layers do."""
    values = torch.ones(READ // 4)
    return lambda: values.sum()


# -- A Llama's step on torch and the parts that it is made of, each called by itself ---------------
#
# A matrix of all layers is one part: each layer's is multiplied in turn, as in a step.

Run = Callable[[], object]


@dataclass(frozen=True)
class LimitShape:
    """``batch`` requests that compute ``extend`` positions each, after ``before`` others."""

    batch: int
    extend: int
    before: int

    @property
    def num_tokens(self) -> int:
        """Computed in the step."""
        return self.batch * self.extend

    @property
    def length(self) -> int:
        """Positions of each request after the step."""
        return self.before + self.extend


@dataclass(frozen=True)
class LimitPart:
    """What is run, the bytes that it has to read once, and its multiplications and additions."""

    run: Run
    num_bytes: int = 0
    operations: int = 0


def each(x: Tensor, matrices: list[Tensor], kept: list[Tensor]) -> None:
    """``x`` times every matrix; the last product is kept.

    Each is written to a list from outside: of products that nobody sees, torch.jit drops most.
    """
    for matrix in matrices:
        kept[0] = linear(x, matrix)


def kv_of(model: LlamaTorch, shape: LimitShape) -> PagedKV:
    """A cache of small numbers; row r + 1 has its positions one after the other."""
    slots = 1 + shape.batch * shape.length
    keys = torch.full((model.num_layers, slots, *model.kv_shape), 0.1)
    keys = keys.to(model.weights.embed.dtype)
    table = torch.arange(slots - 1 + shape.length) - shape.length + 1
    return PagedKV(keys, keys.clone(), table.clamp(min=0), shape.length)


def parts(model: LlamaTorch, shape: LimitShape) -> dict[str, LimitPart]:
    """``step`` and its parts, by name."""
    weights, kv = model.weights, kv_of(model, shape)
    before, extend = [shape.before] * shape.batch, [shape.extend] * shape.batch
    groups = make_groups(before, extend, bytes_each(kv.keys))
    padding = [0] * (-shape.num_tokens % ROWS)
    positions = torch.tensor([*range(shape.before, shape.length)] * shape.batch + padding)
    rows = torch.tensor([r + 1 for r in range(shape.batch) for _ in range(shape.extend)] + padding)
    ids = torch.arange(len(positions)) % model.vocab_size
    last = torch.arange(1, shape.batch + 1) * shape.extend - 1
    step = partial(model.step, weights, kv, groups, ids, positions, rows, last)
    scripted = script(each)

    def product(num_tokens: int, matrices: list[Tensor]) -> LimitPart:
        padded = num_tokens + -num_tokens % ROWS
        x = torch.ones(padded, matrices[0].size(1), dtype=weights.embed.dtype)
        size = sum(matrix.numel() for matrix in matrices)
        run = partial(scripted, x, matrices, [x])
        return LimitPart(run, size * x.element_size(), 2 * size * num_tokens)

    found = {
        "embedding": LimitPart(lambda: weights.embed[ids]),
        "qkv": product(shape.num_tokens, weights.qkv),
        "attention": attention(model, shape, kv, groups, positions, rows),
        "out": product(shape.num_tokens, weights.out),
        "mlp gate and up": product(shape.num_tokens, weights.gate_up),
        "mlp down": product(shape.num_tokens, weights.down),
        "head": product(shape.batch, [weights.head]),
    }
    num_bytes = sum(part.num_bytes for part in found.values())
    return {"step": LimitPart(step, num_bytes, sum(p.operations for p in found.values())), **found}


def attention(
    model: LlamaTorch,
    shape: LimitShape,
    kv: PagedKV,
    groups: list[Group],
    positions: Tensor,
    rows: Tensor,
) -> LimitPart:
    """Of all layers: what is remembered is gathered, and looked at."""
    kv_heads, d = model.kv_shape
    heads = model.weights.qkv[0].size(0) // d - 2 * kv_heads
    q = torch.ones(len(positions), heads, d, dtype=kv.keys.dtype)
    scripted = script(attend_group)
    views = [look(group, kv, positions, rows, heads // kv_heads) for group in groups]

    def run() -> None:
        for layer in range(model.num_layers):
            for group, view in zip(groups, views, strict=True):
                tokens = slice(group.first, group.first + group.num_rows * group.extend_len)
                scripted(q[tokens], kv.keys[layer], kv.values[layer], view, group)

    pairs = int((positions[: shape.num_tokens] + 1).sum())  # of a position and one that it sees
    seen = shape.batch * shape.length
    num_bytes = 2 * model.num_layers * seen * kv_heads * d * kv.keys.element_size()
    return LimitPart(run, num_bytes, 4 * model.num_layers * heads * d * pairs)


# -- A decode step where it belongs: between two others, in a loop on the thread device ------------

LOOP = "overlap"
STEPS = 4  # timed together
SPARE = 4  # tokens of a request that come after them


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Lets torch take so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def step_ms(model: LlamaTorch, shape: LimitShape, cores: int) -> float:
    """Milliseconds from one step to the next, where the host's work is hidden.

    The device takes one thread less than ``cores``.
    """
    prompt_len, new_tokens = max(1, shape.before - SETTLING), SETTLING + STEPS + SPARE
    case = batch_of("thread", cast(Model, model), shape.batch, prompt_len, new_tokens)
    with threads(cores), running(case, LOOP) as arm:
        return arm.go_on(STEPS) / STEPS / 1e6


DECODES = (LimitShape(1, 1, 255), LimitShape(4, 1, 255), LimitShape(16, 1, 255))
PREFILL = LimitShape(1, 512, 0)
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


def kind(shape: LimitShape) -> str:
    """A shape in words."""
    return f"decode, batch {shape.batch}" if shape.extend == 1 else f"prefill of {shape.extend}"


def figures_of(
    model: LlamaTorch,
    case: str,
    shape: LimitShape,
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
    case: str, values: dict[str, list[float]], found: dict[str, LimitPart], decodes: bool
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


def milliseconds(part: LimitPart, clear: Callable[[], object] = lambda: None) -> float:
    """Of one run, after ``clear`` has emptied the caches."""
    clear()
    start = time.perf_counter()
    part.run()
    return 1000 * (time.perf_counter() - start)


def share(work: int, taken_ms: Sequence[float], rate: float) -> list[float]:
    """Percent of the limit: the least time for so many bytes or operations, over what it took."""
    return [1e5 * work / rate / ms for ms in taken_ms]


def spent(values: dict[str, list[float]], found: dict[str, LimitPart]) -> str:
    """Where a step's time goes, in a sentence without its stop."""
    least = 1000 * found["step"].num_bytes / max(values["rate"])
    matrices = sum(median(values[name]) for name in MATRICES)
    return (
        f"of {median(values['step']):.1f} ms, the limit is {least:.1f}; called by themselves, the "
        f"matrices take {matrices:.1f} and attention {median(values['attention']):.1f}, and "
        f"{RESTS} leave {median(rest(values, found)):.1f}"
    )


def rest(values: dict[str, list[float]], found: dict[str, LimitPart]) -> list[float]:
    """What the parts leave of the step; below zero where the machine drifted in between."""
    names = [name for name in found if name != "step"]
    return [
        step - sum(values[name][at] for name in names) for at, step in enumerate(values["step"])
    ]
