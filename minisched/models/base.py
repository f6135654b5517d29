"""What the worker asks of a model."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from ..devices.base import Array, Buffer, Device
from .forward_batch import ForwardBatch

Tokenizer = Any  # encode(text) -> list[int], decode(ids) -> str


class Model(Protocol):
    """A language model over paged KV memory that it owns.

    ``page_table[row * max_len + position]`` is the KV slot of a position. Slot 0 is nobody's.
    """

    name: str
    dtype: str  # what it computes in; empty: in whole numbers, or not at all
    vocab_size: int
    context_len: int
    eos_ids: frozenset[int]
    pad_to: int
    tokenizer: Tokenizer | None

    def allocate(self, device: Device, num_slots: int, max_len: int) -> None:
        """Take KV memory for ``num_slots`` slots and rows of at most ``max_len`` positions."""
        ...

    def forward(self, batch: ForwardBatch, ids: Array, page_table: Buffer) -> Array:
        """On the device: write the KV of ``ids`` [num_tokens], give logits [num_logits, vocab].

        ``batch.positions`` says where rows begin. ``batch.prefix_lens`` is what the host knows of
        it, which may be too much: a draft model goes on from tokens that only the device counts.
        """
        ...

    def sample(self, logits: Array, batch: ForwardBatch) -> Array:
        """On the device: one token for each place that is sampled, [num_samples].

        -1 - token where its logits are not numbers (``not_numbers.py``).
        """
        ...


@runtime_checkable
class GraphModel(Protocol):
    """A model that captures decode steps before there are any (``llama_graphs.py``)."""

    def init_cuda_graphs(self, device: Device, page_table: Buffer, max_bs: int) -> Buffer:
        """Capture steps of up to ``max_bs`` rows, 0 for none; give the page table they read."""
        ...


class LogitModel(Model, Protocol):
    """A model that computes logits, as every one does but ``length.py``."""

    def logprobs(self, logits: Array, at: Array, tokens: Array, top: int) -> Array:
        """On the device: how likely tokens are, [num_places, 1 + 2 * top]; see ``logprobs.py``."""
        ...
