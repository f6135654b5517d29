"""A worker whose steps take time on the device and next to none on the host that simulates it."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from ..core import ScheduleBatch
from ..devices.base import Device
from ..devices.cost import CostModel
from ..devices.vector import Vector
from ..relay import Relay
from ..worker import Step, Worker
from ..worker.worker import COPY, FORWARD, SAMPLE
from .length import LengthModel


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
            num_slots=0, max_running_requests=0, max_len=0, depth=depth, cost=cost, recipe=LENGTHS,
        )  # fmt: skip
        self.num_steps = 0
        self.peak_tokens = 0  # computed in one step: what activations need memory for

    def prepare(self, step: Step, previous: Step | None = None) -> None:
        """Host: there is nothing to lay out, unless a loop does that by itself."""
        step.rest.extend(self.recipe)
        self.ship(step)

    def ship(self, step: Step) -> None:
        """Host: there is nothing to ship, and nothing that sampling had to know."""
        step.adjustments = []
        self.num_steps += 1
        self.peak_tokens = max(self.peak_tokens, step.batch.size[1])


def do_nothing(worker: Worker) -> None:
    """Device: a forward pass that only takes time."""


def sample_rows(worker: Worker, batch: ScheduleBatch) -> Vector:
    """Device: each row's token, [num_reqs]."""
    token = cast(LengthModel, worker.model).token
    return Vector([token(req.params) for req in batch.reqs])


def bring_over(worker: Worker, tokens: Vector) -> Vector:
    """Device: the copy to the host."""
    return tokens


def forward_cost(worker: Worker, step: Step) -> int:
    """Of the positions that its rows compute."""
    batch = step.batch
    return worker.cost.forward_rows(zip(batch.starts, map(len, batch.ids), strict=True))


LENGTHS = (
    replace(FORWARD, run=do_nothing, takes=(), cost=forward_cost, touches=lambda *_: ()),
    replace(SAMPLE, run=sample_rows, takes=("batch",), touches=lambda *_: ()),
    replace(COPY, run=bring_over, takes=("next_token_ids",), touches=lambda *_: ()),
)
