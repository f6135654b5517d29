"""A paged KV cache with the interface that mlx-lm's attention layers expect of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True)
class Window:
    """Which positions some rows of equal extent write and attend to; shared by all layers.

    The window covers the longest row, and the mask hides what a row lacks: position j is seen by a
    token at position i if j <= i. The stock CPU kernels add position by position, so a wider window
    adds zeros at the end and changes no bit.
    """

    offset: mx.array  # [rows] position of each row's first new token
    write: mx.array  # [rows * extent] KV slots of the new tokens
    read: mx.array  # [rows, width] KV slots of the window
    mask: mx.array  # [rows, 1, extent, width] booleans

    @classmethod
    def of(
        cls,
        page_table: mx.array,
        max_len: int,
        rows: Sequence[int],
        positions: mx.array,
        width: int,
    ) -> Window:
        """The window of ``rows`` of the page table, which compute ``positions`` [rows, extent].

        ``width`` covers every row, and may be wider: the host need not know how long each row is.
        """
        cells = mx.array([row * max_len for row in rows])[:, None]  # where each row's table begins
        window = mx.arange(width)
        return cls(
            offset=positions[:, 0],
            write=page_table[cells + positions].reshape(-1),
            read=page_table[cells + mx.minimum(window, positions[:, -1:])],
            mask=(window <= positions[..., None])[:, None],
        )


class PagedCache:
    """One layer's keys and values, [num_slots, kv_heads, head_dim] each.

    ``window`` is set before a forward. mlx-lm reads ``offset`` (for the rotary embedding), and
    calls ``make_mask`` and ``update_and_fetch`` (``mlx_lm/models/cache.py:BatchKVCache``).
    """

    def __init__(self, num_slots: int, kv_heads: int, head_dim: int, dtype: mx.Dtype) -> None:
        self.keys = mx.zeros((num_slots, kv_heads, head_dim), dtype)
        self.values = mx.zeros((num_slots, kv_heads, head_dim), dtype)
        self.window: Window | None = None

    @property
    def offset(self) -> mx.array:
        """Position of each row's first new token, [rows]."""
        assert self.window is not None
        return self.window.offset

    def make_mask(self, extent: int, **options: object) -> mx.array:
        """Who sees what, [rows, 1, extent, width]."""
        assert self.window is not None
        return self.window.mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write [rows, kv_heads, extent, head_dim], read [rows, kv_heads, width, head_dim]."""
        assert self.window is not None
        return self._through(self.keys, keys), self._through(self.values, values)

    def _through(self, pool: mx.array, new: mx.array) -> mx.array:
        assert self.window is not None
        pool[self.window.write] = new.swapaxes(1, 2).reshape(-1, *pool.shape[1:])
        return pool[self.window.read].swapaxes(1, 2)
