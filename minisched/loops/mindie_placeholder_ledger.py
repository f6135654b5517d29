"""The C++ scheduler's book: each sequence's output, with a placeholder for every token to come."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..core import Lease, Request, Result, ScheduleBatch
from ..engine.engine import Engine
from ..relay.placeholder_fill import PLACEHOLDER_TOKEN
from ..trace import Recorder
from ..worker import GenerationBatchResult


@dataclass(eq=False)
class SequenceData:
    """MindIE ``sequence.h:SequenceData``, as far as scheduling ahead needs it."""

    req: Request
    lease: Lease
    num_computed_tokens: int
    output_token_ids: list[int] = field(default_factory=list)

    @property
    def trailing_placeholder_count(self) -> int:
        """How many placeholders stand at the end; there are none anywhere else."""
        count, ids = 0, self.output_token_ids
        while count < len(ids) and ids[-1 - count] == PLACEHOLDER_TOKEN:
            count += 1
        return count


class PlaceholderLedger:
    """MindIE ``src/scheduler/scheduler.cpp``: AddNextTokenPlaceHolder, ReplacePlaceHolderWithToken.

    ``max_scheduled_batch`` is how many steps may be scheduled whose tokens have not been seen; a
    sequence has room for that many placeholders and one more. At the end of every turn it equals
    what the core derives: ``num_output_placeholders`` of them, ``computed_len`` computed tokens.
    """

    def __init__(self, max_scheduled_batch: int, recorder: Recorder) -> None:
        self.max_scheduled_batch = max_scheduled_batch
        self.recorder = recorder
        self.sequences: dict[str, SequenceData] = {}

    def prepare_next_schedule(self, batch: ScheduleBatch) -> None:
        """As soon as a step is on its way, count it as done: PrepareNextSchedule."""
        for row in batch.rows:
            data = self.sequences.get(row.req.rid)
            if data is None:
                data = self.sequences[row.req.rid] = SequenceData(row.req, row.lease, row.start)
            if data.lease is not row.lease:  # it was preempted, and starts again
                data.lease, data.num_computed_tokens = row.lease, row.start
            data.num_computed_tokens += row.extend_len  # AccumulateComputedTokens
        self.add_next_token_placeholder(batch)
        self.record("schedule", batch.step)

    def add_next_token_placeholder(self, batch: ScheduleBatch) -> None:
        """A placeholder for the token of each row, but not for a chunk that is not the last."""
        for req, deliver in zip(batch.reqs, batch.delivers, strict=True):
            if deliver:
                self.sequences[req.rid].output_token_ids.append(PLACEHOLDER_TOKEN)

    def take_result(self, batch: ScheduleBatch, result: Result) -> None:
        """Take in what a step gave those who still run: a token for each row that is to deliver."""
        tokens = result.tokens or [PLACEHOLDER_TOKEN] * len(batch.reqs)
        columns = zip(batch.reqs, batch.leases, batch.delivers, tokens, strict=True)
        runs = ((req.rid, token) for req, lease, ok, token in columns if ok and req.lease is lease)
        self.fetch_seq_generated_tokens(dict(runs), batch.step)

    def fetch_seq_generated_tokens(self, token_ids: Mapping[str, int], step: int) -> None:
        """Take in the response of a step (0: none has ended, all are dummies).

        A dummy says nothing, so its placeholder goes on standing.

        The original puts tokens aside and replaces placeholders when it next takes the sequence
        out of a queue, to schedule it; here that is done at once.

        Raises:
            RuntimeError: a token came for which no placeholder stands.
        """
        for rid, token in token_ids.items():
            if token != PLACEHOLDER_TOKEN:
                self.replace_placeholder_with_token(rid, token)
        self.record("response" if step else "dummy", step)

    def replace_placeholder_with_token(self, rid: str, token: int) -> None:
        """The first of the trailing placeholders becomes the token.

        Raises:
            RuntimeError: there is none, or there are more than steps can be on their way.
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
        """Forget who has ended; who was preempted keeps its tokens and loses its placeholders."""
        for rid, data in list(self.sequences.items()):
            if data.req.finished:
                del self.sequences[rid]
            elif data.req.lease is not data.lease and data.trailing_placeholder_count:
                del data.output_token_ids[-data.trailing_placeholder_count :]

    def record(self, after: str, step: int) -> None:
        """Mark the lists as they stand now: ``a: 5 -1; b: -1``."""
        if self.recorder.is_on:
            lists = "; ".join(
                f"{rid}: {' '.join(map(str, data.output_token_ids))}"
                for rid, data in self.sequences.items()
            )
            self.recorder.mark("ledger", after=after, step=step, lists=lists)


def reconcile(engine: Engine, ledger: PlaceholderLedger, pending: GenerationBatchResult) -> None:
    """Block on a step; its tokens take the place of placeholders, then the clients hear of them."""
    result = engine.wait_for(pending)
    ledger.take_result(pending.batch, result)
    engine.process_result(pending, result)
    ledger.clear_terminated()


def sample_delayed(
    engine: Engine, ledger: PlaceholderLedger, in_flight: deque[GenerationBatchResult]
) -> None:
    """Sample the newest step, if it was launched without; reconcile those before it first.

    In MindIE no C++ call ever needs this: the gate is at 1, and masks are the plugin's.
    """
    newest = in_flight[-1]
    if newest.delay_sample_func is not None:
        while len(in_flight) > 1:
            reconcile(engine, ledger, in_flight.popleft())
        engine.update_vocab_mask(newest.batch)
        engine.launch_batch_sample_if_needed(newest)
