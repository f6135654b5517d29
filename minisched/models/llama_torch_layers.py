"""A Llama step in torch: paged KV in, logits out, and the same bits whatever the batch looks like.

Batch shape normally changes a float's last bits, because kernels split their sums by shape. Here
no sum has a shape that depends on the batch: linears and attention see rows in multiples of
``ROWS`` (libraries give left-over rows to other kernels), and attention multiplies values in blocks
of ``BLOCK`` positions that are added up one after the other, so that a block of mere padding adds
exact zeros. Measured on the CPU with oneDNN (float32, bfloat16) and MKL (float64); elsewhere it is
not claimed.

The functions are plain torch in the subset that ``torch.jit.script`` compiles: compiled, a whole
step runs without the interpreter lock. (It can't read postponed annotations of named tuples, so
this module does without them.)
"""

from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 4
BLOCK = 64
AT_ONCE = 32767  # numbers: one more, and torch may give an elementwise operation to two threads


class PagedKV(NamedTuple):
    """What attention remembers. ``page_table[row * max_len + position]`` is a KV slot."""

    keys: Tensor  # [layers, num_slots, kv_heads, d]
    values: Tensor  # [layers, num_slots, kv_heads, d]
    page_table: Tensor  # [num_rows * max_len]
    max_len: int


class Group(NamedTuple):
    """Neighbouring rows of a batch that compute equally many positions and attend together."""

    first: int  # the group's first token in the flat batch
    num_rows: int
    extend_len: int
    window: int  # positions looked at: a multiple of BLOCK that covers the longest row


class View(NamedTuple):
    """Where a group finds its KV, and what of it each token may see; the same for all layers."""

    cells: Tensor  # [num_rows * kv_heads * window] index into [num_slots * kv_heads]
    mask: Tensor  # [num_rows * kv_heads, m, window]: 0, or -inf for positions that lie ahead


def pad_rows(x: Tensor, rows: int = ROWS) -> Tensor:
    """``x`` [..., m, d] with rows of zeros added until m is a multiple of ``rows``."""
    return F.pad(x, [0, 0, 0, -x.size(-2) % rows])


def look(group: Group, kv: PagedKV, positions: Tensor, token_rows: Tensor, rep: int) -> View:
    """Read a group's part of the page table; ``rep`` query heads share a KV head."""
    tokens = slice(group.first, group.first + group.num_rows * group.extend_len)
    at = positions[tokens].view(group.num_rows, group.extend_len, 1)
    row = token_rows[tokens].view(group.num_rows, group.extend_len)[:, :1]
    seen = torch.arange(group.window, device=at.device)
    slots = kv.page_table[row * kv.max_len + torch.minimum(seen, at[:, -1])]  # [num_rows, window]
    kv_heads = kv.keys.size(2)
    heads = torch.arange(kv_heads, device=at.device).view(-1, 1)
    ahead = torch.zeros_like(seen, dtype=kv.keys.dtype).masked_fill(seen > at, float("-inf"))
    mask = pad_rows(ahead.repeat_interleave(rep, 1)).repeat_interleave(kv_heads, 0)
    return View((slots.unsqueeze(1) * kv_heads + heads).flatten(), mask)


def scores(q: Tensor, k: Tensor, block: int = BLOCK) -> Tensor:
    """Products [b, m, window] of q [b, m, d] and k [b, window, d].

    In float64 block by block: how wide a product is changes the order in which MKL sums it.
    """
    if k.dtype != torch.float64:
        return torch.bmm(q, k.transpose(1, 2))
    b, m, d = q.size()
    blocks = k.size(1) // block
    parts = torch.bmm(q.repeat_interleave(blocks, 0), k.view(-1, block, d).transpose(1, 2))
    return parts.view(b, blocks, m, block).transpose(1, 2).reshape(b, m, -1)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, block: int = BLOCK) -> Tensor:
    """Masked attention of q [b, m, d] over k and v [b, window, d].

    Values are summed block by block: all blocks are multiplied in one call, and only their sum is
    taken one after the other.
    """
    b, m, d = q.size()
    blocks = k.size(1) // block
    weights = (scores(q * d**-0.5, k) + mask).softmax(-1)
    weights = weights.view(b, m, blocks, block).transpose(1, 2).reshape(-1, m, block)
    parts = torch.bmm(weights, v.view(-1, block, d)).view(b, blocks, m, d).unbind(1)
    out = parts[0]
    for part in parts[1:]:
        out = out + part
    return out


def attend_group(q: Tensor, keys: Tensor, values: Tensor, view: View, group: Group) -> Tensor:
    """Attention of a group's q [num_rows * extend_len, heads, d], in the same shape.

    ``keys`` and ``values`` are one layer's: [num_slots, kv_heads, d].
    """
    kv_heads, d = keys.size(1), keys.size(2)
    split = [group.num_rows, group.extend_len, kv_heads, -1, d]
    by_head = q.view(split).transpose(1, 2)  # [num_rows, kv_heads, extend_len, rep, d]
    k = keys.view(-1, d).index_select(0, view.cells).view(-1, group.window, d)
    v = values.view(-1, d).index_select(0, view.cells).view(-1, group.window, d)
    out = attend(pad_rows(by_head.reshape(k.size(0), -1, d)), k, v, view.mask)
    out = out[:, : by_head.size(2) * by_head.size(3)].reshape(by_head.size())
    return out.transpose(1, 2).reshape(q.size())


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
    """``x`` [m, in] times a matrix [out, in] of ``llama_torch.pack``, or a plain one."""
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
