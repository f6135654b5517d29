"""MindIE's plugin pipeline: a call puts step N and answers with the tokens of step N-1.

MindIE-LLM's engine calls Python once a step, ``generate_token_async`` of
``text_generator/plugins/plugin_manager.py``. While the device runs N-1, a call lays N out. A row
that is also in N-1 has no input token yet, so it gets a placeholder. Then the call gets N-1's
tokens, fills them in, and puts N into the queue of a thread, which launches it. Only then, while
the device runs N, does it post-process N-1's tokens and return them.

So the plugin's state of its sequences is one step late. When N is laid out, N-1's tokens are not in
it yet. A row in flight is one token shorter there than in fact, and ``join_context`` puts it at a
position that is one too low. That holds exactly for the filled rows, so the code that fills them
also raises their positions by one (``advance_positions``). A sequence that has finished with N-1 is
in N once more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ..core import ForwardMode, Lease, NoBatch, Request, Result, ScheduleBatch
from ..devices.base import WRONG_TOKEN, Op, Signal, is_out_of_memory
from ..engine.engine import Engine
from ..models.base import ForwardBatch
from ..relay.placeholder_fill import PLACEHOLDER_TOKEN, FillHost, FillingMasks, PlaceholderFill
from ..scheduler.config import ALGORITHMS
from ..trace import Recorder
from ..worker import Step
from ..worker.lost import build_mask, launch_or_lose
from ..worker.recording import INPUTS
from .design import design

MINDIE_REFUSES = {
    **dict.fromkeys(
        ALGORITHMS,
        "asynchronous inference does not go with look-ahead and memory decoding, which draft on "
        "the host (plugins/plugin_utils.py)",
    ),
    "STANDALONE": "MindIE drafts with MTP layers of the target, and runs no draft model",
}
PLUGIN_REFUSES = {
    "other relays": "a relay that fills placeholders: its plugin lays a step out and then asks for "
    "its masks",
    **MINDIE_REFUSES,
    "beam search": "its plugin advances the positions of rows that are laid out already",
    "grammar with fill_device": "where the device fills the inputs (the experimental path), "
    "sampled tokens stay there, and the plugin steps a grammar on the host "
    "(structured_output_manager.py)",
}


@design(
    follows="MindIE-LLM mindie_llm/text_generator/plugins/plugin_manager.py",
    relays=("fill_host", "fill_device"),
    depth=2,
    overrun=1,
    refuses=PLUGIN_REFUSES,
)
def mindie_plugin(engine: Engine) -> Iterator[ScheduleBatch | NoBatch]:
    """MindIE ``plugins/plugin_manager.py`` under this project's scheduler. ``yield`` ends a turn.

    If the host fills the inputs (``fill_host``, the default), the device has no next step to run
    until N-1's tokens have come to the host. Then a step takes l + f + max(d + c, h), with device
    d, copy c, fill f, launch l and all other host work h. If the device does (``fill_device``)
    it takes max(d, h + l, c, (d + c + h + l) / 2), as with every loop of depth 2. A bitmask adds
    its time to l. Each finished request wastes a row, also by a length stop, because only
    post-processing counts tokens, one step late.
    """
    manager = PluginManager(engine)
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            deliver(engine, manager.generate_token_async(batch))
        elif manager.has_output:
            deliver(engine, manager.reset_async_pipeline())
        else:
            engine.on_idle()
        yield batch


def deliver(engine: Engine, output: GenerationOutput) -> None:
    """Pass a response to the scheduler and the clients, unless it is all dummies."""
    if output.pending is not None:
        engine.process_result(output.pending, output.result)


# -- The items of the two queues, and the response -------------------------------------------------


@dataclass(eq=False)
class ModelOutput:
    """A step in the pipeline, its input and its output.

    (MindIE ``ModelInputWrapper`` and ``ModelOutputWrapper``.) The caller sets ``postprocess_done``
    after it has post-processed the step before this one. The thread sets ``launch_done`` after it
    has launched the forward pass of the step *after* it. ``launched_by`` is the slice of the
    thread's first call for it, ``verified`` its last call.
    """

    step: Step
    postprocess_done: Signal
    launch_done: Signal
    launched_by: int
    verified: Op
    builds_mask: bool  # the thread does, from tokens of the step before
    waits: bool  # sampling has to wait for those tokens, and the caller builds the mask then
    result: Result | None = None  # once the caller has waited for the tokens


@dataclass
class GenerationOutput:
    """The response to a call: tokens by sequence, and the sequences that finished with them.

    ``pending`` and ``result`` are their step, for the layer above; the first response has none.
    """

    pending: Step | None = None
    result: Result = field(default_factory=lambda: Result(()))
    token_ids: dict[str, int] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)


# -- The caller's side: preprocess, get, fill, put, and post-process one step later ----------------


class PluginManager:
    """MindIE ``text_generator/plugins/plugin_manager.py``, asynchronous inference.

    The relay keeps ``last_sequence_ids`` and makes the masks: which row of N takes its token from
    which row of N-1. With ``fill_host`` a call blocks on N-1's tokens before it can put N; with
    ``fill_device`` it puts N first.

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
        self.forward_loop = engine.device.thread("forward thread")  # with the input queue
        self.launch_done: Signal | None = None  # of the step put last, set with the next one
        self.output_queue: deque[ModelOutput | None] = deque([None])  # seeded with an empty output

    def generate_token_async(
        self, batch: ScheduleBatch, on_put: Callable[[ScheduleBatch], None] = lambda batch: None
    ) -> GenerationOutput:
        """The call for N: its answer is what N-1 gave, a dummy for every other row of N.

        ``on_put`` is what the caller does as soon as N is on its way, without waiting for the
        answer.
        """
        step = self.preprocess(batch)  # while the device still runs N-1
        last = self.get()
        self.fill_in_model_result(step, last)
        item = self.put(step, last)
        try:
            on_put(batch)
            self.wait_to_postprocess(item, last)
            output = self.postprocess(last)  # while the device runs N
            if item.waits:
                self.engine.update_vocab_mask(step, self.newest_tokens(batch, last))
        finally:
            item.postprocess_done.set()
        for rid in batch.rids:
            output.token_ids.setdefault(rid, PLACEHOLDER_TOKEN)
        return output

    def preprocess(self, batch: ScheduleBatch) -> Step:
        """Lay N out with placeholders, at positions of a context that is one step late."""
        cost = self.engine.cost.phase("prepare", *batch.size)
        step: Step = self.engine.worker.step_class(batch)
        with self.device.host("prepare", cost, step.label) as prepare:
            self.engine.worker.lay_out(step)
            assert step.flat is not None
            step.flat = self.context.join_context(batch, step.flat)
        self.engine.recording.tokens_by_host(step.batch, step.edges, prepare)
        return step

    def get(self) -> ModelOutput | None:
        """``output_queue.get``: N-1, when the thread has put it; None is the empty output.

        By default the thread samples to the host, so its output has the tokens in it.
        """
        last = self.output_queue.popleft()
        if last is None:
            return None
        step = last.step
        self.block_on(last.verified, step)
        if step.logits_output is not None:
            self.device.recorder.edge("launch", last.launched_by, step.logits_output.slice_id)
        if self.fill_host is not None:
            self.fetch(last)
        return last

    def fill_in_model_result(self, step: Step, last: ModelOutput | None) -> None:
        """Write N-1's tokens into N, advance the positions of those rows, and ship it.

        Where the device fills, only the tokens are missing from what is shipped.

        Raises:
            Exception: it can't be shipped, for another reason than lack of memory.
        """
        batch, masks, cost = step.batch, self.relay.filling_masks, 0
        if self.fill_host is not None and masks.hit_rows:
            cost = self.engine.cost.phase("fill", *batch.size)
        with self.device.host("fill", cost, step.label):
            assert step.flat is not None
            if self.fill_host is not None and last is not None and last.result is not None:
                self.fill_host.fill(step.flat, last.result.tokens)
                if step.edges is not None:
                    rows = dict(zip(masks.hit_rows, masks.hit_indices, strict=True))
                    step.edges.fill(rows, last.step.copy_done)
            step.flat = advance_positions(step.flat, masks)
            self.device.recorder.touch("write", INPUTS, [batch.step])
            try:
                self.engine.worker.ship(step)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                step.error = error

    def put(self, step: Step, last: ModelOutput | None) -> ModelOutput:
        """``input_queue.put``: N is the thread's, and its output comes in its turn.

        If it needs a mask, the thread first builds it from N-1's tokens. If these are still on the
        device, the caller builds it after it has post-processed them, and sampling waits for that.
        (In the original the thread itself advances the grammar, and penalties are one token late.)

        ``plugin_manager.py:forward_loop`` is a loop of get, forward, sample, verify, put. Here the
        device's thread has the queue, and a round is three calls on it with a wait before the last.
        Verifying is for speculation, and has no work here. The original's thread blocks on the
        tokens as it samples; here the caller of ``get`` does.
        """
        engine, thread, cost = self.engine, self.forward_loop, self.engine.cost
        batch, label = step.batch, step.label
        postprocess_done = self.device.signal(f"postprocess_done {batch.step}")
        waits = self.fill_host is None and engine.must_delay_sample(batch)
        builds_mask = engine.has_history(batch) and not waits
        if builds_mask:
            if reason := engine.missing_history(batch):  # the mask goes before the launch
                engine.recording.must_wait(batch, reason, "forward")
            thread.launch(
                build_mask, engine.worker, step, self.newest_tokens(batch, last),
                name="mask", cost=cost.phase("mask", *batch.size), label=label,
            )  # fmt: skip
        launched = thread.launch(
            self.forward, step, self.launch_done,
            name="launch", cost=engine.launch_cost(batch), label=label,
        )  # fmt: skip
        if waits:
            thread.wait(postprocess_done)
        sampled = thread.launch(
            launch_or_lose, engine.worker, launched,
            name="launch sample", cost=cost.phase("launch sample", *batch.size), label=label,
        )  # fmt: skip
        thread.wait(postprocess_done)
        verified = thread.launch(
            self.verify, sampled, name="verify", cost=cost.phase("verify"), label=label
        )
        self.launch_done = self.device.signal(f"launch_done {batch.step}")
        item = ModelOutput(
            step, postprocess_done, self.launch_done, launched.slice_id, verified,
            builds_mask, waits,
        )  # fmt: skip
        self.output_queue.append(item)
        return item

    def forward(self, step: Step, previous_launch_done: Signal | None) -> Step:
        """Launch the forward pass, and release the caller that waits for it to post-process."""
        try:
            return launch_or_lose(self.engine.worker, step, delay_sample=True)
        finally:  # also after an error, so that no thread waits forever
            if previous_launch_done is not None:
                previous_launch_done.set()

    def verify(self, step: Step) -> Step:
        """``output_queue.put``: the output is complete."""
        return step

    def newest_tokens(self, batch: ScheduleBatch, last: ModelOutput | None) -> dict[str, list[int]]:
        """Return N-1's tokens for the rows of N that they fill, by sequence; N was bound last.

        If N-1 failed, these rows end, and get a wrong token.
        """
        masks, tokens = self.relay.filling_masks, self.fetch(last).tokens if last else []
        return {
            batch.reqs[row].rid: [tokens[at] if tokens else WRONG_TOKEN]
            for row, at in zip(masks.hit_rows, masks.hit_indices, strict=True)
        }

    def wait_to_postprocess(self, item: ModelOutput, last: ModelOutput | None) -> None:
        """In decode, block until N's forward pass is launched, which is N-1's ``launch_done``.

        So the host's own work does not take the interpreter from the launching thread. By default
        the host does not wait after a prompt either, except while the thread builds a mask from
        requests that are about to change.
        """
        if last is None:
            return
        mode = item.step.batch.mode
        both = mode is last.step.batch.mode is ForwardMode.DECODE
        late_fill = self.fill_host is None and mode is ForwardMode.DECODE
        if both or late_fill or item.builds_mask:
            self.block_on(last.launch_done, item.step)

    def postprocess(self, last: ModelOutput | None) -> GenerationOutput:
        """Post-process N-1's tokens; the empty output has none."""
        if last is None:
            return GenerationOutput()
        result, batch = self.fetch(last), last.step.batch
        cost = self.engine.cost.phase("postprocess", *batch.size)
        with self.device.host("postprocess", cost, last.step.label):
            output = self.context.update(batch, result)
        output.pending = last.step
        return output

    @property
    def has_output(self) -> bool:
        """Return whether a step is in the pipeline."""
        return self.output_queue[0] is not None

    def reset_async_pipeline(self) -> GenerationOutput:
        """Take the last step out, if no other will follow it, and start again.

        The original leaves it in its queue until the next call. Here the scheduler, which owns the
        memory, waits for it.
        """
        output = self.postprocess(self.get())
        self.output_queue.append(None)
        self.relay.reset()
        return output

    def fetch(self, output: ModelOutput) -> Result:
        """Block until a step's tokens are on the host."""
        if output.result is None:
            output.result = self.engine.wait_for(output.step)
        return output.result

    def block_on(self, op: Op | Signal, step: Step) -> None:
        """Wait for the thread; the time is a slice, but no work."""
        start = self.device.now()
        op.synchronize()
        self.engine.recording.wait(start, step.label)


