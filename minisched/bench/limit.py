"""How near a Llama's steps on torch come to what the machine allows.

A decode step has to read weights and KV once: its limit is the memory's bandwidth, measured in the
same run, in turn with the steps and on as many threads; the limit is the best of all repetitions.

The number of threads is that of the ``thread`` device, which leaves a core to the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from ..models.fetch import find_model
from ..models.llama import MATRICES
from ..models.llama_torch import (
    ROWS,
    LlamaTorch,
    PagedKV,
    bytes_each,
    linear,
    make_groups,
    pack,
)
from .figures import BenchCall, BenchPart, Figure, Measure, interleave
from .generation import SLOWER

# -- What the machine allows: how fast it reads memory ---------------------------------------------

READ = 1 << 28  # bytes: several times the caches
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
    """Measures bytes a second: a sum, a product of two halves, and a matrix times one row.

    A limit is what nothing exceeds, so it is the fastest of several ways to read: a sum alone is
    now and then slower than a product by oneDNN.
    """
    values = torch.ones(READ // 4)
    side = int(len(values) ** 0.5)
    matrix, row = pack(torch.ones(side, side)), torch.ones(1, side)
    ways = (values.sum, partial(torch.dot, *values.chunk(2)), partial(linear, row, matrix))
    return lambda: READ / min(fastest(way) for way in ways)


# -- A Llama's decode step on torch, called by itself ----------------------------------------------


def step_of(model: LlamaTorch, batch: int, before: int) -> tuple[Callable[[], object], int]:
    """A step of so many requests after ``before`` tokens each, and the bytes that it has to read.

    KV are small numbers, row r + 1 has its positions in order.
    """
    weights, (kv_heads, d), layers = model.weights, model.kv_shape, model.num_layers
    end = before + 1
    slots = 1 + batch * end
    keys = torch.full((layers, slots, kv_heads, d), 0.1).to(weights.embed.dtype)
    table = (torch.arange(slots - 1 + end) - end + 1).clamp(min=0)
    kv = PagedKV(keys, keys.clone(), table, end)
    groups = make_groups([before] * batch, [1] * batch, bytes_each(keys))
    padding = [0] * (-batch % ROWS)
    positions = torch.tensor([before] * batch + padding)
    rows = torch.tensor([*range(1, batch + 1), *padding])
    ids = torch.arange(len(positions)) % model.vocab_size

    per_layer = [matrix for name in MATRICES for matrix in weights.layers[name]]
    size = sum(matrix.numel() for matrix in (*per_layer, weights.head))
    num_bytes = (size + 2 * layers * batch * end * kv_heads * d) * keys.element_size()
    run = partial(model.step, weights, kv, groups, ids, positions, rows, torch.arange(batch))
    return run, num_bytes


# -- All of it -------------------------------------------------------------------------------------

BATCHES, BEFORE = (1, 4, 16), 255
AIM, AIMED = 50.0, 1  # percent of the limit: under twice the time; the batch that it is of
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
    """Each batch in each dtype."""
    folder = Path(find_model(call.model or "smollm2"))
    rows = []
    for dtype in [call.dtype] if call.dtype else DTYPES:
        call.report(f"{dtype}: loading")
        model = LlamaTorch(folder, dtype)
        with threads(max(1, torch.get_num_threads() - 1)), torch.inference_mode():
            for batch in BATCHES:
                rows += batch_rows(model, f"{dtype} decode, batch {batch}", batch, call)
    return rows


def batch_rows(model: LlamaTorch, title: str, batch: int, call: BenchCall) -> list[Figure]:
    """The limit, one step, and the share of the limit that it reaches."""
    step, num_bytes = step_of(model, batch, BEFORE)
    emptying = torch.ones(READ // 4)

    def step_ms() -> float:
        emptying.sum()  # nothing of the model is left in a cache, as other layers leave nothing
        start = time.perf_counter()
        step()
        return 1000 * (time.perf_counter() - start)

    for _ in range(WARM_UP):
        step()
    arms = {"rate": bandwidth(), "step": step_ms}
    values, _ = interleave(arms, call.repetitions, lambda doing: call.report(f"{title}: {doing}"))
    shares = [1e5 * num_bytes / max(values["rate"]) / ms for ms in values["step"]]
    aim = AIM if batch == AIMED else None
    return [
        Figure(f"{title}: limit", [rate / 1e9 for rate in values["rate"]], "GB/s"),
        Figure(f"{title}: step", values["step"], "ms"),
        Figure(f"{title}: step, of the limit", shares, "%", aim).because(SLOWER),
    ]


PART = BenchPart(limit_rows, ("device", "model", "dtype"), ("thread",))
