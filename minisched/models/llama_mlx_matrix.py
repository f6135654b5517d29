"""A matrix of weights on MLX, laid in memory as the BLAS at hand reads it soonest."""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

import mlx.core as mx

from ..devices.mlx_evaluate import evaluate

TILE = 64  # columns: four vectors of AVX-512, for which OpenBLAS has a kernel
SMALL = 100**3  # multiplications; above, OpenBLAS first packs the matrix, which takes a copy of it
WORTH = 0.6  # of the time: tiles take the memory of the weights once more
TIMINGS = 3  # of which the shortest counts


class Layout(NamedTuple):
    """How matrices lie: turned over or as files have them, and whether once more in tiles."""

    turned: bool
    tiled: bool = False


class Matrix(NamedTuple):
    """For ``times``: the matrix [in, out], where that pays in tiles too, and what is added."""

    whole: mx.array  # [in, out]; in memory so, or turned as in files
    tiles: mx.array | None = None  # [out / TILE, in, TILE], each of them in one piece
    bias: mx.array | None = None  # [out]


def times(x: mx.array, matrix: Matrix) -> mx.array:
    """x [tokens, in] by the matrix and plus its bias, [tokens, out]; few tokens go through tiles.

    A tile with few tokens is a product so small that OpenBLAS reads the tile as it lies: for one
    token in half the time (``kernel/x86_64/sgemm_small_kernel_permit_skylakex.c``).
    """
    whole, tiles, bias = matrix
    if tiles is None or x.shape[0] * tiles.shape[1] * TILE > SMALL:
        y = x @ whole
    else:
        y = (x @ tiles).swapaxes(0, 1).reshape(x.shape[0], -1)
    return y if bias is None else y + bias


def lay(weight: mx.array, layout: Layout, bias: mx.array | None = None) -> Matrix:
    """The matrix of a file's weight [out, in], and its bias [out]."""
    whole = mx.contiguous(weight.T) if layout.turned else weight.T
    fits = weight.shape[0] % TILE == 0
    return Matrix(whole, in_tiles(weight) if layout.tiled and fits else None, bias)


def in_tiles(weight: mx.array) -> mx.array:
    """A file's weight [out, in] as [out / TILE, in, TILE]."""
    return mx.contiguous(weight.reshape(-1, TILE, weight.shape[1]).swapaxes(1, 2))


def quickest(weight: mx.array) -> Layout:
    """The layout for all matrices, by what one row times the largest, [out, in], takes in each.

    The plain BLAS of the stock Linux wheel adds vectors where matrices are turned over, instead of
    multiplying vectors to a number each: half the time, the same bits. OpenBLAS would take one and
    a half times as long, and wants tiles. On a GPU nothing is timed, so that two processes compute
    the same.
    """
    if mx.default_device().type == mx.DeviceType.gpu:
        return Layout(turned=True)
    row = mx.ones((1, weight.shape[1]), weight.dtype)
    as_filed, turned = seconds(row, weight.T), seconds(row, mx.contiguous(weight.T))
    tiled = seconds(row, in_tiles(weight[: weight.shape[0] // TILE * TILE]))
    return Layout(turned < as_filed, tiled < WORTH * min(as_filed, turned))


def seconds(row: mx.array, matrix: mx.array) -> float:
    """How long the product takes."""
    evaluate(row, matrix)
    taken = []
    for _ in range(TIMINGS):
        start = perf_counter()
        evaluate(row @ matrix)
        taken.append(perf_counter() - start)
    return min(taken)
