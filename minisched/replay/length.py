"""A model that computes nothing: every request says how many tokens it wants, and gets them."""

from __future__ import annotations

from typing import Any

from ..core import SamplingParams
from ..devices.base import Array, Buffer, Device
from ..devices.vector import Vector
from ..models.base import ForwardBatch


class LengthModel:
    """For recorded workloads, of which only lengths are known (``models/base.py:Model``).

    A request that is numbered ``seed`` answers with one token over and over: the id
    ``first_output_id + seed``. No prompt has it, and no other answer, so that nothing is shared
    which was not shared in the recording. ``context_len``: the longest prompt and answer together.
    """

    name = "length"
    dtype = ""
    pad_to = 1
    eos_ids: frozenset[int] = frozenset()
    tokenizer: Any = None

    def __init__(self, first_output_id: int, num_requests: int, context_len: int) -> None:
        self.first_output_id = first_output_id
        self.vocab_size = first_output_id + num_requests
        self.context_len = context_len

    def token(self, params: SamplingParams) -> int:
        """What a request with these parameters says, at every position."""
        return self.first_output_id + params.seed

    def allocate(self, device: Device, num_slots: int, max_len: int) -> None:
        """Nothing: there is no KV."""

    def forward(self, batch: ForwardBatch, ids: Array, page_table: Buffer) -> None:
        """Nothing: there are no logits."""

    def sample(self, logits: Array, batch: ForwardBatch) -> Vector:
        """Each request's token, [num_reqs]."""
        return Vector(self.token(params) for params, _, _ in batch.sampling)
