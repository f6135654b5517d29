"""The Python plugin's caller's side: preprocess, fill, put, and post-process one step behind."""

from __future__ import annotations

from collections import deque
from typing import Any

from ..core import ForwardMode, ModelWorkerBatch, Result, ScheduleBatch, get_model_worker_batch
from ..devices.base import WRONG_TOKEN, Op
from ..engine.engine import Engine
from ..models.forward_batch import ForwardBatch
from ..relay.placeholder_fill import FillHost, PlaceholderFill
from ..worker.lost_step import left_behind
from ..worker.sampling_info import has_history
from ..worker.touches import INPUTS
from .mindie_forward_loop import ForwardLoop, ModelInput, ModelOutput, Unshipped, laid_out, ship
from .mindie_plugin_context import GenerationOutput, PluginContext, advance_positions


class PluginManager:
    """MindIE ``text_generator/plugins/plugin_manager.py``, asynchronous inference.

    The relay keeps ``last_sequence_ids`` and makes the masks. With ``fill_host`` a call blocks on
    N-1's tokens before it can put N; with ``fill_device`` it puts N first.

    Raises:
        TypeError: the relay does not fill placeholders.
    """

    def __init__(self, engine: Engine) -> None:
        relay = engine.worker.relay
        if not isinstance(relay, PlaceholderFill):
            raise TypeError("the plugin pipeline needs a relay that fills placeholders")
        self.engine, self.device, self.relay = engine, engine.device, relay
        self.fill_host = relay if isinstance(relay, FillHost) else None
        self.context = PluginContext(engine.device.recorder)
        self.forward_loop = ForwardLoop(engine)
        self.output_queue: deque[ModelOutput | None] = deque([None])  # seeded with an empty output

    @property
    def has_output(self) -> bool:
        """Whether a step is in the pipeline."""
        return self.output_queue[0] is not None

    def preprocess(self, batch: ScheduleBatch) -> ModelWorkerBatch:
        """Lay N out with holes, at the positions of a context that is one step behind."""
        engine, worker = self.engine, self.engine.worker
        label, cost = engine.recording.label(batch), engine.cost.phase("prepare", *batch.size)
        with self.device.host("prepare", cost, label) as prepare:
            ids, dests = self.relay.bind(batch, None)
            flat = get_model_worker_batch(batch, ids, dests, worker.max_len, worker.page_size)
            worker.declare(batch, flat)
            flat = self.context.join_context(batch, flat)
        engine.recording.tokens_by_host(batch, prepare, worker.token_edges.inputs_of(batch))
        return flat

    def get(self) -> ModelOutput | None:
        """``output_queue.get``: N-1, when the thread has put it; None is the empty output.

        By default the thread samples to the host, so its output has the tokens in it.
        """
        last = self.output_queue.popleft()
        if last is None:
            return None
        try:
            last.pending = pending = self.block_on(last.verified, last.batch)
        except Exception as error:  # the thread's
            worker, inputs = self.engine.worker, laid_out(last.inputs)
            pending = left_behind(worker, last.batch, inputs, last.launched, error)
            last.pending = pending
        edge = self.device.recorder.edge
        edge("launch", last.launched.slice_id, pending.logits_output.slice_id)
        if self.fill_host is not None and pending.copy_done is not None:
            self.fetch(last)
        return last

    def fill_in_model_result(
        self, batch: ScheduleBatch, flat: ModelWorkerBatch, last: ModelOutput | None
    ) -> ForwardBatch | Unshipped:
        """Write N-1's tokens into N, advance the positions of those rows, and ship it.

        Where the device fills, only the tokens are missing from what is shipped.
        """
        masks, cost = self.relay.filling_masks, 0
        if self.fill_host is not None and masks.hit_rows:
            cost = self.engine.cost.phase("fill", *batch.size)
        with self.device.host("fill", cost, self.engine.recording.label(batch)):
            if self.fill_host is not None and last is not None and last.result is not None:
                self.fill_host.fill(flat, last.result.tokens)
                rows = dict(zip(masks.hit_rows, masks.hit_indices, strict=True))
                assert last.pending is not None
                self.engine.worker.token_edges.filled(batch, rows, last.pending)
            flat = advance_positions(flat, masks)
            self.device.recorder.program.touch("write", INPUTS, [batch.step])
            return ship(flat, self.engine.worker)

    def put(
        self, batch: ScheduleBatch, inputs: ForwardBatch | Unshipped, last: ModelOutput | None
    ) -> ModelInput:
        """``input_queue.put``: N is the thread's.

        If it needs a mask, the thread builds it from N-1's tokens; where these are still on the
        device, the caller does so later (``update_history``), and sampling waits for that.
        """
        item = ModelInput(batch, inputs, self.device.signal(f"postprocess_done {batch.step}"))
        if self.fill_host is None and self.engine.must_delay_sample(batch):
            item.waits = True
        elif has_history(batch):
            item.newest = self.newest_tokens(batch, last)
            if reason := self.engine.missing_history(batch):  # the mask goes before the launch
                self.engine.recording.must_wait(batch, reason, "forward")
        self.output_queue.append(self.forward_loop.put(item))
        return item

    def wait_to_postprocess(self, item: ModelInput, last: ModelOutput | None) -> None:
        """In decode, block until N's forward pass is launched, which is N-1's ``launch_done``.

        So the host's own work does not take the interpreter from the thread that launches. By
        default this is left out after a prompt too; but not while the thread builds a mask from
        requests that are about to change.
        """
        if last is None:
            return
        both = item.batch.mode is last.batch.mode is ForwardMode.DECODE
        late_fill = self.fill_host is None and item.batch.mode is ForwardMode.DECODE
        if both or late_fill or item.newest is not None:
            self.block_on(last.launch_done, item.batch)

    def postprocess(self, last: ModelOutput | None) -> GenerationOutput:
        """What N-1's tokens mean to the plugin; nothing for the empty output."""
        if last is None or last.pending is None:
            return GenerationOutput()
        result, engine = self.fetch(last), self.engine
        cost, label = (
            engine.cost.phase("postprocess", *last.batch.size),
            engine.recording.label(last.batch),
        )
        with self.device.host("postprocess", cost, label):
            output = self.context.update(last.batch, result)
        output.pending = last.pending
        return output

    def update_history(self, item: ModelInput, last: ModelOutput | None) -> None:
        """Build N's mask, where it was put before N-1's tokens were known."""
        if item.waits:
            self.engine.update_vocab_mask(item.batch, self.newest_tokens(item.batch, last))

    def newest_tokens(self, batch: ScheduleBatch, last: ModelOutput | None) -> dict[str, int]:
        """What N-1 gave to those rows of N, bound last, that it was to fill; by sequence.

        Where N-1 failed they end, and get a token that is wrong.
        """
        masks, tokens = self.relay.filling_masks, self.fetch(last).tokens if last else []
        return {
            batch.reqs[row].rid: tokens[at] if tokens else WRONG_TOKEN
            for row, at in zip(masks.hit_rows, masks.hit_indices, strict=True)
        }

    def reset_async_pipeline(self) -> GenerationOutput:
        """Take the last step out, when no other will follow it, and begin anew.

        The original leaves it in its queue until somebody calls again. Here whoever keeps the
        memory waits for it.
        """
        output = self.postprocess(self.get())
        self.output_queue.append(None)
        self.relay.reset()
        return output

    def fetch(self, output: ModelOutput) -> Result:
        """Block until a step's tokens are on the host."""
        if output.result is None:
            assert output.pending is not None
            output.result = self.engine.wait_for(output.pending)
        return output.result

    def block_on(self, op: Op, batch: ScheduleBatch) -> Any:
        """Wait for the thread; the time is a slice, but no work."""
        start = self.device.now()
        value = op.synchronize()
        self.engine.recording.wait(start, self.engine.recording.label(batch))
        return value
