"""What the ops of a step with drafts touch: at most, where only the device knows its positions."""

from __future__ import annotations

from itertools import compress

from ..core import ModelWorkerBatch, Row, ScheduleBatch
from ..relay import DraftRelay
from ..speculative.base import Drafter, Reach
from .touches import StepTouches, Touches


class DraftTouches(Touches):
    """A row whose drafts before it are in flight may begin anywhere in what was reserved for it.

    All of that counts as written; so does what it may read there, which the steps before it wrote.
    """

    drafter: Drafter | None = None

    def of_ops(self, batch: ScheduleBatch, flat: ModelWorkerBatch) -> StepTouches:
        """What each of the four ops will touch at most."""
        plain, inputs, rows = super().of_ops(batch, flat), self.inputs(batch), flat.req_pool_indices
        forward, verify, draft = [*plain.forward], [*plain.sample], [inputs]
        if isinstance(self.relay, DraftRelay):
            hidden = list(compress(rows, flat.start_unknown))
            forward.append(self.relay.touch_lens("read", hidden))
            verify.append(self.relay.touch_lens("write", rows))
            draft.append(self.relay.touch_drafts(rows))
        if self.drafter is not None:
            draft += self.drafter.touches([
                self.reach(row, index < batch.num_extend_reqs)
                for index, row in enumerate(batch.rows)
            ])  # fmt: skip
        return StepTouches(forward, [inputs], verify, draft)

    def end_of(self, row: Row) -> int:
        """One past the last position that a row may compute."""
        return len(self.table[row.lease.row].slots) if None in row.ids else row.end

    def reach(self, row: Row, is_prompt: bool) -> Reach:
        """Where a row's positions may lie."""
        at, end = row.lease.row, self.end_of(row)
        return Reach(at, row.req.rid, is_prompt, row.start, end, self.table[at].slots)
