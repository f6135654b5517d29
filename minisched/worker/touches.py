"""What a step's ops touch of memory that others touch too: declared when they are launched.

From here the race check (``checks/races.py``) knows it on every device; on ``sim`` a test holds
what is declared against what is touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..core import Lease, ModelWorkerBatch, ScheduleBatch
from ..relay import Relay
from ..trace import Program, Touch

KV, PAGE_TABLE, INPUTS = "kv", "page table", "inputs"


@dataclass(frozen=True)
class StepTouches:
    """What the forward pass and the sampling of one step touch."""

    forward: Sequence[Touch] = ()
    sample: Sequence[Touch] = ()


NOTHING = StepTouches()


class Touches:
    """The touches of every step that is prepared and not sampled yet, by step.

    They are worked out where the step is laid out: by the time a thread of the host launches it,
    the scheduler may have taken a request's pages back.
    """

    def __init__(self, program: Program, relay: Relay, max_len: int, page_size: int) -> None:
        self.program = program
        self.relay = relay
        self.max_len = max_len
        self.page_size = page_size
        self.steps: dict[int, StepTouches] = {}

    def declare(self, batch: ScheduleBatch, flat: ModelWorkerBatch) -> None:
        """Host: a step is laid out; its arrays (``inputs``, one cell for each step) are written."""
        if not self.program.is_on:
            return
        self.program.touch("write", INPUTS, [batch.step])
        inputs = Touch("read", INPUTS, [batch.step])
        self.steps[batch.step] = StepTouches(
            [inputs, *self.relay.reads(batch, flat.input_ids), *self._memory(batch, flat)],
            [inputs, *self.relay.writes(batch, flat.dests)],
        )

    def of(self, batch: ScheduleBatch) -> StepTouches:
        """What was declared for a step; nothing where nobody keeps it."""
        return self.steps.get(batch.step, NOTHING)

    def _memory(self, batch: ScheduleBatch, flat: ModelWorkerBatch) -> Iterator[Touch]:
        """The page table's rows, and the KV slots that they list."""
        yield Touch("write", PAGE_TABLE, flat.table_index)
        for row in batch.rows:
            cell, rid = row.lease.row * self.max_len, row.req.rid
            yield Touch("read", PAGE_TABLE, range(cell, cell + row.end), rid)
            yield Touch("read", KV, self.slots(row.lease, 0, row.start), rid)
            yield Touch("write", KV, self.slots(row.lease, row.start, row.end), rid)

    def slots(self, lease: Lease, start: int, end: int) -> list[int]:
        """The KV slots of a lease's positions."""
        size, pages = self.page_size, lease.pages
        return [pages[at // size] * size + at % size for at in range(start, end)]
