"""A worker whose steps take time on the device and next to none on the host that simulates it."""

from __future__ import annotations

from typing import Any

from ..core import ScheduleBatch
from ..devices.base import NO_LABEL, Device, Label
from ..devices.cost import CostModel
from ..devices.vector import Vector
from ..models.base import ForwardBatch
from ..relay import Relay
from ..worker import GenerationBatchResult, Worker
from .length import LengthModel

NO_ARRAYS: Any = [Vector()] * 8
NOTHING = ForwardBatch(NO_LABEL, False, 0, [], [], [], [], [], [], *NO_ARRAYS)


class LengthWorker(Worker):
    """Launches the same three ops as ``Worker``, at the same cost, but ships no tokens with them.

    No page table is filled and no id resolved: the length model looks at neither. So a step costs
    the simulation what its rows cost, not what their prompts would.
    """

    def __init__(
        self, device: Device, model: LengthModel, relay: Relay, depth: int, cost: CostModel
    ) -> None:
        super().__init__(
            device, model, relay,
            num_slots=0, max_running_requests=0, max_len=0, depth=depth, cost=cost,
        )  # fmt: skip
        self.lengths = model
        self.num_steps = 0
        self.peak_tokens = 0  # computed in one step: what activations need memory for

    def prepare(
        self, batch: ScheduleBatch, previous: GenerationBatchResult | None = None
    ) -> ForwardBatch:
        """Host: there is nothing to ship."""
        return NOTHING

    def launch_forward(
        self,
        batch: ScheduleBatch,
        inputs: ForwardBatch,
        previous: GenerationBatchResult | None = None,
        launched_by: int = 0,
    ) -> GenerationBatchResult:
        """Host: queue a forward pass that only takes time."""
        forward = self.forward_stream.launch(
            do_nothing, name="forward", cost=self._forward_cost(batch), label=self._label(batch)
        )
        self.device.recorder.edge("launch", launched_by, forward.slice_id)
        return GenerationBatchResult(batch, forward)

    def launch_sample(self, pending: GenerationBatchResult, inputs: ForwardBatch) -> None:
        """Host: queue sampling and the copy to the host."""
        batch, label = pending.batch, self._label(pending.batch)
        cost = self.cost.sample_rows(len(batch.reqs))
        pending.delay_sample_func = None
        pending.next_token_ids = tokens = self.forward_stream.launch(
            self._sample_rows, batch, name="sample", cost=cost, label=label
        )
        self.copy_stream.wait(tokens)
        pending.copy_done = copy = self.copy_stream.launch(
            bring_over, tokens, name="copy", cost=self.cost.copy, label=label
        )
        self.device.recorder.edge("copy", tokens.slice_id, copy.slice_id)

    def _label(self, batch: ScheduleBatch) -> Label:
        if not self.device.recorder.is_on:
            return NO_LABEL
        return Label(batch.step, batch.mode.value, batch.rids)

    def _forward_cost(self, batch: ScheduleBatch) -> int:
        _, num_tokens = batch.size
        self.num_steps += 1
        self.peak_tokens = max(self.peak_tokens, num_tokens)
        return self.cost.forward_rows(zip(batch.starts, map(len, batch.ids), strict=True))

    def _sample_rows(self, batch: ScheduleBatch) -> Vector:
        """Device: each row's token, [num_reqs]."""
        token = self.lengths.token
        return Vector([token(req.params) for req in batch.reqs])


def do_nothing() -> None:
    """Device: a forward pass that only takes time."""


def bring_over(tokens: Vector) -> Vector:
    """Device: the copy to the host."""
    return tokens
