"""An exact model without weights: the next token depends on every KV slot that it should.

It has two layers of integer "attention". A layer's KV at a position is a hash. A position attends
to the sum of hashes of all slots before it, read through the page table. The second layer hashes
the sums of the first. So a slot that was wrong when it was read spoils all later tokens, as in a
real model. A wrong slot, a wrong position, a stale token, a missing chunk: each changes the tokens.
``registry.py`` has the same model for torch and MLX.
"""

from __future__ import annotations

from math import isnan
from typing import Any

from ..devices.base import Buffer, Device
from ..devices.sim import Vector
from .base import ForwardBatch
from .sampling import adjust, choose, logprobs

P = 2**31 - 1  # a prime; every value is below it, so no product overflows a signed 64-bit word
A, B, C = 1_103_515_245, 1_013_904_223, 12_345
NUM_LAYERS = 2
ELSEWHERE = 1_234_567  # added to a state, it makes other logits
LOGIT_SCALE = 10 / P  # hashed logits lie in [0, 10), a useful range for temperature and top-p


def mix(a: int, b: int) -> int:
    """Return a number in [0, P) that depends on both arguments, each in [0, P).

    It is not random: as a function of one argument it is a parabola (mod P). Independent numbers
    come from ``sampling.threefry``.
    """
    z = (a * A + b * B + C) % P
    return z * z % P


class HashModel:
    """The hash model on lists of integers, by default of the 256 bytes and an end-of-text token."""

    name = "hash"
    dtype = ""
    pad_to = 1
    num_layers = NUM_LAYERS
    agree = 10  # of 10 tokens, the average number equal to those of its target model
    tokenizer: Any = None

    def __init__(
        self,
        vocab_size: int = 257,
        context_len: int = 4096,
        eos_ids: frozenset[int] = frozenset({256}),
    ) -> None:
        self.vocab_size = vocab_size
        self.context_len = context_len
        self.eos_ids = eos_ids

    def allocate(self, device: Device, num_slots: int, max_len: int) -> None:
        """Take two layers of KV, one integer for each slot."""
        self.max_len = max_len
        self.kv: list[Buffer] = [device.memory(f"kv{i}", num_slots) for i in range(NUM_LAYERS)]

    def forward(self, batch: ForwardBatch, ids: Vector, page_table: Buffer) -> Any:
        """Return logits [num_logits, vocab] from exact integers."""
        hidden = self.forward_layers(range(NUM_LAYERS), batch, ids, page_table)
        return self.compute_logits(batch, hidden)

    def forward_layers(self, layers: range, batch: Any, hidden: Any, page_table: Buffer) -> Any:
        """Run some layers (``loops/vllm_pp.py:LayeredModel``)."""
        for layer in layers:
            hidden = self.forward_layer(layer, batch, hidden, page_table)
        return hidden

    def forward_layer(
        self, layer: int, batch: ForwardBatch, hidden: list[int], page_table: Buffer
    ) -> list[int]:
        """Run one layer, from hidden states [num_tokens] to hidden states; the first takes ids.

        All rows write their new slots before any row reads those before its first position, as
        attention kernels do: a row may begin with pages that another row of the step computes.
        """
        kv, out, at = self.kv[layer], list[int](), 0
        rows: list[tuple[int, list[int], list[int]]] = []  # start, slots and new keys of each row
        for row, length in zip(batch.rows, batch.extend_lens, strict=True):
            start = batch.positions[at]
            slots = page_table[row * self.max_len : row * self.max_len + start + length]
            keys = [mix(value, p) for p, value in enumerate(hidden[at : at + length], start)]
            kv[slots[start:]] = keys
            rows.append((start, slots[:start], keys))
            at += length
        for start, slots, keys in rows:
            total = sum(mix(value, p) for p, value in enumerate(kv[slots]))
            for position, key in enumerate(keys, start):
                total += mix(key, position)
                out.append(total % P)
        return out

    def compute_logits(self, batch: ForwardBatch, hidden: list[int]) -> Any:
        """Return logits [num_logits, vocab] from the hidden states of the wanted tokens."""
        states = [self.settle(mix(hidden[at], batch.positions[at] + 1)) for at in batch.logits_at]
        vocab = range(self.vocab_size)
        rows: Any = ([mix(state, token) * LOGIT_SCALE for token in vocab] for state in states)
        return Vector(rows)

    def settle(self, state: Any) -> Any:
        """Return the states [num_logits] that logits are hashed from.

        They are integers, or an array of them. A draft model differs from its target in this alone:
        of ten states, ``10 - agree`` get logits of their own. So a draft depends on every token
        before it, and on no device.
        """
        if self.agree == 10:
            return state
        return (state + (state % 10 >= self.agree) * ELSEWHERE) % P

    def read_kv(self, slots: list[int]) -> list[Any]:
        """Return the KV of these slots, [num_layers][num_slots] (PD separation sends it)."""
        return [layer[slots] for layer in self.kv]

    def write_kv(self, slots: list[int], values: list[Any]) -> None:
        """Write KV that was computed elsewhere into these slots."""
        for layer, of_layer in zip(self.kv, values, strict=True):
            layer[slots] = of_layer

    def logprobs(self, logits: Any, at: Any, tokens: Any, top: int) -> Any:
        """Return log-probabilities of tokens, from some of the logits."""
        return logprobs(logits, at, tokens, top)

    def sample(self, logits: list[list[float]], batch: ForwardBatch) -> Vector:
        """Return one token for each row of logits, [num_samples]: if greedy, the first maximum."""
        if batch.adjustments:
            logits = adjust(logits, batch.adjustments)
        tokens = Vector()
        for row, sampling in zip(logits, batch.sampling, strict=True):
            if sampling[0].temperature > 0 or isnan(sum(row)):
                tokens.append(choose(row, *sampling))
            else:
                tokens.append(row.index(max(row)))
        return tokens
