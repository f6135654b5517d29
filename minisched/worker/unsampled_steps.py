"""What history does to the logits of steps that are launched and yet to be sampled."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..core import LogitAdjustment, ScheduleBatch
from .sampling_info import make_adjustments


class UnsampledSteps:
    """Masks and penalties by step, from when the host builds them until sampling is launched.

    (SGLang keeps them in the batch: ``sampling/sampling_batch_info.py:update_regex_vocab_mask``.)
    Whoever does not ask for them before has them built when sampling is launched.
    """

    def __init__(self, late_penalties: bool = False) -> None:
        self.late_penalties = late_penalties
        self.adjustments: dict[int, list[LogitAdjustment | None]] = {}

    def update_vocab_mask(
        self, batch: ScheduleBatch, newest: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Host: build them, from what is known now; for ``newest`` see ``make_adjustments``."""
        self.adjustments[batch.step] = make_adjustments(batch, self.late_penalties, newest)

    def take(self, batch: ScheduleBatch) -> list[LogitAdjustment | None]:
        """Host: how each sample's logits are to be changed, [num_samples]; empty if none is."""
        if batch.step not in self.adjustments:
            self.update_vocab_mask(batch)
        return self.adjustments.pop(batch.step)

    def __contains__(self, batch: ScheduleBatch) -> bool:
        return batch.step in self.adjustments
