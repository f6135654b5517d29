"""The arrays of MLX: the functions that relays, the hash model and sampling call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import mlx.core as mx

INTEGER = mx.int32  # Metal has no scatter for 64-bit integers; tokens and KV slots need 31 bits
BLOCK = 256  # numbers in a block of ``log_softmax``


class MlxArrays:
    """The array functions of ``devices/base.py:Arrays``, in MLX; and functions for sampling."""

    lib: Any = mx
    word = mx.uint32  # for arithmetic with 32 bits; higher bits are cut off

    def asarray(self, values: Sequence[int]) -> mx.array:
        """Return 32-bit integers."""
        return mx.array(list(values), dtype=INTEGER)

    def asarrays(self, *columns: Sequence[int]) -> list[mx.array]:
        """Return an array for each; host and GPU share their memory."""
        return [self.asarray(values) for values in columns]

    def where(self, condition: mx.array, a: mx.array, b: mx.array) -> mx.array:
        """Return ``a`` where the condition holds, and ``b`` elsewhere."""
        return mx.where(condition, a, b)

    def mask(self, values: Sequence[bool]) -> mx.array:
        """Return booleans."""
        found: Any = values
        return mx.array(found, dtype=mx.bool_)

    def count_equal(self, a: mx.array, b: mx.array, width: int, num_rows: int) -> mx.array:
        """Return 1 + the number of leading equal elements of each of ``num_rows``, [num_rows]."""
        equal = (a == b).reshape(num_rows, width).astype(INTEGER)
        return 1 + mx.cumprod(equal, axis=-1).sum(axis=-1) if width else mx.ones(num_rows, INTEGER)

    def clamp(self, values: mx.array, min: int) -> mx.array:
        """Return the values, with ``min`` for each lower one."""
        return mx.maximum(values, min)

    # -- as in ``TorchArrays``

    def in_float64(self) -> AbstractContextManager[Any]:
        """Return a context in which float64 works: the CPU."""
        return mx.stream(mx.cpu)

    def numbers(self, values: Any, dtype: mx.Dtype) -> mx.array:
        """Return numbers of the host, or an array, in another dtype."""
        return values.astype(dtype) if isinstance(values, mx.array) else mx.array(values, dtype)

    def wide(self, values: mx.array) -> mx.array:
        """Return an array with at least 32 bits."""
        return values.astype(mx.float32) if values.dtype.size < 4 else values

    def arange(self, end: int) -> mx.array:
        """Return the integers from 0 on."""
        return mx.arange(end)

    def take(self, values: mx.array, at: mx.array) -> mx.array:
        """Return the elements ``at`` [num_rows, any] of each row."""
        return mx.take_along_axis(values, at, axis=-1)

    def put(self, values: mx.array, at: Any, new: mx.array) -> mx.array:
        """Return a copy with other values ``at`` one index or several."""
        copy = values.astype(values.dtype)  # a new handle
        copy[at] = new
        return copy

    def argmax(self, values: mx.array) -> mx.array:
        """Return the index of each row's largest value, the first among equals."""
        return mx.argmax(values, axis=-1).astype(INTEGER)

    def argsort(self, values: mx.array) -> mx.array:
        """Return each row's indices in ascending order of values, equals in order."""
        return mx.argsort(values, axis=-1)

    def largest(self, values: mx.array, count: int) -> mx.array:
        """Return each row's ``count`` largest values, in descending order."""
        return mx.sort(mx.topk(values, count, axis=-1), axis=-1)[:, ::-1]

    def exp(self, values: mx.array) -> mx.array:
        """Return exp, in float64 with full precision; ``mx.exp`` has that of float32 only."""
        return mx.power(mx.array(math.e, dtype=values.dtype), values)

    def log_softmax(self, values: mx.array) -> mx.array:
        """Return the log-softmax of each row, summed in blocks.

        ``mx.logsumexp`` sums a row from one end to the other. Over 49152 tokens its error is 3e-4
        (measured on the CPU, in float32). In blocks it is about 1e-6, the error of MLX's ``exp``,
        which float64 does not improve.
        """
        highest = mx.max(values, axis=-1, keepdims=True)
        weights = mx.pad(mx.exp(values - highest), [(0, 0), (0, -values.shape[-1] % BLOCK)])
        sums = mx.sum(weights.reshape(values.shape[0], -1, BLOCK), axis=-1)
        return values - (highest + mx.log(mx.sum(sums, axis=-1, keepdims=True)))
