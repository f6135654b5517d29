"""A step that could not be launched: what the steps behind it rely on is done all the same."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import ModelWorkerBatch, ScheduleBatch, get_model_worker_batch
from ..devices.base import Array, Arrays, Buffer, Label, Op, Stream
from ..models.base import ForwardBatch
from ..trace import Touch
from .pipeline import PipelineWorker
from .worker import GenerationBatchResult, Worker


def lose_step(
    worker: Worker,
    batch: ScheduleBatch,
    laid_out: ModelWorkerBatch | ForwardBatch | None,
    error: Exception,
) -> GenerationBatchResult:
    """Host: in the place of a launched step, one that has failed.

    Its requests may be in a step behind it already, which then reads and writes through cells of
    the page table that this one was to fill: with what stood there before, it would write into
    pages that are somebody else's by now. So small ops fill them, and let a relay that counts
    steps take its turn. ``laid_out`` is the step as far as it came; None: the relay has not bound
    it, or has resolved it.
    """
    worker.token_edges.forget(batch)
    flat, ids = laid_out or flat_of(worker, batch), ids_of(laid_out)
    stand_in: Op | None = None
    said = flat if isinstance(flat, ModelWorkerBatch) else flat_of(worker, batch)
    for stream, table, touches in page_tables(worker, worker.touches.of_lost(batch, said)):
        if stand_in is not None:
            stream.wait(stand_in)  # so that all have ended when the last one has
        stand_in = stream.launch(
            fill_table, worker, table, flat.table_index, flat.table_slots,
            ids if stream is worker.forward_stream else None,
            name="page table", label=Label(batch.step, batch.mode.value, batch.rids),
            touches=touches,
        )  # fmt: skip
    assert stand_in is not None
    worker.device.flush(stand_in)
    lost = GenerationBatchResult(batch, stand_in)
    lost.fail(error)
    worker.lost(lost)
    return lost


def left_behind(
    worker: Worker,
    batch: ScheduleBatch,
    laid_out: ModelWorkerBatch | ForwardBatch | None,
    launched: Op | None,
    error: Exception,
) -> GenerationBatchResult:
    """Host: what a thread that has died made of a step: at the most, its forward pass runs.

    ``launched`` is the call that was to launch that.
    """
    try:
        assert launched is not None
        pending: GenerationBatchResult = launched.synchronize()
    except Exception:
        return lose_step(worker, batch, laid_out, error)
    pending.fail(error)
    return lose_step(worker, batch, None, error)


def page_tables(
    worker: Worker, whole: Sequence[Touch]
) -> list[tuple[Stream, Buffer, Sequence[Touch]]]:
    """Every page table on the device: one, or one for each stage; with the stream that fills it.

    And with what is said to be touched: as in a step that raises, all that it would have been.
    """
    if isinstance(worker, PipelineWorker):
        return [(at.stream, at.page_table, list(at.part_of(whole))) for at in worker.stages]
    return [(worker.forward_stream, worker.page_table, whole)]


def flat_of(worker: Worker, batch: ScheduleBatch) -> ModelWorkerBatch:
    """The step's cells of the page table; nothing else of it is right."""
    ids = [0] * sum(map(len, batch.ids))
    dests = ids[: len(batch.reqs)]
    return get_model_worker_batch(batch, ids, dests, worker.max_len, worker.page_size)


def ids_of(laid_out: ModelWorkerBatch | ForwardBatch | None) -> Array | None:
    """What the relay has bound and waits to resolve, if it has."""
    if isinstance(laid_out, ModelWorkerBatch):
        return laid_out.input_ids
    return laid_out.ids if laid_out else None


def fill_table(
    worker: Worker, table: Buffer, index: Array, slots: Array, ids: Array | None
) -> Array:
    """Device: what a forward pass begins with; the relay takes its turn, and nobody uses that."""
    xp = worker.device.xp
    if len(index):
        table[as_array(xp, index)] = as_array(xp, slots)
    if ids is not None:
        worker.relay.resolve(as_array(xp, ids), None)
    return table[:1]


def as_array(xp: Arrays, values: Array) -> Array:
    """On the device, if it is not there yet."""
    return xp.asarray(values) if isinstance(values, list) else values
