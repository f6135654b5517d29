"""Two-batch overlap: one half of a batch computes while the other half communicates.

The loop is ``overlap``. This file has its forward pass (``TwoBatchWorker``). A layer of experts on
several devices sends each token to its experts (dispatch) and back (combine). In these
*all-to-alls* the compute units of a device idle. So two halves of a batch take turns (SGLang
``batch_overlap/two_batch_overlap.py``, ``--enable-two-batch-overlap``)::

    forward      whole  A  B  A  B  A  B        attention, experts, output: three stages
    all to all             A  B  A  B           dispatch and combine of the half that waits

A pass is six equal parts of ``CostModel.forward``: the layers without experts, which the whole
batch runs, then three stages with an all-to-all between two. ``overlap`` runs the same parts in
order, as one op. So where a pass over n tokens takes d(n), two halves take d(n) / 6 + d(n / 2).

- *It loses* with few tokens: each half reads all weights. With d(n) = b + tn it wins only above
  b / 2t tokens (a TODO in SGLang; vLLM's ``--dbo-decode-token-threshold`` is ``min_tokens`` here).
- *The split* (``compute_split_seq_index``): decodes by rows, prompts where the sums of tokens are
  nearest. If a half would have less than 48 % of the tokens, the prompt in the middle is cut
  (``--tbo-token-distribution-threshold``). Its second part reads the KV of the first, because the
  stage of A with the attention runs before that of B.
- *Not split* are a single decode, and prompts that begin with pages which a later row of the same
  step computes (rule ``prompt_pages`` "scheduled"). Their pass is that of ``overlap``.

The halves are joined before the logits, so sampling, relay and result are those of ``overlap``.
SGLang lets half B of a decode follow two stages after A (``tbo_delta_stages``); here it is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import NamedTuple, cast

from ..core import NoBatch, Row, ScheduleBatch
from ..devices.base import Array, Op
from ..engine.engine import Engine
from ..models.base import ForwardBatch, flatten, make_forward_batch
from ..scheduler.config import ALGORITHMS
from ..trace import Touch
from ..trace.events import ALL_TO_ALL
from ..worker import Step, Worker
from ..worker.recording import StepEdges
from .design import design
from .overlap import overlap
from .vllm_pp import LayeredModel

STAGES = 3  # of compute in each half
PARTS = 2 * STAGES  # of a pass: the stages, the all-to-alls between them, and the whole batch's
LEAST_PERCENT = 48  # of a step's prompt tokens in each half
NAMES = ("half a", "half b")  # of the ops of each half, on both streams
DENSE, SPARSE = range(1), range(1, 2)  # layers of the hash model, taken as without and with experts


class Half(NamedTuple):
    """Some tokens of a step, which run as a batch of their own."""

    name: str
    inputs: ForwardBatch
    begin: int  # place of its first token among the step's
    touches: Sequence[Touch]  # of its attention


class TwoBatchWorker(Worker[Step]):
    """A worker with a forward pass that ends in two halves, which take turns."""

    model: LayeredModel
    min_tokens = 0  # of a step that is split
    shipped: Sequence[Half] = ()  # of the newest step; it may find no memory for them

    def open_streams(self) -> None:
        """Open one more stream, for the all-to-alls."""
        super().open_streams()
        self.comm_stream = self.device.stream(ALL_TO_ALL)

    def ship(self, step: Step) -> None:
        """Bring the flat batch to the device, and both halves of it."""
        super().ship(step)
        self.shipped = self.halves(step)

    def launch_forward(self, step: Step) -> None:
        """Queue the layers of the whole batch, then the stages of both halves in turn."""
        if not (halves := self.shipped):
            return super().launch_forward(step)
        whole = self.queue(
            step, "forward", self.begin, step.inputs, step.previous, step.edges,
            on=self.forward_stream, cost=self.part(step.inputs, 0), touches=step.touches.forward,
        )  # fmt: skip
        if step.edges is not None:
            self.token_edges.launched(step.edges, whole)
        inputs, newest = self.touches.inputs(step.batch), [whole for _ in halves]
        for stage in range(STAGES):
            for at, half in enumerate(halves):
                given = [self.launch_comm(step, half, 2 * stage, newest[at]) if stage else whole]
                run = partial(self.compute, half, stage)
                if stage == STAGES - 1 and half is halves[-1]:
                    given, run = [*newest[:at], *given], partial(self.join, step.inputs)
                newest[at] = self.queue(
                    step, half.name, run, *given, on=self.forward_stream,
                    cost=self.part(half.inputs, 2 * stage + 1),
                    touches=[inputs] if stage else [inputs, *half.touches],
                )  # fmt: skip
        step.logits_output = newest[-1]

    def launch_comm(self, step: Step, half: Half, number: int, sent: Op) -> Op:
        """Queue an all-to-all of a half; later ops of the forward stream wait for it."""
        self.comm_stream.wait(sent)
        arrived = self.queue(
            step, half.name, lambda states: states, sent, on=self.comm_stream,
            cost=self.part(half.inputs, number), after=("recv", sent),
        )  # fmt: skip
        self.forward_stream.wait(arrived)
        return arrived

    def part(self, inputs: ForwardBatch, number: int) -> int:
        """Return the cost of one of the ``PARTS`` of a pass over some inputs, in nanoseconds."""
        cost = self.cost.forward_rows(inputs.extents)
        return cost * (number + 1) // PARTS - cost * number // PARTS

    def halves(self, step: Step) -> list[Half]:
        """Return the halves of a step; none if it is not split."""
        assert step.flat is not None
        found, begin, is_recorded = list[Half](), 0, self.device.recorder.is_on
        for name, batch in zip(NAMES, self.split(step.batch), strict=False):
            end = begin + batch.num_tokens
            flat = flatten(batch, step.flat.ids[begin:end], [], self.max_len, self.page_size)
            touches = [*self.touches.memory(batch, flat)] if is_recorded else []
            found.append(Half(name, make_forward_batch(flat, self.device.xp, 1), begin, touches))
            begin = end
        return found

    def split(self, batch: ScheduleBatch) -> list[ScheduleBatch]:
        """Return the rows of both halves as batches; none if it is not split."""
        at, size = split_token_index(batch), self.page_size
        a, b = tokens_of(batch, 0, at), tokens_of(batch, at, batch.num_tokens)
        read = {page for row in a.rows for page in row.lease.pages[: row.start // size]}
        computed = {page for row in b.rows for page in row.lease.pages[row.start // size :]}
        needs_b = batch.num_extend_reqs and not read.isdisjoint(computed)
        return [] if not at or needs_b or batch.num_tokens < self.min_tokens else [a, b]

    def begin(self, inputs: ForwardBatch, previous: Array, edges: StepEdges | None) -> Array:
        """Fill the page table, resolve the inputs, run the layers without experts."""
        if len(inputs.table_index):
            self.page_table[inputs.table_index] = inputs.table_slots
        ids = self.relay.resolve_future(inputs.ids, previous)
        if edges is not None:
            self.token_edges.took(edges, ids)
        return self.model.forward_layers(DENSE, inputs, ids, self.page_table)

    def compute(self, half: Half, stage: int, states: Array) -> Array:
        """Run a stage on the tokens of a half; this model does all of its work in the first."""
        if stage:
            return states
        own = states[half.begin : half.begin + half.inputs.num_tokens]
        return self.model.forward_layers(SPARSE, half.inputs, own, self.page_table)

    def join(self, inputs: ForwardBatch, *halves: Array) -> Array:
        """Return logits [num_logits, vocab] of the whole step."""
        return self.model.compute_logits(inputs, [state for half in halves for state in half])


def split_token_index(batch: ScheduleBatch) -> int:
    """Return the number of tokens in half A; 0: there is one half."""
    ends = [0, *accumulate(map(len, batch.ids))]
    if not batch.num_extend_reqs:
        return ends[len(batch.ids) // 2]
    total = ends[-1]
    nearest = min(reversed(ends), key=lambda end: abs(2 * end - total))
    least = min(nearest, total - nearest)
    return total // 2 if 100 * least < LEAST_PERCENT * total else nearest


def tokens_of(batch: ScheduleBatch, begin: int, end: int) -> ScheduleBatch:
    """Return the rows of a step with only the tokens from ``begin`` to ``end`` of the step."""
    rows, at = list[Row](), 0
    for row in batch.rows:
        skip = max(0, begin - at)
        if ids := row.ids[skip : max(0, end - at)]:
            rows.append(row._replace(start=row.start + skip, ids=ids))
        at += len(row.ids)
    return replace(
        batch, reqs=[row.req for row in rows], leases=[row.lease for row in rows],
        starts=[row.start for row in rows], ids=[row.ids for row in rows], new_pages={},
    )  # fmt: skip


@design(
    follows="SGLang batch_overlap/two_batch_overlap.py, on event_loop_overlap",
    relays=("ring", "pool", "prev_sampled", "fill_device"),
    depth=2,
    pins=2,
    worker=TwoBatchWorker,
    refuses={
        "real devices": "its all-to-all takes time only on the simulated device",
        **dict.fromkeys((*ALGORITHMS, "beam search"), "a limit of minisched: its rows are plain"),
    },
)
def two_batch(engine: Engine, min_tokens: int = 0) -> Iterator[ScheduleBatch | NoBatch]:
    """SGLang ``event_loop_overlap`` with a forward pass of two halves.

    A settled step takes the time of ``overlap``, with another d. ``min_tokens``: a step with fewer
    tokens is not split.
    """
    cast(TwoBatchWorker, engine.worker).min_tokens = min_tokens
    yield from overlap(engine)
