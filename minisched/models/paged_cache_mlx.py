"""A paged KV cache on MLX, and which of its slots a step writes and reads.

SGLang's MLX backend has a cache for each request, which a step copies into a batch; mlx-lm has a
batch, which is copied when a request comes or goes. Pages are gathered by each step, and stay where
they are. ``minisched bench mlx`` measures the three, and lessons/site/docs/mlx_caches.md says which
is good for what. All that depends on positions alone is made once a step, and not in each layer:
what SGLang's ``BatchedDecodeContext`` does with ``seq_lens`` since #23470.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True)
class NewTokens:
    """Where a step's tokens go, and how their queries and keys are turned; shared by all layers."""

    write: mx.array  # [tokens] KV slots
    cos: mx.array  # [tokens, 1, d] of the rotary embedding, for both halves of a head
    sin: mx.array  # [tokens, 1, d] with the sign that each half needs


@dataclass(frozen=True)
class Window:
    """Which positions some rows of equal extent attend to; shared by all layers.

    The window covers the longest row, and the mask hides what a row lacks: position j is seen by a
    token at position i if j <= i. The stock CPU kernels add position by position, so a wider window
    adds zeros at the end and changes no bit.
    """

    read: mx.array  # [2 * kv_heads, rows, width] heads of KV slots: where the window's numbers lie
    mask: mx.array  # [rows, 1, extent, width] booleans

    @property
    def num_tokens(self) -> int:
        """New tokens of all rows."""
        rows, _, extent, _ = self.mask.shape
        return rows * extent


def new_tokens(slots: mx.array, positions: mx.array, rope: tuple[mx.array, mx.array]) -> NewTokens:
    """Tokens at ``positions`` [tokens], whose KV goes to ``slots`` [tokens].

    ``rope`` are cosines and sines [context_len, d / 2].
    """
    cos, sin = (part[positions[:, None]] for part in rope)
    return NewTokens(
        write=slots,
        cos=mx.concatenate([cos, cos], axis=-1),
        sin=mx.concatenate([-sin, sin], axis=-1),
    )


def window_of(
    table: mx.array, cells: list[int], positions: mx.array, width: int, kv_heads: int
) -> Window:
    """The window of rows whose page tables begin at ``cells`` of ``table``.

    They compute ``positions`` [rows, extent]. ``width`` covers every row, and may be wider: the
    host need not know how long each row is.
    """
    begin, seen = mx.array(cells)[:, None], mx.arange(width)
    slots = table[begin + mx.minimum(seen, positions[:, -1:])]
    heads = mx.arange(2 * kv_heads, dtype=slots.dtype)
    return Window(
        read=slots * (2 * kv_heads) + heads[:, None, None],
        mask=(seen <= positions[..., None])[:, None],
    )


class PagedCache:
    """One layer's keys and values, side by side: [num_slots, 2 * kv_heads, head_dim].

    A step writes both at once, and reads both at once, heads first: so each head of a row is a
    matrix that BLAS takes as it lies.
    """

    def __init__(self, num_slots: int, kv_heads: int, head_dim: int, dtype: mx.Dtype) -> None:
        self.kv_heads, self.head_dim = kv_heads, head_dim
        self.pool = mx.zeros((num_slots, 2 * kv_heads, head_dim), dtype)

    def write(self, new: NewTokens, keys: mx.array, values: mx.array) -> None:
        """Keep [tokens, kv_heads, head_dim] of each."""
        self.pool[new.write] = mx.concatenate([keys, values], axis=1)

    def read(self, window: Window) -> tuple[mx.array, mx.array]:
        """Keys and values that the rows attend to, [kv_heads, rows, width, head_dim] each."""
        both = self.pool.reshape(-1, self.head_dim)[window.read]
        return both[: self.kv_heads], both[self.kv_heads :]
