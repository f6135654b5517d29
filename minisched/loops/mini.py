"""mini-sglang's two loops: a token pool between two streams, and one step of lag or none.

The token pool (``relay/token_pool.py``) is a device table with every token of every running
request. A prompt is copied into it once. Each step reads its inputs there and appends its sampled
tokens. So a step's inputs are places in the pool, whether the host knows their tokens or not. That
is all that overlap needs: ``mini_overlap`` launches a step before it has the tokens of the previous
one, and processes those while the device runs.

Prompts are copied on the scheduler's stream; steps run on the engine's stream. The engine's stream
waits only for the copies of its step (``UploadWorker``). In ``mini_normal`` all ops are on the
engine's stream.

mini-sglang's own rules are simpler than SGLang's (``policy/mini_sglang.py``). Memory is reserved
for all tokens that running requests may generate, so no request is retracted. A chunk may end
within a page, and enters the prefix cache with the rest of its prompt. Three answers are safer here
than in the original at HEAD, which breaks a law in 16 of 60 random workloads. They differ where
memory or rows are short.

- Memory is released by the lease rule, because the copy of a prompt to the token pool waits for no
  step. (``free_rule``: ``deferred`` was published, ``at_once`` is at HEAD.)
- Pages of a running step are not shared (the original: ``enters_cache=known``).
- A request that reaches its length keeps its memory until its last token is there (the original:
  ``length_frees=last_launch``, because ``can_decode`` is false one step too early).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..core import NoBatch, ScheduleBatch
from ..devices.base import Array, Op
from ..engine.engine import Engine
from ..scheduler.config import ALGORITHMS
from ..trace import Touch
from ..worker import Step, Worker
from ..worker.recording import PINNED
from .design import design

# -- A step with a copy of prompts, for a relay that has every token on the device -----------------


@dataclass(eq=False, repr=False)
class UploadStep(Step):
    """A step that copies prompts to the device before its forward pass."""

    upload: Op | None = None  # None: the relay has all of its tokens

    def others(self) -> Iterable[Op]:
        """Return the upload."""
        return [self.upload] if self.upload is not None else []


class UploadWorker(Worker[UploadStep]):
    """A worker that queues an upload as soon as a step is shipped; the forward pass waits for it.

    (mini-sglang ``scheduler/scheduler.py:overlap_loop``, ``engine.stream.wait_stream``.) With a
    relay that does not hold prompts there is nothing to copy, and no op.
    """

    step_class = UploadStep
    uploads_on = "scheduler"  # name of its stream

    def open_streams(self) -> None:
        """Open the stream of uploads too."""
        self.upload_stream = self.device.stream(self.uploads_on)
        super().open_streams()

    def launch_upload(self, step: UploadStep) -> None:
        """Queue the copy of the prompts that the relay lacks."""
        if prompts := self.relay.upload(step.batch):
            step.upload = self.queue(
                step, "upload", self.upload, prompts.cells, prompts.tokens,
                on=self.upload_stream, cost=self.cost.copy,
                touches=prompts.touches if self.touches.recorder.is_on else (),
            )  # fmt: skip
            self.forward_stream.wait(step.upload)
            if step.touches.read:  # the memory of the upload is released when the copy is read
                freed = Touch("free", PINNED, [step.batch.step])
                step.touches = step.touches._replace(read=[*step.touches.read, freed])

    def upload(self, cells: Array, tokens: Array) -> Array:
        """Write the prompts to their cells of the relay, on the device; return them."""
        self.relay.store_to_map(cells, tokens)
        return tokens

    def launch_forward(self, step: UploadStep) -> None:
        """Queue the forward pass, and draw the arrow from the upload."""
        super().launch_forward(step)
        if step.upload is not None and step.logits_output is not None:
            self.device.recorder.edge("upload", step.upload.slice_id, step.logits_output.slice_id)


class OneStreamWorker(UploadWorker):
    """The same with uploads on the engine's stream."""

    uploads_on = "forward"


# -- The loops -------------------------------------------------------------------------------------

NOT_THERE = {
    **dict.fromkeys(("grammar", "penalties"), "mini-sglang has none (core.py:SamplingParams)"),
    **dict.fromkeys(ALGORITHMS, "mini-sglang has no speculation"),
    "beam search": "mini-sglang has none",
}


@design(
    follows="mini-sglang scheduler/scheduler.py:normal_loop",
    relays=("token_pool", "host"),
    rules="mini-sglang",
    worker=OneStreamWorker,
    refuses=NOT_THERE,
)
def mini_normal(engine: Engine) -> Iterator[ScheduleBatch | NoBatch]:
    """mini-sglang ``scheduler/scheduler.py:normal_loop``. Each ``yield`` ends one turn.

    Receiving blocks only if there is nothing else to do.
    """
    while True:
        if not engine.scheduler.live:
            engine.on_idle()
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            engine.process_batch_result(engine.run_batch(batch))  # blocks until it has run
        yield batch


@design(
    follows="mini-sglang scheduler/scheduler.py:overlap_loop",
    relays=("token_pool", "ring", "pool", "prev_sampled", "request_state", "fill_device"),
    depth=2,
    rules="mini-sglang",
    worker=UploadWorker,
    refuses=NOT_THERE,
)
def mini_overlap(engine: Engine) -> Iterator[ScheduleBatch | NoBatch]:
    """mini-sglang ``scheduler/scheduler.py:overlap_loop``. Each ``yield`` ends one turn.

    While the engine's stream runs a step, the host processes the one before. That is all the state
    that goes from turn to turn (the original's ``last_data`` and ``ongoing_data``). Receiving
    blocks only if nothing is to be processed and nothing can run. Lengths advance at the launch
    (``complete_one``), so only a stop token wastes a row. A settled step takes
    max(d, h, c, (d + h + c) / 2).

    The way from prompt to answer, with the original's names: a launched step completes one token
    (``complete_one`` advances both lengths). A request with more to decode joins the running
    set (``filter_reqs``), and a chunk does not. Here ``scheduler.py`` does both.
    """
    last: Step | None = None
    while True:
        if last is None and not engine.scheduler.live:
            engine.on_idle()
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        ongoing = engine.run_batch(batch) if batch else None
        if last is not None:
            engine.process_batch_result(last)  # _process_last_data; the device runs ``ongoing``
        last = ongoing
        yield batch
