"""A Llama step in torch: paged KV in, logits out, and the same bits whatever the batch looks like.

Batch shape normally changes a float's last bits, because kernels split their sums by shape. Here
no sum has a shape that depends on the batch: linears and attention see rows in multiples of
``ROWS`` (libraries give left-over rows to other kernels), and ``llama_torch_attention.py`` sums by
blocks. Measured on the CPU with oneDNN (float32, bfloat16) and MKL (float64); elsewhere it is not
claimed.

The functions are plain torch in the subset that ``torch.jit.script`` compiles: compiled, a whole
step runs without the interpreter lock. (It can't read postponed annotations of named tuples, so
this module does without them.)
"""

from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from .llama_torch_attention import Group, PagedKV, attend_group, look, pad_rows

AT_ONCE = 32767  # numbers: one more, and torch may give an elementwise operation to two threads


class LlamaWeights(NamedTuple):
    """Every weight; ``dim`` is the hidden size, ``d`` a head's. Matrices may be packed.

    Lists have an entry for each layer; biases and ``qk_norm`` are None where there are none.
    """

    embed: Tensor  # [vocab, dim]
    attention_norm: Tensor  # [layers, dim]
    qkv: list[Tensor]  # [(heads + 2 kv_heads) * d, dim]
    qkv_bias: list[Optional[Tensor]]  # noqa: UP045  (this, and not `|`, is what torch.jit reads)
    qk_norm: list[Optional[Tensor]]  # noqa: UP045  [heads + kv_heads, d]
    out: list[Tensor]  # [dim, heads * d]
    out_bias: list[Optional[Tensor]]  # noqa: UP045
    mlp_norm: Tensor  # [layers, dim]
    gate_up: list[Tensor]  # [2 * width, dim]
    gate_up_bias: list[Optional[Tensor]]  # noqa: UP045
    down: list[Tensor]  # [dim, width]
    down_bias: list[Optional[Tensor]]  # noqa: UP045
    final_norm: Tensor  # [dim]
    head: Tensor  # [vocab, dim]
    cos: Tensor  # [context_len, d]
    sin: Tensor  # [context_len, d]
    eps: float  # of the norms


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
    """``x`` [m, in] times a matrix [out, in] of ``llama_torch_weights.pack``, or a plain one."""
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of x [num_tokens, heads, d]; cos and sin [num_tokens, 1, d]."""
    half = x.size(-1) // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def silu(x: Tensor, at_once: int = AT_ONCE) -> Tensor:
    """SiLU of x [num_tokens, width], a few rows at a time.

    Otherwise torch may cut a row in two to give it to two threads, and the ends of a cut are
    computed with another exponential.
    """
    rows = max(1, at_once // x.size(1))
    if x.size(0) <= rows:
        return F.silu(x)
    return torch.cat([F.silu(part) for part in x.split(rows)])


def llama_step(
    weights: LlamaWeights,
    kv: PagedKV,
    groups: list[Group],
    ids: Tensor,
    positions: Tensor,
    token_rows: Tensor,
    logits_at: Tensor,
) -> Tensor:
    """One forward pass: write the KV of the tokens, give logits [num_logits, vocab].

    ``ids``, ``positions`` and ``token_rows`` [num_tokens] may be padded at the end; the KV of
    padding is not written. ``logits_at`` [num_logits] says after which tokens logits are wanted.
    """
    kv_heads, d = kv.keys.size(2), kv.keys.size(3)
    heads = weights.qkv[0].size(0) // d - 2 * kv_heads
    x, eps, dim = weights.embed[ids], weights.eps, [weights.embed.size(1)]
    cos, sin = weights.cos[positions].unsqueeze(1), weights.sin[positions].unsqueeze(1)
    views = [look(group, kv, positions, token_rows, heads // kv_heads) for group in groups]
    real = groups[-1].first + groups[-1].num_rows * groups[-1].extend_len
    new = kv.page_table[(token_rows * kv.max_len + positions)[:real]]  # the tokens' own KV slots
    for layer in range(len(weights.qkv)):
        keys, values = kv.keys[layer], kv.values[layer]
        h = F.rms_norm(x, dim, weights.attention_norm[layer], eps)
        h = linear(h, weights.qkv[layer], weights.qkv_bias[layer])
        qk, v = h.view(x.size(0), -1, d).split([heads + kv_heads, kv_heads], 1)
        qk_norm = weights.qk_norm[layer]
        if qk_norm is not None:
            qk = F.rms_norm(qk, [d], None, eps) * qk_norm
        q, k = rotate(qk, cos, sin).split([heads, kv_heads], 1)  # both in one go
        keys.index_copy_(0, new, k[:real])
        values.index_copy_(0, new, v[:real])
        seen = torch.zeros([x.size(0), heads, d], dtype=x.dtype, device=x.device)
        for group, view in zip(groups, views):  # noqa: B905
            tokens = slice(group.first, group.first + group.num_rows * group.extend_len)
            seen[tokens] = attend_group(q[tokens], keys, values, view, group)
        x = x + linear(seen.flatten(1), weights.out[layer], weights.out_bias[layer])
        h = F.rms_norm(x, dim, weights.mlp_norm[layer], eps)
        h = linear(h, weights.gate_up[layer], weights.gate_up_bias[layer])
        gate, up = h.chunk(2, -1)
        x = x + linear(silu(gate) * up, weights.down[layer], weights.down_bias[layer])
    x = F.rms_norm(x[logits_at], dim, weights.final_norm, eps)
    return linear(pad_rows(x), weights.head)[: logits_at.size(0)]
