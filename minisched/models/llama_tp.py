"""A Llama split over ranks, with the same bits for every number of them.

Tensor parallelism: each rank has some of the heads, with their KV, some columns of the MLP and some
rows of the vocabulary, and computes with all tokens. What its heads and its columns add to the
hidden states is a part of a sum over all ranks. (SGLang ``layers/linear.py``:
``QKVParallelLinear``, ``MergedColumnParallelLinear``, ``RowParallelLinear``; ``layers/
vocab_parallel_embedding.py:ParallelLMHead``.)

An all-reduce would add these parts in an order of its own, and each of them is itself a sum over as
much as a rank has: another number of ranks, other last bits, and now and then another token. So a
layer is cut into *blocks* first, as many as the model has KV heads, whoever computes them. A rank
runs its blocks one after the other, all ranks gather all blocks' parts, and each adds them in the
order of the blocks, in fp32. One rank has all blocks, and runs the same products of the same shapes
and the same sum.

What it costs: of a token and a layer every rank hands over two parts for each of its blocks, and
not two sums; one rank alone runs so many smaller products instead of one; and what it says is not
``LlamaTorch``'s to the last bit, whose sums are not cut. Blocks that don't divide evenly leave a
rank with one less: SmolLM2's three are two and one on two ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from itertools import accumulate
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ..devices.base import Array, Buffer, Device
from .base import ForwardBatch
from .llama import AUTO
from .llama_torch import (
    LlamaTorch,
    LlamaWeights,
    PagedKV,
    attention,
    bytes_each,
    logits_of,
    look_at_step,
    make_groups,
    mlp,
    move,
    place,
)

WIDTH = 32  # columns: torch's SiLU takes so many at a time, and others in another way


def blocks_of(rank: int, num_ranks: int, num_blocks: int) -> range:
    """Which blocks a rank has; who comes first has one more, where they don't divide evenly.

    Raises:
        ValueError: there are more ranks than blocks.
    """
    if num_ranks > num_blocks:
        raise ValueError(
            f"a model of {num_blocks} KV heads can't be split over {num_ranks} ranks; "
            f"--tp may be {num_blocks} at most."
        )
    sizes = [(num_blocks + num_ranks - 1 - at) // num_ranks for at in range(num_ranks)]
    ends = [0, *accumulate(sizes)]
    return range(ends[rank], ends[rank + 1])


def part_of(rows: Tensor, block: int, num_blocks: int, multiple_of: int = 1) -> Tensor:
    """A block's rows of a matrix or vector, in even parts: there are zeros behind the last ones."""
    size = -(-rows.size(0) // num_blocks // multiple_of) * multiple_of
    part = rows[block * size : (block + 1) * size]
    return F.pad(part, [0, 0] * (part.dim() - 1) + [0, size - part.size(0)])


def cut(weights: LlamaWeights, kv_heads: int, d: int, block: int) -> LlamaWeights:
    """A block's weights, of so many blocks as there are KV heads.

    ``weights`` are plain. Embeddings and norms are everybody's.
    """
    heads = weights.layers["qkv"][0].size(0) // d - 2 * kv_heads
    rep = heads // kv_heads
    mine = [*range(block * rep, (block + 1) * rep), heads + block]  # its query heads and its key

    def of_heads(qkv: Tensor) -> Tensor:
        by_head = qkv.view(heads + 2 * kv_heads, d, *qkv.shape[1:])
        return by_head[[*mine, heads + kv_heads + block]].flatten(0, 1)

    def of_width(gate_up: Tensor) -> Tensor:
        return torch.cat([part_of(half, block, kv_heads, WIDTH) for half in gate_up.chunk(2)])

    def of_sum(matrix: Tensor) -> Tensor:
        return part_of(matrix.t(), block, kv_heads, WIDTH).t().contiguous()

    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "qkv": of_heads,
        "qkv_bias": of_heads,
        "qk_norm": lambda norm: norm[mine],
        "out": lambda matrix: matrix.view(-1, heads, d)[:, mine[:-1]].flatten(1),
        "gate_up": of_width,
        "down": of_sum,
    }
    layers = {
        name: [ways[name](part) for part in parts] if name in ways else parts
        for name, parts in weights.layers.items()
    }
    return weights._replace(layers=layers, head=part_of(weights.head, block, kv_heads))


