"""The Python plugin's forward thread: what it does with each input that was put into its queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..core import ModelWorkerBatch, Result, ScheduleBatch
from ..devices.base import Op, Signal
from ..engine.engine import Engine
from ..models.forward_batch import ForwardBatch, make_forward_batch
from ..worker import GenerationBatchResult, Worker
from ..worker.failure import is_out_of_memory
from ..worker.lost_step import lose_step


class Unshipped(NamedTuple):
    """Inputs that found no memory on the device: the step has failed before it was put."""

    flat: ModelWorkerBatch
    error: Exception


def ship(flat: ModelWorkerBatch, worker: Worker) -> ForwardBatch | Unshipped:
    """Bring a step's arrays to the device.

    Raises:
        Exception: they can't be, for another reason than lack of memory.
    """
    try:
        return make_forward_batch(flat, worker.device.xp, worker.model.pad_to)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return Unshipped(flat, error)


def laid_out(inputs: ForwardBatch | Unshipped) -> ForwardBatch | ModelWorkerBatch:
    """A step as far as it came."""
    return inputs.flat if isinstance(inputs, Unshipped) else inputs


@dataclass(eq=False)
class ModelInput:
    """What is put into the input queue (MindIE ``ModelInputWrapper``).

    The caller says ``postprocess_done`` when it has post-processed the step before. ``newest`` are
    that step's tokens by sequence, where a bitmask has to be built from them; ``waits`` where they
    are not known yet, and sampling has to wait until they are.
    """

    batch: ScheduleBatch
    inputs: ForwardBatch | Unshipped
    postprocess_done: Signal
    newest: Mapping[str, int] | None = None
    waits: bool = False


@dataclass(eq=False)
class ModelOutput:
    """What the output queue holds (MindIE ``ModelOutputWrapper``).

    The thread says ``launch_done`` when it has launched the forward pass of the step *after* this
    one. ``launched`` and ``verified`` are its first and its last call for this one; the value of
    the last is ``pending``. ``result`` is there once the caller has waited for the tokens.
    """

    batch: ScheduleBatch
    inputs: ForwardBatch | Unshipped
    launch_done: Signal
    launched: Op
    verified: Op
    pending: GenerationBatchResult | None = None
    result: Result | None = None


class ForwardLoop:
    """MindIE ``plugins/plugin_manager.py:forward_loop``: get, forward, sample, verify, put.

    The original is a loop around ``input_queue.get()``; here the device's thread has the queue,
    and a round is three calls on it with a wait before the last. Where a grammar has to be met
    its bitmask is built first of all. (There the thread itself has told the grammar the token
    before, and penalties are one token late.) Verifying is for speculation, and has no work here.
    The original's thread blocks on the tokens as it samples; here whoever gets them does.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.thread = engine.device.thread("forward thread")
        self.launch_done: Signal | None = None  # the last output's, to be said in the next round

    def put(self, item: ModelInput) -> ModelOutput:
        """``input_queue.put``: the output comes in its turn."""
        engine, cost = self.engine, self.engine.cost
        label = engine.recording.label(item.batch)
        if item.newest is not None:
            self.thread.launch(
                engine.worker.unsampled.update_vocab_mask, item.batch, item.newest,
                name="mask", cost=cost.phase("mask", *item.batch.size), label=label,
            )  # fmt: skip
        launched = self.thread.launch(
            self.forward, item, self.launch_done,
            name="launch", cost=engine.launch_cost(item.batch), label=label,
        )  # fmt: skip
        if item.waits:
            self.thread.wait(item.postprocess_done)
        sampled = self.thread.launch(
            self.sample, item, launched,
            name="launch sample", cost=cost.phase("launch sample", *item.batch.size), label=label,
        )  # fmt: skip
        self.thread.wait(item.postprocess_done)
        verified = self.thread.launch(
            self.verify, sampled, name="verify", cost=cost.phase("verify"), label=label
        )
        self.launch_done = engine.device.signal(f"launch_done {item.batch.step}")
        return ModelOutput(item.batch, item.inputs, self.launch_done, launched, verified)

    def forward(
        self, item: ModelInput, previous_launch_done: Signal | None
    ) -> GenerationBatchResult:
        """Launch the forward pass, and tell who waits to post-process the step before."""
        worker, inputs = self.engine.worker, item.inputs
        try:
            if isinstance(inputs, Unshipped):
                return lose_step(worker, item.batch, inputs.flat, inputs.error)
            return worker.launch_forward(item.batch, inputs)
        except Exception as error:
            return lose_step(worker, item.batch, laid_out(inputs), error)
        finally:  # whatever happened: nobody may wait for ever
            if previous_launch_done is not None:
                previous_launch_done.set()

    def sample(self, item: ModelInput, pending: GenerationBatchResult) -> GenerationBatchResult:
        """Launch sampling, and the copy of the tokens; not of a step that has failed by now."""
        try:
            if not pending.has_failed and not isinstance(item.inputs, Unshipped):
                self.engine.worker.launch_sample(pending, item.inputs)
        except Exception as error:
            pending.fail(error)
            return lose_step(self.engine.worker, item.batch, None, error)
        return pending

    def verify(self, pending: GenerationBatchResult) -> GenerationBatchResult:
        """``output_queue.put``: the output is complete."""
        return pending
