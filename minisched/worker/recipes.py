"""What a step is made of beside its forward pass, sampling and copy: the recipes that loops name.

Log-probabilities are computed and brought over only in a step in which somebody wants them. Where a
relay takes every input from the device, what the host knows is copied there first.
"""

from __future__ import annotations

from typing import Any

from ..devices.base import Array
from ..models.base import ForwardBatch
from ..relay.base import Prompts
from .logprobs import compute
from .worker import COPY, FORWARD, SAMPLE, Recipe, StepOp, Worker


def logprobs(worker: Worker, inputs: ForwardBatch, logits: Array, tokens: Array) -> Array:
    """How likely each place's token is, [num_places, 1 + 2 * top_logprobs_num]."""
    return compute(worker.model, worker.device.xp, inputs.logprobs, logits, tokens)


def copy_logprobs(worker: Worker, found: Array) -> Array:
    """The same on the host."""
    return worker.device.bring_to_host(found)


def upload(worker: Worker, prompts: Prompts) -> Array:
    """What the relay lacks of a step's rows, now in its cells."""
    relay: Any = worker.relay
    return relay.write(prompts.cells, prompts.tokens)


LOGPROBS = (
    StepOp(
        "logprobs",
        logprobs,
        takes=("inputs", "logits_output", "next_token_ids"),
        gives="found_logprobs",
        awaited_by="copy",
        cost=lambda worker, step: worker.cost.logprobs,
        touches=lambda worker, step: [worker.touches.inputs(step.batch)],
        needs="logprobs",
    ),
    StepOp(
        "copy logprobs",
        copy_logprobs,
        "copy",
        takes=("found_logprobs",),
        gives="logprobs",
        edge=("copy", "found_logprobs"),
        cost=lambda worker, step: worker.cost.copy,
        needs="logprobs",
    ),
)
PLAIN: Recipe = (FORWARD, SAMPLE, COPY, *LOGPROBS)


def with_upload(stream: str) -> Recipe:
    """A plain step whose prompts are copied to the device, on a stream that the pass waits for.

    mini-sglang ``scheduler/scheduler.py:overlap_loop``: the scheduler has a stream of its own, and
    ``engine.stream.wait_stream`` orders the step after it. With any relay that is no
    ``UploadRelay`` there is nothing to copy.
    """
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
    return (copies, *PLAIN)


UPLOAD = with_upload("scheduler")


UPLOAD = with_upload("scheduler")
