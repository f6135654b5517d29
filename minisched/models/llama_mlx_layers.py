"""A Llama step in MLX: paged KV in, logits out, as one lazy graph of few and large operations.

All tokens of a batch are multiplied together; rows of equal extent attend together. What depends
on the positions alone, a ``Window`` holds for all layers: on the CPU every operation costs some
microseconds, and there would be thousands of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import mlx.core as mx

from .llama_mlx_weights import LlamaWeights
from .paged_cache_mlx import PagedCache, Window


def hidden_states(
    weights: LlamaWeights, caches: Sequence[PagedCache], windows: Sequence[Window], ids: mx.array
) -> mx.array:
    """``ids`` [tokens] to hidden states [tokens, dim], through a layer per cache.

    ``windows`` are of neighbouring rows, and cover all tokens in order.
    """
    x = weights.embed[ids]
    for layer, cache in zip(weights.layers, caches, strict=False):
        h = mx.fast.rms_norm(x, layer.attention_norm, weights.eps)
        x = x + attention(h @ layer.qkv, cache, windows, weights.heads) @ layer.out
        h = mx.fast.rms_norm(x, layer.mlp_norm, weights.eps)
        x = x + silu(h @ layer.gate) * (h @ layer.up) @ layer.down
    return x


def logits(weights: LlamaWeights, x: mx.array) -> mx.array:
    """Hidden states [num_logits, dim] to logits [num_logits, vocab]."""
    return mx.fast.rms_norm(x, weights.final_norm, weights.eps) @ weights.head


def silu(x: mx.array) -> mx.array:
    """x * sigmoid(x)."""
    return x * mx.sigmoid(x)


def rotate(x: mx.array, window: Window) -> mx.array:
    """Rotary position embedding of x [tokens, heads, d], halves turned against each other."""
    one, two = mx.split(x, 2, axis=-1)
    return x * window.cos + mx.concatenate([two, one], axis=-1) * window.sin


def attention(qkv: mx.array, cache: PagedCache, windows: Sequence[Window], heads: int) -> mx.array:
    """What the tokens of qkv [tokens, (heads + 2 * kv_heads) * d] see, [tokens, heads * d]."""
    qkv = qkv.reshape(-1, heads + 2 * cache.kv_heads, cache.head_dim)
    if len(windows) == 1:
        return attend(qkv, cache, windows[0], heads)
    ends = list(accumulate(window.write.size for window in windows))
    parts = mx.split(qkv, ends[:-1])
    pairs = zip(parts, windows, strict=True)
    return mx.concatenate([attend(part, cache, window, heads) for part, window in pairs])


def attend(qkv: mx.array, cache: PagedCache, window: Window, heads: int) -> mx.array:
    """The same for rows of equal extent: qkv [rows * extent, heads + 2 * kv_heads, d].

    Query heads that share a KV head are rows of one matrix, so K and V are never repeated.
    """
    kv_heads, d = cache.kv_heads, cache.head_dim
    turned = rotate(qkv[:, : heads + kv_heads], window)  # queries and keys in one go
    cache.write(window, turned[:, heads:], qkv[:, heads + kv_heads :])
    keys, values = cache.read(window)  # [kv_heads, rows, width, d]
    rows, extent, width = window.mask.shape[-4], window.mask.shape[-2], window.mask.shape[-1]
    split = (rows, extent, kv_heads, heads // kv_heads, d)
    q = (turned[:, :heads] * d**-0.5).reshape(split).transpose(2, 0, 3, 1, 4)
    scores = q.reshape(kv_heads, rows, -1, d) @ keys.swapaxes(-1, -2)
    by_head = scores.reshape(kv_heads, rows, -1, extent, width)
    seen = mx.softmax(mx.where(window.mask, by_head, -mx.inf), axis=-1, precise=True)
    out = (seen.reshape(scores.shape) @ values).reshape(q.shape)
    return out.transpose(1, 3, 0, 2, 4).reshape(rows * extent, heads * d)
