"""What history does to the logits of steps that are launched and yet to be sampled."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from types import MappingProxyType

from ..core import LogitAdjustment, ScheduleBatch
from ..trace import Recorder
from .sampling_info import make_adjustments


class UnsampledSteps:
    """Masks and penalties by step, from when the host builds them until sampling is launched.

    (SGLang keeps them in the batch: ``sampling/sampling_batch_info.py:update_regex_vocab_mask``.)
    Whoever does not ask for them before has them built when sampling is launched.
    """

    def __init__(self, late_penalties: bool, recorder: Recorder) -> None:
        self.late_penalties = late_penalties
        self.recorder = recorder
        self.adjustments: dict[int, list[LogitAdjustment | None]] = {}

    def update_vocab_mask(
        self, batch: ScheduleBatch, newest: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Host: build them, from what is known now; for ``newest`` see ``make_adjustments``."""
        self.adjustments[batch.step] = made = make_adjustments(batch, self.late_penalties, newest)
        if made and self.recorder.is_on:
            self.record(batch, made)

    def take(self, batch: ScheduleBatch) -> list[LogitAdjustment | None]:
        """Host: how each sample's logits are to be changed, [num_samples]; empty if none is."""
        if batch.step not in self.adjustments:
            self.update_vocab_mask(batch)
        return self.adjustments.pop(batch.step)

    def record(self, batch: ScheduleBatch, made: list[LogitAdjustment | None]) -> None:
        """Mark how many tokens each row's grammar allows, at each place that it samples."""
        rest = iter(made)
        for req, num_samples in zip(batch.reqs, batch.sample_lens, strict=True):
            masks = [item.vocab_mask for item in islice(rest, num_samples) if item is not None]
            counts = [
                int.from_bytes(mask, "little").bit_count() for mask in masks if mask is not None
            ]
            if counts:
                allowed = " ".join(map(str, counts))
                self.recorder.mark("grammar mask", step=batch.step, rid=req.rid, allowed=allowed)

    def __contains__(self, batch: ScheduleBatch) -> bool:
        return batch.step in self.adjustments