def add_up(parts: Tensor) -> Tensor:
    """The sum of parts [blocks, num_tokens, dim], one after the other in fp32."""
    sums = parts[0].to(torch.promote_types(parts.dtype, torch.float32))
    for part in parts[1:]:
        sums = sums + part
    return sums.to(parts.dtype)


class LlamaTP(LlamaTorch):
    """A Llama in blocks (``models/base.py:SplitModel``): the same logits on any number of ranks.

    It has all blocks itself; ``share`` gives what one rank has of it.

    Raises:
        ValueError: as ``LlamaTorch``.
    """

    def __init__(
        self, directory: str | Path, dtype: str = AUTO, context_len: int | None = None
    ) -> None:
        super().__init__(directory, dtype, context_len, scripted=False, packed=False)
        whole, (kv_heads, d) = self.weights, self.kv_shape
        self.gather: Callable[[Tensor], Tensor] = lambda parts: parts
        self.blocks = [cut(whole, kv_heads, d, at) for at in range(kv_heads)]
        self.weights = whole._replace(layers={}, head=whole.embed)

    def share(
        self, rank: int, num_ranks: int, all_gather: Callable[[Tensor], list[Tensor]]
    ) -> LlamaTP:
        """What one rank has; the weights are the same in memory.

        ``all_gather`` gives every rank's tensor, all of one shape, in the order of ranks.

        Raises:
            ValueError: there are more ranks than KV heads.
        """
        part, num_blocks = copy(self), self.kv_shape[0]
        shares = [blocks_of(at, num_ranks, num_blocks) for at in range(num_ranks)]
        part.blocks = [self.blocks[block] for block in shares[rank]]

        def gather(parts: Tensor) -> Tensor:
            padding = [0, 0] * (parts.dim() - 1) + [0, len(shares[0]) - len(parts)]
            every = all_gather(F.pad(parts, padding))
            return torch.cat([own[: len(it)] for own, it in zip(every, shares, strict=True)])

        part.gather = gather
        return part

    def allocate(self, device: Device, num_slots: int, max_len: int) -> None:
        """Put weights and KV where the device's memory is."""
        where = device.memory("probe", 1).device
        self.weights = move(self.weights, where)
        self.blocks = [place(block, where) for block in self.blocks]
        shape = (len(self.blocks), self.num_layers, num_slots, 1, self.kv_shape[1])
        self.keys = torch.zeros(shape, dtype=self.weights.embed.dtype, device=where)
        self.values = torch.zeros_like(self.keys)
        self.max_len = max_len

    def forward(self, batch: ForwardBatch, ids: Array, page_table: Buffer) -> Array:
        """Logits [num_logits, vocab] in the model's dtype, together with the other ranks."""
        weights, blocks = self.weights, self.blocks
        kvs = [
            PagedKV(keys, values, page_table, self.max_len)
            for keys, values in zip(self.keys, self.values, strict=True)
        ]
        groups = make_groups(batch.prefix_lens, batch.extend_lens, bytes_each(self.keys[0]))
        step = look_at_step(blocks[0], kvs[0], groups, batch.positions, batch.token_rows)
        x = weights.embed[ids]
        for layer in range(self.num_layers):
            parts = [
                attention(block, layer, kv, step, x) for block, kv in zip(blocks, kvs, strict=True)
            ]
            x = x + add_up(self.gather(torch.stack(parts)))
            parts = [mlp(block, layer, x) for block in blocks]
            x = x + add_up(self.gather(torch.stack(parts)))
        parts = [logits_of(block, x, batch.logits_at) for block in blocks]
        every = self.gather(torch.stack(parts))  # [blocks, num_logits, vocab / blocks]
        return every.transpose(0, 1).flatten(1)[:, : self.vocab_size]
