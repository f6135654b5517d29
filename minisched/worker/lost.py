"""A lost step: it fails on the host, before all of its ops are launched.

An op that fails on the device needs no repair: each op that takes its value fails with it. But if
the inputs of a step find no memory, or its thread raises, the remaining ops are never launched. The
next step may be launched already, with the same requests. It relies on the cells of the page table
that the lost step was to fill. With the old content it would write into pages of other requests. So
a small op fills these cells. If the forward pass is not queued, it also takes the turn of the lost
step in a relay that counts steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any

from ..devices.base import Array, Buffer, is_out_of_memory
from ..models.base import ForwardBatch, flatten
from .recording import StepTouches
from .worker import Step, Worker


def launch_or_lose(worker: Worker[Any], step: Step, delay_sample: bool = False) -> Step:
    """Launch the remaining ops of a step on a thread of the host; an error there loses the step."""
    try:
        if step.error is not None:
            raise step.error
        if step.delay_sample_func is not None:
            step.delay_sample_func()
        elif step.logits_output is None:
            worker.launch(step, delay_sample=delay_sample)
    except Exception as error:
        lose(worker, step, error)
    return step


def build_mask(
    worker: Worker[Any], step: Step, newest: Mapping[str, Sequence[int]] = MappingProxyType({})
) -> None:
    """Build the masks and penalties of a step; without memory its next launch loses the step."""
    if step.has_result:
        return  # it is lost already, and samples nothing
    try:
        worker.update_vocab_mask(step, newest)
    except Exception as error:
        if not is_out_of_memory(error):
            raise  # a fault of the host's code
        step.error = error
        if step.delay_sample_func is not None:
            step.delay_sample_func = partial(lose, worker, step, error)


def lose(worker: Worker[Any], step: Step, error: Exception) -> None:
    """Mark the step as failed, and queue the op that replaces its forward pass."""
    if step.launched:
        step.fail(error)
    batch, declared = step.batch, step.touches
    is_bound = step.flat is not None and step.logits_output is None
    if step.flat is None:  # the relay has not bound it: only its cells of the table are right
        ids = [0] * batch.num_tokens
        future_slots = ids[: len(batch.reqs)]
        step.flat = flatten(batch, ids, future_slots, worker.max_len, worker.page_size)
        declared = worker.touches.undeclared(batch, step.flat)
    # It reads nothing of the relay, which may lack the tokens of this step, and samples nothing.
    touches = chain(declared.forward, declared.sample, declared.verify, declared.draft)
    step.touches = StepTouches([
        touch for touch in touches
        if touch.kind != "read" and not touch.resource.startswith("output")
    ])  # fmt: skip
    step.edges = step.next_token_ids = step.copy_done = step.delay_sample_func = None
    worker.launch_fill(step, partial(fill_table, num_ids=batch.num_tokens * is_bound))
    worker.device.flush(*step.launched)
    step.fail(error)
    step.error = None  # it names frames, and one of these this step


def fill_table(worker: Worker[Any], flat: ForwardBatch, table: Buffer, *, num_ids: int) -> Array:
    """Fill the page table on the device; no op uses the ids that the relay returns."""
    asarray = worker.device.xp.asarray
    if flat.table_index:
        table[asarray(flat.table_index)] = asarray(flat.table_slots)
    if num_ids:
        worker.relay.resolve_future(asarray(flat.ids[:num_ids]), None)
    return table[:1]
