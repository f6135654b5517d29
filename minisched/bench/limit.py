"""How near a Llama's steps on torch come to what the machine allows.

A decode step has to read weights and KV once: its limit is the memory's bandwidth. A prefill has
to multiply: its limit is the rate of large matrices. Both are measured in the same run, in turn
with the steps and on as many threads; the limit is the best of all repetitions.

The number of threads is that of the ``thread`` device, which leaves a core to the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ..models.llama import find_model
from ..models.llama_torch import (
    ROWS,
    LlamaTorch,
    PagedKV,
    bytes_each,
    linear,
    make_groups,
    pack,
)
from .figures import BenchCall, BenchPart, Figure, Measure, figure, interleave
from .generation import SLOWER

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


def bandwidth() -> Measure:
    """Measures bytes a second: a sum, a product of two halves, and a matrix times one row."""
    values = torch.ones(READ // 4)
    side = int(len(values) ** 0.5)
    matrix, row = pack(torch.ones(side, side)), torch.ones(1, side)
    ways = (values.sum, partial(torch.dot, *values.chunk(2)), partial(linear, row, matrix))
    return lambda: READ / min(fastest(way) for way in ways)


def matrix_rate(matrices: Sequence[Tensor], num_tokens: int) -> Measure:
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


# -- A Llama's step on torch, called by itself -----------------------------------------------------


@dataclass(frozen=True)
class LimitShape:
    """``batch`` requests that compute ``extend`` positions each, after ``before`` others."""

    batch: int
    extend: int
    before: int


@dataclass(frozen=True)
class LimitStep:
    """What is run, the bytes that it has to read once, and its multiplications and additions."""

    run: Callable[[], object]
    num_bytes: int
    operations: int


def step_of(model: LlamaTorch, shape: LimitShape) -> LimitStep:
    """A step of that shape; KV are small numbers, row r + 1 has its positions in order."""
    weights, (kv_heads, d), layers = model.weights, model.kv_shape, model.num_layers
    batch, extend, end = shape.batch, shape.extend, shape.before + shape.extend
    slots = 1 + batch * end
    keys = torch.full((layers, slots, kv_heads, d), 0.1).to(weights.embed.dtype)
    table = (torch.arange(slots - 1 + end) - end + 1).clamp(min=0)
    kv = PagedKV(keys, keys.clone(), table, end)
    groups = make_groups([shape.before] * batch, [extend] * batch, bytes_each(keys))
    padding = [0] * (-batch * extend % ROWS)
    positions = torch.tensor([*range(shape.before, end)] * batch + padding)
    rows = torch.tensor([r + 1 for r in range(batch) for _ in range(extend)] + padding)
    ids = torch.arange(len(positions)) % model.vocab_size
    last = torch.arange(1, batch + 1) * extend - 1

    per_layer = [*weights.qkv, *weights.out, *weights.gate_up, *weights.down]
    size, head = sum(matrix.numel() for matrix in per_layer), weights.head.numel()
    num_bytes = (size + head + 2 * layers * batch * end * kv_heads * d) * keys.element_size()
    heads = weights.qkv[0].size(0) // d - 2 * kv_heads
    pairs = batch * sum(range(shape.before + 1, end + 1))  # of a position and one that it sees
    multiplied = batch * (extend * size + head) + 2 * layers * heads * d * pairs
    run = partial(model.step, weights, kv, groups, ids, positions, rows, last)
    return LimitStep(run, num_bytes, 2 * multiplied)


# -- All of it -------------------------------------------------------------------------------------

SHAPES = {
    "decode, batch 1": LimitShape(1, 1, 255),
    "decode, batch 4": LimitShape(4, 1, 255),
    "decode, batch 16": LimitShape(16, 1, 255),
    "prefill of 512": LimitShape(1, 512, 0),
}
AIM, AIMED = 50.0, "decode, batch 1"  # percent of the limit: under twice the time
DTYPES = ("float32", "bfloat16")
WARM_UP = 3  # runs of each step before the first that counts: torch.jit compiles in two of them


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Lets torch take so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def limit_rows(call: BenchCall) -> list[Figure]:
    """Each shape in each dtype."""
    folder = Path(find_model(call.model or "smollm2"))
    rows = []
    for dtype in [call.dtype] if call.dtype else DTYPES:
        call.report(f"{dtype}: loading")
        model = LlamaTorch(folder, dtype)
        with threads(max(1, torch.get_num_threads() - 1)), torch.inference_mode():
            for name, shape in SHAPES.items():
                aim = AIM if name == AIMED else None
                rows += shape_rows(model, f"{dtype} {name}", shape, aim, call)
    return rows


def shape_rows(
    model: LlamaTorch, title: str, shape: LimitShape, aim: float | None, call: BenchCall
) -> list[Figure]:
    """The limit, one step, and the share of the limit that it reaches."""
    decodes = shape.extend == 1
    step = step_of(model, shape)
    layer = [matrices[0] for matrices in (model.weights.qkv, model.weights.gate_up)]
    emptying = torch.ones(READ // 4)

    def milliseconds() -> float:
        emptying.sum()  # nothing of the model is left in a cache, as other layers leave nothing
        start = time.perf_counter()
        step.run()
        return 1000 * (time.perf_counter() - start)

    for _ in range(WARM_UP):
        step.run()
    rate = bandwidth() if decodes else matrix_rate(layer, shape.batch * shape.extend)
    arms: dict[str, Measure | str] = {"rate": rate, "step": milliseconds}
    values, _ = interleave(arms, call.repetitions, lambda doing: call.report(f"{title}: {doing}"))
    work = step.num_bytes if decodes else step.operations
    shares = [1e5 * work / max(values["rate"]) / ms for ms in values["step"]]
    unit = "GB/s" if decodes else "GFLOP/s"
    return [
        figure(f"{title}: limit", [rate / 1e9 for rate in values["rate"]], unit),
        figure(f"{title}: step", values["step"], "ms"),
        figure(f"{title}: step, of the limit", shares, "%", aim).because(SLOWER),
    ]


PART = BenchPart(limit_rows, ("device", "model", "dtype"), ("thread",))
