"""The ops of one step that may carry drafts: forward, sample, verify, draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from ..core import LogitAdjustment, ScheduleBatch
from ..devices.base import Array, Arrays, Buffer
from ..models.forward_batch import ForwardBatch, at_starts
from ..models.not_numbers import without_marks
from ..relay.base import DraftRelay
from ..speculative.base import Drafter
from .logprobs import sampled_logits
from .worker import Worker


class VerifyStep:
    """One step's ops, and what the first of them finds out for the others."""

    def __init__(
        self,
        worker: Worker,
        batch: ScheduleBatch,
        drafter: Drafter | None,
        inputs: ForwardBatch,
        bound: Any,
        room: Sequence[int],
    ) -> None:
        self.worker, self.batch = worker, batch
        self.carrier = worker.relay if isinstance(worker.relay, DraftRelay) else None
        self.drafter = drafter
        self.inputs = inputs
        self.bound = bound
        self.room = room  # [num_reqs] positions for which each row has memory

    def forward(self) -> Array:
        """Device: find out where rows begin, and compute logits [num_logits, vocab]."""
        worker, inputs = self.worker, self.inputs
        if len(inputs.table_index):
            worker.page_table[inputs.table_index] = inputs.table_slots
        if any(inputs.start_unknown):
            self.inputs = inputs = self.resolve_starts()
        self.inputs = replace(inputs, ids=worker.relay.resolve(inputs.ids, None))
        worker.token_edges.took(self.batch, self.inputs.ids)
        return worker.model.forward(self.inputs, self.inputs.ids, worker.page_table)

    def resolve_starts(self) -> ForwardBatch:
        """Device: the step at the positions where its rows really begin.

        The step before has left them in the relay. If that one failed, something else is there.
        Then the row is nobody's, but it must not write where its request has no memory, nor into
        a prefix that others read.
        """
        assert self.carrier is not None
        inputs, starts = self.inputs, list(self.inputs.prefix_lens)
        hidden = [row for row, unknown in enumerate(inputs.start_unknown) if unknown]
        real = self.carrier.start_of([inputs.rows[row] for row in hidden]).tolist()
        for row, start in zip(hidden, real, strict=True):
            starts[row] = max(starts[row], min(start, self.room[row] - inputs.extend_lens[row]))
        return at_starts(inputs, starts, self.worker.device.xp)

    def sample(
        self, logits: Array, adjustments: list[LogitAdjustment | None], output: Buffer
    ) -> Array:
        """Device: what the target itself chooses at each place, tokens [num_samples]."""
        logits = sampled_logits(self.worker.device.xp, self.inputs, logits)
        marked = self.worker.model.sample(logits, replace(self.inputs, adjustments=adjustments))
        output[: len(self.inputs.sampling)] = marked
        return without_marks(self.worker.device.xp, marked)

    def verify(self, tokens: Array, dests: Array, output: Buffer) -> Array:
        """Device: how many tokens of each row count, [num_reqs]; the relay learns the newest."""
        worker, inputs, xp = self.worker, self.inputs, self.worker.device.xp
        accepted = count_accepted(xp, inputs, tokens)
        firsts = list(accumulate(inputs.sample_lens, initial=0))[:-1]
        at = xp.add(xp.asarray(firsts), accepted) - 1  # each row's newest token
        worker.relay.store(dests, tokens[at])
        if self.carrier is not None:
            before = xp.asarray([inputs.sampling[first][2] for first in firsts])
            self.carrier.stash_lens(inputs.rows, xp.add(before, accepted))
        start = len(inputs.sampling)
        output[start : start + len(inputs.rows)] = accepted
        return accepted

    def draft(self, tokens: Array, accepted: Array, output: Buffer) -> Array:
        """Device: drafts for the step behind this one, [num_reqs * k]."""
        inputs, page_table = self.inputs, self.worker.page_table
        assert self.drafter is not None
        drafts = self.drafter.draft(inputs, self.bound, tokens, accepted, page_table)
        if self.carrier is not None:
            self.carrier.stash_drafts(inputs.rows, drafts)
        start = len(inputs.sampling) + len(inputs.rows)
        output[start : start + len(drafts)] = drafts
        return drafts


def count_accepted(xp: Arrays, inputs: ForwardBatch, tokens: Array) -> Array:
    """Device: 1 and the drafts that are what was sampled in their place, [num_reqs].

    Of the inputs [last, d1, .., dk] of a row the target made [t0, .., tk]: d1 is right if it is t0.
    """
    ids, width = inputs.ids, max(inputs.sample_lens) - 1
    ends, samples = accumulate(inputs.extend_lens), accumulate(inputs.sample_lens)
    draft_at, target_at, is_draft = [], [], []
    for end, sampled, count in zip(ends, samples, inputs.sample_lens, strict=True):
        for at in range(width):
            there = at < count - 1
            is_draft.append(there)
            draft_at.append(end - count + 1 + at if there else 0)
            target_at.append(sampled - count + at if there else 0)
    drafts = xp.where(
        xp.mask(is_draft), ids[xp.asarray(draft_at)], xp.asarray([-1] * len(draft_at))
    )
    return xp.count_equal(drafts, tokens[xp.asarray(target_at)], width, len(inputs.rows))
