"""What the machine allows: how fast it reads memory, and how fast it multiplies matrices."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

READ = 1 << 28  # bytes: several times the caches
SIDE = 1024  # of the matrices
TRIES = 3  # in one measurement, of which the fastest counts: it is a limit


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
    """Measures bytes a second: a sum reads each byte once."""
    values = torch.ones(READ // 4)
    return lambda: READ / fastest(values.sum)


def matrix_rate(dtype: torch.dtype) -> Callable[[], float]:
    """Measures multiplications and additions a second of two square matrices."""
    a, b = (torch.ones(SIDE, SIDE, dtype=dtype) for _ in range(2))
    return lambda: 2 * SIDE**3 / fastest(lambda: a @ b)
