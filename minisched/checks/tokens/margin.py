"""How close the call was where two runs differ: the two largest logits at that place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...core import Request, SamplingParams
from ...devices.base import Array
from ...devices.registry import open_device
from ...loops.run import Run, run_loop
from ...models.base import ForwardBatch, Model
from ...scheduler import SchedulerConfig
from .identity import Difference


def with_margin(
    found: Difference,
    device: str,
    model: Model,
    config: SchedulerConfig,
    requests: Sequence[Request],
    serial: Run,
) -> Difference:
    """The difference with the top-2 logit margin at its place, from one request run alone."""
    request = next(item for item in requests if item.rid == found.rid)
    agreed = serial.outputs[found.rid][: found.position]
    params = SamplingParams(max_new_tokens=1)  # logits as they are before any wish
    margins: list[float] = []
    sample = model.sample

    def spy(logits: Array, batch: ForwardBatch) -> Array:
        top = sorted(map(float, logits[0]))[-2:]
        margins.append(top[1] - top[0])
        return sample(logits, batch)

    model.sample = spy  # type: ignore[method-assign]
    try:
        alone = Request(request.rid, [*request.prompt, *agreed], params)
        run_loop("serial", open_device(device), model, [alone], config)
    finally:
        model.sample = sample  # type: ignore[method-assign]
    return replace(found, margin=margins[-1]) if margins else found
