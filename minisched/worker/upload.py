"""Prompts that are copied to the device, on a stream that the forward pass waits for.

A relay that has every token of every request on the device (``relay/token_pool.py``) must be given
those that the host knows. That copy is an op in front of the plain ones (mini-sglang
``scheduler/scheduler.py:overlap_loop``: the scheduler has a stream of its own, and
``engine.stream.wait_stream`` orders the step after it). It is launched as soon as a step is
shipped; with any other relay there is nothing to copy, and no such op.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..devices.base import Array
from ..relay.base import Prompts
from .worker import COPY, FORWARD, SAMPLE, Recipe, StepOp, Worker


def upload(worker: Worker, prompts: Prompts) -> Array:
    """What the relay lacks of a step's rows, now in its cells."""
    relay: Any = worker.relay
    return relay.write(prompts.cells, prompts.tokens)


def with_upload(stream: str) -> Recipe:
    """A plain step with its upload on this stream."""
    copies = StepOp(
        "upload",
        upload,
        stream,
        takes=("prompts",),
        gives="upload",
        awaited_by="forward",
        cost=lambda worker, step: worker.cost.copy,
        touches=lambda worker, step: step.prompts.touches if step.prompts else (),
    )
    return (copies, replace(FORWARD, edge=("upload", "upload")), SAMPLE, COPY)


UPLOAD = with_upload("scheduler")
