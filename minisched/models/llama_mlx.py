"""A Llama on MLX over a paged KV cache: a step is one lazy graph of few and large operations.

All tokens of a batch are multiplied together, and rows that compute equally many positions attend
together. ``NewTokens`` and ``Window`` depend on positions alone, so they are made once for each
step and serve all layers (as SGLang's ``BatchedDecodeContext`` does with ``seq_lens`` since
#23470). On the CPU every operation costs some microseconds, and there would be thousands of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from ..devices.base import Device
from ..devices.mlx import evaluate
from ..devices.mlx_arrays import MlxArrays
from .base import ForwardBatch
from .llama import (
    AUTO,
    RowRun,
    choose_dtype,
    equal_extents,
    read_config,
    read_weights,
)
from .sampling_arrays import logprobs, sample
from .tokenizer import Tokenizer

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}


def load(file: Path) -> dict[str, mx.array]:
    """Return the tensors of a safetensors file."""
    tensors: dict[str, mx.array] = mx.load(str(file))  # type: ignore[assignment]
    return tensors


def turned(matrix: mx.array) -> mx.array:
    """Return a matrix [out, in] as [in, out], which halves the time of MLX's Linux BLAS."""
    return mx.contiguous(matrix.T)


# -- The slots of the paged KV cache that a step writes and reads, and the mask --------------------
#
# SGLang's MLX backend has a cache for each request, mlx-lm one for a batch; here pages are gathered
# by each step. lessons/site/docs/mlx_caches.md compares them.


class NewTokens(NamedTuple):
    """The slots of a step's tokens, and the rotation of their queries and keys, for all layers."""

    write: mx.array  # [tokens] KV slots
    cos: mx.array  # [tokens, 1, d] of the rotary embedding, for both halves of a head
    sin: mx.array  # [tokens, 1, d]


class Window(NamedTuple):
    """The positions that some rows of equal extent attend to; shared by all layers.

    The window covers the longest row, and the mask hides the missing positions of shorter rows. A
    token at position i sees position j if j <= i. The stock CPU kernels add position by position,
    so a wider window adds zeros at the end and changes no bit.
    """

    read: mx.array  # [2 * kv_heads, rows, width] places of the window's numbers in a pool
    mask: mx.array  # [rows, 1, extent, width] booleans


