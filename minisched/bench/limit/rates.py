"""What the machine allows: how fast it reads memory, and how fast it multiplies matrices.

A limit is what nothing exceeds, so each rate is the fastest of several ways to reach it. A sum
alone is now and then slower than a product by oneDNN; a plain float32 ``a @ b`` reaches a third of
the rate of matrices that lie in oneDNN's order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ...models.llama_torch import pack
from ...models.llama_torch_layers import linear

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
