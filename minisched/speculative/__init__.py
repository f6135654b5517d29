"""Guessing the next tokens, so that one step can verify several: what is asked of a drafter.

``lookup.py`` finds drafts in the text so far, ``draft_model.py`` asks a smaller model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ..core import ScheduleBatch
from ..devices.base import Array, Arrays, Buffer, Device
from ..devices.cost import CostModel
from ..models.base import ForwardBatch
from ..trace import Touch


class Reach(NamedTuple):
    """Where the positions of one row of a step may lie, as far as the host knows."""

    row: int  # of the request table
    rid: str
    is_prompt: bool
    start: int  # the least
    end: int  # one past the most
    slots: Sequence[int]  # that the page table lists for it; the last page may go on past ``end``


class Drafter(Protocol):
    """Something on the device that guesses the tokens behind the newest one (``speculative/``)."""

    num_draft_tokens: int

    def allocate(
        self, device: Device, num_slots: int, max_running_requests: int, max_len: int
    ) -> None:
        """Take the memory that it needs."""
        ...

    def bind(self, batch: ScheduleBatch, xp: Arrays) -> Any:
        """Host: what ``draft`` must be told of a step, beside its inputs."""
        ...

    def draft(
        self,
        batch: ForwardBatch,
        bound: Any,
        tokens: Array,
        num_accepted: Array,
        page_table: Buffer,
    ) -> Array:
        """Device: ``num_draft_tokens`` guesses for each row, [num_reqs * k].

        ``batch`` has real ids and positions; of the ``tokens`` [num_samples] that the target chose
        ``num_accepted`` [num_reqs] of each row count.
        """
        ...

    def touches(self, reaches: Sequence[Reach]) -> Sequence[Touch]:
        """Host: what ``draft`` may touch at most, of memory that others touch too."""
        ...

    def cost(self, cost: CostModel, num_tokens: int) -> int:
        """Nanoseconds that drafting takes on ``sim``."""
        ...
