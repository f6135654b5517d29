"""How near a Llama's steps on torch come to what the machine allows, by part.

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
from statistics import median

import torch
from torch import Tensor

from ..models.llama import find_model
from ..models.llama_torch import (
    ROWS,
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
from .figures import BenchCall, BenchPart, Figure, Measure, figure, interleave

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


# -- A Llama's step on torch and the parts that it is made of, each called by itself ---------------


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

    run: Callable[[], object]
    num_bytes: int
    operations: int


def each(x: list[Tensor], matrices: list[Tensor], kept: list[Tensor]) -> None:
    """Every ``x`` times its matrix; the last product is kept.

    Each is written to a list from outside: of products that nobody sees, torch.jit drops most.
    """
    for at, matrix in enumerate(matrices):
        kept[0] = linear(x[at], matrix)


def parts(model: LlamaTorch, shape: LimitShape) -> dict[str, LimitPart]:
    """``step``, and of it the matrices and attention, of all layers in turn as in a step.

    KV are small numbers; row r + 1 has its positions one after the other.
    """
    weights, (kv_heads, d), layers = model.weights, model.kv_shape, model.num_layers
    slots = 1 + shape.batch * shape.length
    keys = torch.full((layers, slots, kv_heads, d), 0.1).to(weights.embed.dtype)
    table = torch.arange(slots - 1 + shape.length) - shape.length + 1
    kv = PagedKV(keys, keys.clone(), table.clamp(min=0), shape.length)
    before, extend = [shape.before] * shape.batch, [shape.extend] * shape.batch
    groups = make_groups(before, extend, bytes_each(kv.keys))
    padding = [0] * (-shape.num_tokens % ROWS)
    positions = torch.tensor([*range(shape.before, shape.length)] * shape.batch + padding)
    rows = torch.tensor([r + 1 for r in range(shape.batch) for _ in range(shape.extend)] + padding)
    ids = torch.arange(len(positions)) % model.vocab_size
    last = torch.arange(1, shape.batch + 1) * shape.extend - 1

    matrices = [*weights.qkv, *weights.out, *weights.gate_up, *weights.down, weights.head]
    computed = [*[shape.num_tokens] * (4 * layers), shape.batch]  # rows that a matrix is for
    inputs = [
        torch.ones(count + -count % ROWS, matrix.size(1), dtype=weights.embed.dtype)
        for count, matrix in zip(computed, matrices, strict=True)
    ]
    sizes = [matrix.numel() for matrix in matrices]
    products = LimitPart(
        partial(script(each), inputs, matrices, [inputs[0]]),
        sum(sizes) * keys.element_size(),
        2 * sum(size * count for size, count in zip(sizes, computed, strict=True)),
    )

    heads = weights.qkv[0].size(0) // d - 2 * kv_heads
    q = torch.ones(len(positions), heads, d, dtype=keys.dtype)
    attend = script(attend_group)
    views = [look(group, kv, positions, rows, heads // kv_heads) for group in groups]

    def attention() -> None:
        for layer in range(layers):
            for group, view in zip(groups, views, strict=True):
                tokens = slice(group.first, group.first + group.num_rows * group.extend_len)
                attend(q[tokens], kv.keys[layer], kv.values[layer], view, group)

    pairs = int((positions[: shape.num_tokens] + 1).sum())  # of a position and one that it sees
    seen = 2 * layers * shape.batch * shape.length * kv_heads * d * keys.element_size()
    attending = LimitPart(attention, seen, 4 * layers * heads * d * pairs)
    step = partial(model.step, weights, kv, groups, ids, positions, rows, last)
    whole = LimitPart(step, products.num_bytes + seen, products.operations + attending.operations)
    return {"step": whole, "matrices": products, "attention": attending}


# -- All of it -------------------------------------------------------------------------------------

SHAPES = {
    "decode, batch 1": LimitShape(1, 1, 255),
    "decode, batch 4": LimitShape(4, 1, 255),
    "decode, batch 16": LimitShape(16, 1, 255),
    "prefill of 512": LimitShape(1, 512, 0),
}
AIM, AIMED = 50.0, "decode, batch 1"  # percent of the limit: under twice the time
DTYPES = ("float32", "bfloat16")
WARM_UP = 3  # runs of each part before the first that counts: torch.jit compiles in two of them


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
    """One step and its parts, and the share of the limit that each reaches."""
    decodes = shape.extend == 1
    found = parts(model, shape)
    layer = [matrices[0] for matrices in (model.weights.qkv, model.weights.gate_up)]
    rate = bandwidth() if decodes else matrix_rate(layer, shape.num_tokens)
    emptying = torch.ones(READ // 4)

    def milliseconds(part: LimitPart) -> float:
        emptying.sum()  # nothing of the model is left in a cache, as other layers leave nothing
        start = time.perf_counter()
        part.run()
        return 1000 * (time.perf_counter() - start)

    for part in found.values():
        for _ in range(WARM_UP):
            part.run()
    arms: dict[str, Measure | str] = {"rate": rate}
    arms |= {name: partial(milliseconds, part) for name, part in found.items()}
    values, _ = interleave(arms, call.repetitions, lambda doing: call.report(f"{title}: {doing}"))
    best = max(values["rate"])
    unit = "GB/s" if decodes else "GFLOP/s"
    rows = [figure(f"{title}: limit", [rate / 1e9 for rate in values["rate"]], unit)]
    for name, part in found.items():
        work = part.num_bytes if decodes else part.operations
        shares = [1e5 * work / best / ms for ms in values[name]]
        rows.append(figure(f"{title}: {name}", values[name], "ms"))
        row = figure(f"{title}: {name}, of the limit", shares, "%", aim if name == "step" else None)
        spent = ", ".join(f"{other} {median(values[other]):.1f}" for other in list(found)[1:])
        why = f"of {median(values['step']):.1f} ms, called by themselves: {spent}"
        rows.append(row.because(f"{why}; norms and the rest have what is left"))
    return rows


PART = BenchPart(limit_rows, ("device", "model", "dtype"), ("thread",))
