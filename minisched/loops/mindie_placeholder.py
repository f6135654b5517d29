"""MindIE's scheduler: placeholders for tokens to come, and a gate on outstanding calls.

MindIE-LLM schedules in C++ and computes in Python, and a call between them takes a whole step. So
after the launch the scheduler counts a step as done. Every sequence in it gets -1 for its next
token, and with that token the next step can be scheduled. Each result token then replaces the first
trailing placeholder of its sequence. A gate limits the number of outstanding calls.

Three designs keep this ledger. ``mindie_placeholder`` is the scheduler alone, over a worker that it
calls and waits for. ``mindie_dual`` is both layers as they ship, over the plugin pipeline of
``mindie_plugin.py``. ``mindie_single`` is a proposal, one layer instead of two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from ..core import Lease, NoBatch, Request, ScheduleBatch
from ..engine.engine import Engine
from ..relay.placeholder_fill import PLACEHOLDER_TOKEN
from ..trace import Recorder
from ..worker import Step
from .design import design
from .mindie_plugin import (
    MINDIE_REFUSES,
    PLUGIN_REFUSES,
    GenerationOutput,
    PluginManager,
    deliver,
)

# -- The scheduler alone ---------------------------------------------------------------------------

MAX_ASYNC_SCHEDULE_TIMES = 1  # the gate: calls that may be outstanding


@design(
    follows="MindIE-LLM src/engine/llm_engine.cpp, src/scheduler/scheduler.cpp",
    relays=("host", "fill_device", "ring", "pool", "token_pool", "prev_sampled", "request_state"),
    overrun=1,
    refuses=MINDIE_REFUSES,
)
def mindie_placeholder(engine: Engine) -> Iterator[ScheduleBatch | NoBatch]:
    """MindIE ``src/engine/llm_engine.cpp:SchedulerThreadEntry``. Each ``yield`` ends one turn.

    With the published gate of 1 there are never two calls outstanding. A placeholder stands for
    no longer than its own step runs. A step takes d + h + c, as with the serial loop. The
    original looks every millisecond whether it may go on; here it blocks.
    """
    ledger = PlaceholderLedger(MAX_ASYNC_SCHEDULE_TIMES + 1, engine.device.recorder)
    outstanding: Step | None = None  # asyncBatchNum is 1 or 0
    while True:
        engine.recv_requests()
        if outstanding is not None:
            reconcile(engine, ledger, outstanding)
            outstanding = None
        batch = engine.get_next_batch_to_run()
        ledger.clear_terminated()
        if batch:
            outstanding = engine.run_batch(batch)  # AsyncExecuteModel
            ledger.prepare_next_schedule(batch)
        else:
            engine.on_idle()
        yield batch


def reconcile(engine: Engine, ledger: PlaceholderLedger, pending: Step) -> None:
    """Block on a step; let its tokens replace placeholders, then send them to the clients."""
    result = engine.wait_for(pending)
    rows = zip(pending.batch.rows, result.tokens, strict=not result.error)
    ledger.fetch_seq_generated_tokens(
        {row.req.rid: token for row, token in rows if row.deliver and row.req.lease is row.lease},
        pending.batch.step,
    )
    engine.process_result(pending, result)
    ledger.clear_terminated()


# -- Its ledger: each sequence's output, with a placeholder for every token in flight --------------


@dataclass(eq=False)
class SequenceData:
    """MindIE ``sequence.h:SequenceData``, as far as scheduling ahead needs it."""

    req: Request
    lease: Lease
    num_computed_tokens: int
    output_token_ids: list[int] = field(default_factory=list)

    @property
    def trailing_placeholder_count(self) -> int:
        """Return the number of placeholders; all are at the end."""
        count, ids = 0, self.output_token_ids
        while count < len(ids) and ids[-1 - count] == PLACEHOLDER_TOKEN:
            count += 1
        return count


class PlaceholderLedger:
    """MindIE ``src/scheduler/scheduler.cpp``: AddNextTokenPlaceHolder, ReplacePlaceHolderWithToken.

    At most ``max_scheduled_batch`` steps may be scheduled without their tokens; a sequence has room
    for one placeholder more. At the end of every turn the ledger equals the core's derived
    numbers: ``num_output_placeholders`` placeholders, ``computed_len`` computed tokens.
    """

    def __init__(self, max_scheduled_batch: int, recorder: Recorder) -> None:
        self.max_scheduled_batch = max_scheduled_batch
        self.recorder = recorder
        self.sequences: dict[str, SequenceData] = {}

    def prepare_next_schedule(self, batch: ScheduleBatch) -> None:
        """Count a launched step as done: PrepareNextSchedule."""
        for row in batch.rows:
            data = self.sequences.get(row.req.rid)
            if data is None:
                data = self.sequences[row.req.rid] = SequenceData(row.req, row.lease, row.start)
            if data.lease is not row.lease:  # it was preempted, and starts again
                data.lease, data.num_computed_tokens = row.lease, row.start
            data.num_computed_tokens += len(row.ids)  # AccumulateComputedTokens
        self.add_next_token_placeholder(batch)
        self.record("schedule", batch.step)

    def add_next_token_placeholder(self, batch: ScheduleBatch) -> None:
        """Add a placeholder for the token of each row, except for a chunk that is not the last."""
        for req in batch.reqs:
            if req is not batch.chunked_req:
                self.sequences[req.rid].output_token_ids.append(PLACEHOLDER_TOKEN)

    def fetch_seq_generated_tokens(self, token_ids: Mapping[str, int], step: int) -> None:
        """Take in the response of a step (0: none has ended, all are dummies).

        A dummy has no token, so its placeholder stays.

        The original keeps tokens, and replaces placeholders when it next schedules the sequence;
        here that is done immediately.

        Raises:
            RuntimeError: a token came without a placeholder.
        """
        for rid, token in token_ids.items():
            if token != PLACEHOLDER_TOKEN:
                self.replace_placeholder_with_token(rid, token)
        self.record("response" if step else "dummy", step)

    def replace_placeholder_with_token(self, rid: str, token: int) -> None:
        """Replace the first of the trailing placeholders by a token.

        Raises:
            RuntimeError: there is none, or there are more than steps can be in flight.
        """
        data = self.sequences[rid]
        count, most = data.trailing_placeholder_count, self.max_scheduled_batch + 1
        if not 1 <= count <= most:
            raise RuntimeError(
                f"token {token} came for {rid}, which has {count} placeholders; "
                f"it must have from 1 to {most}."
            )
        data.output_token_ids[-count] = token

    def clear_terminated(self) -> None:
        """Forget finished sequences; a preempted one keeps the tokens that its client has."""
        for rid, data in list(self.sequences.items()):
            if data.req.finished:
                del self.sequences[rid]
            elif data.req.lease is not data.lease:
                del data.output_token_ids[len(data.req.output_ids) :]

    def record(self, after: str, step: int) -> None:
        """Mark the current lists, one after the other: the sequences, their lengths, the tokens."""
        if self.recorder.is_on:
            lists = {rid: data.output_token_ids for rid, data in self.sequences.items()}
            self.recorder.mark(
                "ledger", after=after, step=step, rids=tuple(lists),
                lengths=tuple(map(len, lists.values())), tokens=tuple(chain(*lists.values())),
            )  # fmt: skip


# -- Both layers: the C++ scheduler over the Python plugin, each with its own state of requests ----


@design(
    follows="MindIE-LLM src/engine/llm_engine.cpp over plugins/plugin_manager.py",
    relays=("fill_host", "fill_device"),
    depth=2,
    overrun=1,
    refuses=PLUGIN_REFUSES,
)
def mindie_dual(engine: Engine) -> Iterator[ScheduleBatch | NoBatch]:
    """MindIE as it ships: ``llm_engine.cpp`` calls ``plugin_manager.py``. ``yield`` ends a turn.

    The gate is at 1: C++ never has two calls outstanding, and sleeps while Python works. Python's
    answer is one step late. The first one is a dummy and keeps its placeholder, so the second step
    is scheduled on an unknown token. A step takes as long as in ``mindie_plugin``. Both layers
    keep state of every request.
    """
    manager = PluginManager(engine)
    ledger = PlaceholderLedger(MAX_ASYNC_SCHEDULE_TIMES + 1, engine.device.recorder)
    response: GenerationOutput | None = None  # to the one call that may be outstanding
    while True:
        engine.recv_requests()
        if response is not None:
            take_response(engine, ledger, response)
            response = None
        batch = engine.get_next_batch_to_run()
        ledger.clear_terminated()
        if batch:
            response = manager.generate_token_async(batch, on_put=ledger.prepare_next_schedule)
        elif manager.has_output:
            take_response(engine, ledger, manager.reset_async_pipeline())
        else:
            engine.on_idle()
        yield batch


def take_response(engine: Engine, ledger: PlaceholderLedger, response: GenerationOutput) -> None:
    """Fetch the tokens, with dummies, into the ledger; then send them to the clients."""
    step = response.pending.batch.step if response.pending else 0
    ledger.fetch_seq_generated_tokens(response.token_ids, step)
    deliver(engine, response)
    ledger.clear_terminated()


# -- A proposal: one pipeline instead of MindIE's two layers ---------------------------------------

DEPTH = 2


@design(
    follows="a proposal: MindIE-LLM's two layers as one pipeline",
    relays=("fill_device", "ring", "pool", "token_pool", "prev_sampled", "request_state"),
    depth=DEPTH,
    refuses=MINDIE_REFUSES,
)
def mindie_single(engine: Engine) -> Iterator[ScheduleBatch | NoBatch]:
    """A single main pipeline; there is no upstream design. Each ``yield`` ends one turn.

    It has one queue of (future, batch as it was at launch), one ledger, and one place where they
    are reconciled. Tokens go from step to step on the device, and a flush is asked for.
    This is vLLM's shape. A step takes max(d, h, c, (d + h + c) / 2). The ledger knows how many
    tokens are on their way, so a length stop is foreseen and wastes no row; only a stop token does.
    A step that needs a token in flight for its mask is sampled when that is reconciled.
    """
    ledger = PlaceholderLedger(DEPTH, engine.device.recorder)
    in_flight: deque[Step] = deque()
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        ledger.clear_terminated()
        if batch:
            delay = engine.must_delay_sample(batch)
            in_flight.append(engine.run_batch(batch, delay_sample=delay))
            ledger.prepare_next_schedule(batch)
            sample_delayed(engine, ledger, in_flight)
            if len(in_flight) == DEPTH:  # the device has its next step: time for the oldest
                reconcile(engine, ledger, in_flight.popleft())
        elif in_flight:
            flush(engine, ledger, in_flight)
        else:
            engine.on_idle()
        yield batch


def sample_delayed(engine: Engine, ledger: PlaceholderLedger, in_flight: deque[Step]) -> None:
    """Sample the newest step, if it was launched without; reconcile those before it first."""
    newest = in_flight[-1]
    if newest.delay_sample_func is not None:
        while len(in_flight) > 1:
            reconcile(engine, ledger, in_flight.popleft())
        engine.update_vocab_mask(newest)
        engine.launch_batch_sample_if_needed(newest)


def flush(engine: Engine, ledger: PlaceholderLedger, in_flight: deque[Step]) -> None:
    """Reconcile all that is in flight: nothing can be scheduled before."""
    while in_flight:
        reconcile(engine, ledger, in_flight.popleft())