# -- The plugin's state of sequences: one step late, and cleared in two phases ---------------------


@dataclass(eq=False)
class Context:
    """The plugin's state of a sequence (a cache id, in the original).

    ``seq_len`` counts its tokens up to the last one that was post-processed.
    """

    req: Request
    seq_len: int
    pending_cleanup: bool = False  # it has finished; the next round clears it


class PluginContext:
    """MindIE ``text_generator/utils/tg_infer_context_store.py``.

    Every sequence that the plugin has seen and not cleared, by its lease. The layer above keeps
    state of its own, and does not know this one. A preempted sequence starts again as a new one:
    the row of the old one, if it is in flight, finds no context and is dropped.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.contexts: dict[Lease, Context] = {}

    def join_context(self, batch: ScheduleBatch, flat: ForwardBatch) -> ForwardBatch:
        """Return ``flat`` with the positions of this state: one too low for rows in flight.

        A prompt is entered with its length so far.
        """
        prefix_lens = list(batch.starts)
        for row, (req, lease) in enumerate(zip(batch.reqs, batch.leases, strict=True)):
            if row < batch.num_extend_reqs:
                end = batch.starts[row] + len(batch.ids[row])
                self.contexts[lease] = Context(req, end)
            else:
                prefix_lens[row] = self.contexts[lease].seq_len - 1
        return replace(flat, prefix_lens=prefix_lens)

    def update(self, batch: ScheduleBatch, result: Result) -> GenerationOutput:
        """Post-process a step: add its tokens, flag finished sequences, clear the last round's.

        The finishing round only flags a sequence, because its next row is in flight. The next round
        clears it and drops the surplus row from the response. A length stop is seen no sooner than
        an end-of-text token, because no layer above foresees it.
        """
        output = GenerationOutput(result=result)
        for lease in [lease for lease, context in self.contexts.items() if context.pending_cleanup]:
            del self.contexts[lease]
        tokens = result.tokens or [PLACEHOLDER_TOKEN] * len(batch.reqs)
        for req, lease, token in zip(batch.reqs, batch.leases, tokens, strict=True):
            context = self.contexts.get(lease)
            if context is None or req.lease is not lease:
                continue  # a surplus row
            if result.error:
                context.pending_cleanup = True
            elif req is not batch.chunked_req:
                context.seq_len += 1
                output.token_ids[req.rid] = token
                if token in req.stop_ids or context.seq_len == req.max_device_len:
                    context.pending_cleanup = True
                    output.finished.append(req.rid)
        for lease, context in list(self.contexts.items()):  # clear_aborted_context
            if context.req.lease is not lease:  # aborted, or preempted
                del self.contexts[lease]
        if self.recorder.is_on:
            held = list(self.contexts.values())
            self.recorder.mark(
                "context", step=batch.step, rids=tuple(context.req.rid for context in held),
                seq_lens=tuple(context.seq_len for context in held),
                finished=tuple(context.req.rid for context in held if context.pending_cleanup),
            )  # fmt: skip
        return output


def advance_positions(flat: ForwardBatch, masks: FillingMasks) -> ForwardBatch:
    """The rest of ``_fill_in_model_result``: add 1 to positions and lengths of the filled rows.

    This needs no token, so it does not wait for one. Tokens are sampled after these positions.
    """
    prefix_lens = list(flat.prefix_lens)
    for row in masks.hit_rows:
        prefix_lens[row] += 1
    ends = (a + b for a, b in zip(prefix_lens, flat.extend_lens, strict=True))
    info = [(p, key, end) for (p, key, _), end in zip(flat.sampling, ends, strict=True)]
    return replace(flat, prefix_lens=prefix_lens, sampling=info)
