"""Attention over paged KV in torch, with the same bits whatever the batch looks like.

Queries come in multiples of ``ROWS``. Values are multiplied in blocks of ``BLOCK`` positions that
are added up one after the other, so that a block of mere padding adds exact zeros.

Like ``llama_torch_layers.py`` this is in the subset that ``torch.jit.script`` compiles.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 4
BLOCK = 64


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
