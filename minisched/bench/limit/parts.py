"""A Llama's step on torch and the parts that it is made of, each called by itself.

A matrix of all layers is one part: each layer's is multiplied in turn, as in a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...models.llama_torch import LlamaTorch, bytes_each, make_groups, script
from ...models.llama_torch_layers import ROWS, Group, PagedKV, attend_group, linear, look

Run = Callable[[], object]


@dataclass(frozen=True)
class Shape:
    """``batch`` requests that compute ``extend`` positions each, after ``before`` others."""

    batch: int
    extend: int
    before: int

    @property
    def num_tokens(self) -> int:
        """Computed in the step."""
        return self.batch * self.extend

    @property
    def length(self) -> int:
        """Positions of each request after the step."""
        return self.before + self.extend


@dataclass(frozen=True)
class Part:
    """What is run, the bytes that it has to read once, and its multiplications and additions."""

    run: Run
    num_bytes: int = 0
    operations: int = 0


def each(x: Tensor, matrices: list[Tensor], kept: list[Tensor]) -> None:
    """``x`` times every matrix; the last product is kept.

    Each is written to a list from outside: of products that nobody sees, torch.jit drops most.
    """
    for matrix in matrices:
        kept[0] = linear(x, matrix)


def kv_of(model: LlamaTorch, shape: Shape) -> PagedKV:
    """A cache of small numbers; row r + 1 has its positions one after the other."""
    slots = 1 + shape.batch * shape.length
    keys = torch.full((model.num_layers, slots, *model.kv_shape), 0.1)
    keys = keys.to(model.weights.embed.dtype)
    table = torch.arange(slots - 1 + shape.length) - shape.length + 1
    return PagedKV(keys, keys.clone(), table.clamp(min=0), shape.length)


def parts(model: LlamaTorch, shape: Shape) -> dict[str, Part]:
    """``step`` and its parts, by name."""
    weights, kv = model.weights, kv_of(model, shape)
    before, extend = [shape.before] * shape.batch, [shape.extend] * shape.batch
    groups = make_groups(before, extend, bytes_each(kv.keys))
    padding = [0] * (-shape.num_tokens % ROWS)
    positions = torch.tensor([*range(shape.before, shape.length)] * shape.batch + padding)
    rows = torch.tensor([r + 1 for r in range(shape.batch) for _ in range(shape.extend)] + padding)
    ids = torch.arange(len(positions)) % model.vocab_size
    last = torch.arange(1, shape.batch + 1) * shape.extend - 1
    step = partial(model.step, weights, kv, groups, ids, positions, rows, last)
    scripted = script(each)

    def product(num_tokens: int, matrices: list[Tensor]) -> Part:
        padded = num_tokens + -num_tokens % ROWS
        x = torch.ones(padded, matrices[0].size(1), dtype=weights.embed.dtype)
        size = sum(matrix.numel() for matrix in matrices)
        run = partial(scripted, x, matrices, [x])
        return Part(run, size * x.element_size(), 2 * size * num_tokens)

    found = {
        "embedding": Part(lambda: weights.embed[ids]),
        "qkv": product(shape.num_tokens, weights.qkv),
        "attention": attention(model, shape, kv, groups, positions, rows),
        "out": product(shape.num_tokens, weights.out),
        "mlp gate and up": product(shape.num_tokens, weights.gate_up),
        "mlp down": product(shape.num_tokens, weights.down),
        "head": product(shape.batch, [weights.head]),
    }
    num_bytes = sum(part.num_bytes for part in found.values())
    return {"step": Part(step, num_bytes, sum(p.operations for p in found.values())), **found}


def attention(
    model: LlamaTorch,
    shape: Shape,
    kv: PagedKV,
    groups: list[Group],
    positions: Tensor,
    rows: Tensor,
) -> Part:
    """Of all layers: what is remembered is gathered, and looked at."""
    kv_heads, d = model.kv_shape
    heads = model.weights.qkv[0].size(0) // d - 2 * kv_heads
    q = torch.ones(len(positions), heads, d, dtype=kv.keys.dtype)
    scripted = script(attend_group)
    views = [look(group, kv, positions, rows, heads // kv_heads) for group in groups]

    def run() -> None:
        for layer in range(model.num_layers):
            for group, view in zip(groups, views, strict=True):
                tokens = slice(group.first, group.first + group.num_rows * group.extend_len)
                scripted(q[tokens], kv.keys[layer], kv.values[layer], view, group)

    pairs = int((positions[: shape.num_tokens] + 1).sum())  # of a position and one that it sees
    seen = shape.batch * shape.length
    num_bytes = 2 * model.num_layers * seen * kv_heads * d * kv.keys.element_size()
    return Part(run, num_bytes, 4 * model.num_layers * heads * d * pairs)
