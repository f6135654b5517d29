"""A Llama step in MLX: paged KV in, logits out, as one lazy graph of few and large operations.

All tokens of a batch are multiplied together; rows of equal extent attend together. What depends
on the positions alone, ``NewTokens`` and ``Window`` hold for all layers: on the CPU every operation
costs some microseconds, and there would be thousands of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import mlx.core as mx

from .llama_mlx_matrix import times
from .llama_mlx_weights import LlamaWeights
from .paged_cache_mlx import NewTokens, PagedCache, Window


def hidden_states(
    weights: LlamaWeights,
    caches: Sequence[PagedCache],
    new: NewTokens,
    windows: Sequence[Window],
    ids: mx.array,
) -> mx.array:
    """``ids`` [tokens] to hidden states [tokens, dim], through a layer per cache.

    ``windows`` are of neighbouring rows, and cover all tokens in order.
    """
    x = weights.embed[ids]
    for layer, cache in zip(weights.layers, caches, strict=False):
        h = mx.fast.rms_norm(x, layer.attention_norm, weights.eps)
        seen = attention(times(h, layer.qkv), layer.qk_norm, weights, cache, new, windows)
        x = x + times(seen, layer.out)
        h = mx.fast.rms_norm(x, layer.mlp_norm, weights.eps)
        x = x + times(silu(times(h, layer.gate)) * times(h, layer.up), layer.down)
    return x


def logits(weights: LlamaWeights, x: mx.array) -> mx.array:
    """Hidden states [num_logits, dim] to logits [num_logits, vocab]."""
    return times(mx.fast.rms_norm(x, weights.final_norm, weights.eps), weights.head)


def silu(x: mx.array) -> mx.array:
    """x * sigmoid(x)."""
    return x * mx.sigmoid(x)


def rotate(x: mx.array, new: NewTokens) -> mx.array:
    """Rotary position embedding of x [tokens, heads, d], halves turned against each other."""
    one, two = mx.split(x, 2, axis=-1)
    return x * new.cos + mx.concatenate([two, one], axis=-1) * new.sin


def attention(
    qkv: mx.array,
    qk_norm: mx.array | None,
    weights: LlamaWeights,
    cache: PagedCache,
    new: NewTokens,
    windows: Sequence[Window],
) -> mx.array:
    """What the tokens of qkv [tokens, (heads + 2 * kv_heads) * d] see, [tokens, heads * d].

    All keys and values are written at once, before any are read.
    """
    heads, kv_heads, d = weights.heads, cache.kv_heads, cache.head_dim
    qkv = qkv.reshape(-1, heads + 2 * kv_heads, d)
    qk = qkv[:, : heads + kv_heads]  # queries and keys in one go
    if qk_norm is not None:
        qk = mx.fast.rms_norm(qk, None, weights.eps) * qk_norm
    turned = rotate(qk, new)
    cache.write(new, turned[:, heads:], qkv[:, heads + kv_heads :])
    ends = list(accumulate(window.num_tokens for window in windows))
    queries = mx.split(turned[:, :heads] * d**-0.5, ends[:-1])
    pairs = zip(queries, windows, strict=True)
    return mx.concatenate([attend(q, *cache.read(window), window.mask) for q, window in pairs])


def attend(q: mx.array, keys: mx.array, values: mx.array, mask: mx.array) -> mx.array:
    """The same for rows of equal extent: q [rows * extent, heads, d], [kv_heads, rows, width, d].

    Query heads that share a KV head are rows of one matrix, so K and V are never repeated.
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