def attend(q: mx.array, keys: mx.array, values: mx.array, mask: mx.array) -> mx.array:
    """Return the attention of q [rows * extent, heads, d], in that shape.

    Keys are [kv_heads, rows, width, d]. Query heads that share a KV head are rows of one matrix, so
    K and V are never repeated.
    """
    tokens, heads, d = q.shape
    kv_heads, rows, width, _ = keys.shape
    split = (rows, tokens // rows, kv_heads, heads // kv_heads, d)
    q = q.reshape(split).transpose(2, 0, 3, 1, 4)  # [kv_heads, rows, shared, extent, d]
    scores = q.reshape(kv_heads, rows, -1, d) @ keys.swapaxes(-1, -2)
    by_head = scores.reshape(*q.shape[:-1], width)
    seen = mx.softmax(mx.where(mask, by_head, -mx.inf), axis=-1, precise=True)
    out = (seen.reshape(scores.shape) @ values).reshape(q.shape)
    return out.transpose(1, 3, 0, 2, 4).reshape(tokens, heads * d)


# -- The model -------------------------------------------------------------------------------------


class LlamaMlx:
    """A Llama from a directory in Hugging Face's form (``models/base.py:Model``).

    ``dtype`` is ``auto`` (``llama.choose_dtype``) or one of ``DTYPES``.

    On the CPU, with the kernels of the stock Linux wheel, logits do not depend on the batch or on
    chunks, not by a bit. On Metal, or with another BLAS, they do.

    Raises:
        ValueError: ``dtype`` is unknown, or the directory does not hold a Llama.
    """

    pad_to = 1
    logprobs = staticmethod(logprobs)
    sample = staticmethod(sample)

    def __init__(self, directory: str | Path, dtype: str = AUTO) -> None:
        directory = Path(directory)
        config = read_config(directory)
        self.name, self.dtype = directory.name, choose_dtype(directory, dtype, DTYPES, "MLX")
        self.vocab_size = config.vocab_size
        self.context_len = config.max_position_embeddings
        self.eos_ids = config.eos_ids
        self.tokenizer: Any = Tokenizer.from_directory(directory)
        self.weights = read_weights(
            directory, config, self.context_len, MlxArrays(), DTYPES[self.dtype], load, turned
        )
        evaluate(self.weights)  # type: ignore[arg-type]
        self.num_layers = config.num_hidden_layers
        self.kv_shape = (config.num_key_value_heads, config.head_dim)
        self.pools: list[mx.array] = []

    def first_layers(self, count: int) -> LlamaMlx:
        """Return a draft model: the first 1 to ``num_layers`` layers, with the same weights."""
        draft = copy(self)
        draft.num_layers, draft.name = count, f"first {count} layers of {self.name}"
        return draft

    def allocate(self, device: Device, num_slots: int, max_len: int) -> None:
        """Take keys and values for every layer that runs: [num_slots, 2 * kv_heads, d].

        Read with heads first, each head of a row is a matrix that BLAS takes without a copy.
        """
        self.max_len = max_len
        shape = (num_slots, 2 * self.kv_shape[0], self.kv_shape[1])
        self.pools = [mx.zeros(shape, self.weights.embed.dtype) for _ in range(self.num_layers)]
        evaluate(*self.pools)

    def forward(self, batch: ForwardBatch, ids: mx.array, page_table: mx.array) -> mx.array:
        """Return logits [num_logits, vocab] after each of the wanted tokens."""
        w, layers, new = self.weights, self.weights.layers, self.new_tokens(batch, page_table)
        windows = [
            self.window_of(group, batch, page_table) for group in equal_extents(batch.extend_lens)
        ]
        x = w.embed[ids]
        for at in range(self.num_layers):
            h = mx.fast.rms_norm(x, layers["attention_norm"][at], w.eps)
            x = x + self.attention(h, at, new, windows) @ layers["out"][at]
            h = mx.fast.rms_norm(x, layers["mlp_norm"][at], w.eps)
            gate, up = mx.split(h @ layers["gate_up"][at], 2, axis=-1)
            x = x + (gate * mx.sigmoid(gate) * up) @ layers["down"][at]
        logits: mx.array = mx.fast.rms_norm(x[batch.logits_at], w.final_norm, w.eps) @ w.head
        return logits

    def new_tokens(self, batch: ForwardBatch, page_table: mx.array) -> NewTokens:
        """Return the slots of a batch's tokens, and their rotation."""
        cos, sin = (part[batch.positions[:, None]] for part in (self.weights.cos, self.weights.sin))
        return NewTokens(page_table[batch.token_rows * self.max_len + batch.positions], cos, sin)

    def window_of(self, group: RowRun, batch: ForwardBatch, page_table: mx.array) -> Window:
        """Return the window of rows of equal extent, from the host's bound of their length."""
        cells = mx.array([row * self.max_len for row in batch.rows[group.rows]])[:, None]
        positions = batch.positions[group.tokens].reshape(-1, group.extend_len)
        seen = mx.arange(max(batch.prefix_lens[group.rows]) + group.extend_len)
        slots = page_table[cells + mx.minimum(seen, positions[:, -1:])]
        heads = mx.arange(2 * self.kv_shape[0], dtype=slots.dtype)
        return Window(
            read=slots * len(heads) + heads[:, None, None],
            mask=(seen <= positions[..., None])[:, None],
        )

    def attention(
        self, h: mx.array, layer: int, new: NewTokens, windows: Sequence[Window]
    ) -> mx.array:
        """Return the attention of h [tokens, dim] in a layer, [tokens, heads * d].

        ``windows`` are of neighbouring rows, and cover all tokens in order. All keys and values are
        written before any are read.
        """
        w, pool, (kv_heads, d) = self.weights.layers, self.pools[layer], self.kv_shape
        qkv = h @ w["qkv"][layer]
        if "qkv_bias" in w:
            qkv = qkv + w["qkv_bias"][layer]
        qkv = qkv.reshape(len(h), -1, d)
        heads = qkv.shape[1] - 2 * kv_heads
        qk = qkv[:, : heads + kv_heads]  # queries and keys in one go
        if "qk_norm" in w:
            qk = mx.fast.rms_norm(qk, None, self.weights.eps) * w["qk_norm"][layer]
        one, two = mx.split(qk, 2, axis=-1)  # the halves of a head, turned against each other
        turned = qk * new.cos + mx.concatenate([-two, one], axis=-1) * new.sin
        pool[new.write] = mx.concatenate([turned[:, heads:], qkv[:, heads + kv_heads :]], axis=1)
        counts = (window.mask.shape[0] * window.mask.shape[2] for window in windows)
        ends = list(accumulate(counts))  # of the windows' tokens: rows times extent
        queries, seen = mx.split(turned[:, :heads] * d**-0.5, ends[:-1]), []
        for q, window in zip(queries, windows, strict=True):
            both = pool.reshape(-1, d)[window.read]
            seen.append(attend(q, both[:kv_heads], both[kv_heads:], window.mask))
        return mx.concatenate(seen)
