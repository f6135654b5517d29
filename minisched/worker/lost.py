"""A step that is lost: it fails on the host, before all of it was launched.

An op that fails on the device needs nobody: whoever takes its value fails with it. But a step whose
inputs found no memory, or whose thread went wrong, has ops that nobody launches any more, and its
requests may be in a step behind it already. That one reads and writes through cells of the page
table that this one was to fill: with what stood there before, it would write into pages that are
somebody else's by now. So small ops fill them, and let a relay that counts steps take its turn,
unless the forward pass has.
"""

from __future__ import annotations

from functools import partial
from itertools import chain

from ..devices.base import Array
from ..models.base import ModelWorkerBatch, get_model_worker_batch
from .recording import StepTouches
from .worker import Step, StepOp, Worker


def launch_or_lose(worker: Worker, step: Step, upto: str = "") -> Step:
    """``Worker.launch`` on a thread of the host: what goes wrong there has failed the step."""
    try:
        if step.error is not None:
            raise step.error
        if step.rest:
            worker.launch(step, upto)
    except Exception as error:
        lose(worker, step, error)
    return step


def lose(worker: Worker, step: Step, error: Exception) -> None:
    """Host: the step has failed; launch what stands in for its forward pass."""
    if step.launched:
        step.fail(error)
    batch, declared = step.batch, step.touches
    is_bound = step.flat is not None and step.logits_output is None and step.hidden is None
    if step.flat is None:  # the relay has not bound it: only its cells of the table are right
        ids = [0] * batch.num_tokens
        dests = ids[: len(batch.reqs)]
        step.flat = get_model_worker_batch(batch, ids, dests, worker.max_len, worker.page_size)
        declared = worker.touches.undeclared(batch, step.flat)
    # What it reads is nobody's: the relay's cells may lack what this step was to send there.
    written = [touch for touch in chain.from_iterable(declared) if touch.kind != "read"]
    step.touches = StepTouches(written)
    step.edges = step.next_token_ids = step.copy_done = step.delay_sample_func = None
    step.rest.clear()
    for op in worker.recipe:
        if op.name == "forward":
            fill = partial(fill_table, place=op.place, resolves=is_bound)
            worker.queue(step, StepOp(
                "page table", fill, op.stream, takes=("flat",), gives=op.gives,
                awaited_by=op.awaited_by, touches=op.touches,
            ))  # fmt: skip
    worker.device.flush(*step.launched)
    step.fail(error)
    step.error = None  # it names frames, and one of these this step


def fill_table(worker: Worker, flat: ModelWorkerBatch, *, place: str, resolves: bool) -> Array:
    """What is left of the forward pass where a step is lost; nobody uses what the relay gives."""
    table, asarray = worker.page_tables[place], worker.device.xp.asarray
    if flat.table_index:
        table[asarray(flat.table_index)] = asarray(flat.table_slots)
    if resolves:
        worker.relay.resolve_future(asarray(flat.input_ids), None)
    return table[:1]
