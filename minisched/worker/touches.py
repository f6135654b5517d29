"""What a step's ops touch of memory that others touch too: declared when they are launched.

From here the race check (``checks/races.py``) knows it on every device; on ``sim`` a test
holds what is declared against what is touched.
"""

from __future__ import annotations

import weakref
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, compress
from typing import NamedTuple

from ..core import Lease, ModelWorkerBatch, Row, ScheduleBatch
from ..core.batch import slots_of
from ..models.base import ForwardBatch
from ..relay import DraftRelay, Relay, RowRelay
from ..speculative.base import Drafter, Reach
from ..trace import Program, Touch
from ..trace.recorder import span_text

# -- The KV slots that one row of the page table lists, and the text that says which they are ------


class RowSlots:
    """Slots by position. A row reads them all in every step, and gets a few more in each.

    So the spans of the first ones are kept, each with its text.
    """

    def __init__(self) -> None:
        self.slots: list[int] = []
        self._length = 0  # positions whose slots are in the spans
        self._spans: list[tuple[int, int]] = []
        self._texts: list[str] = []

    def replace(self, at: int, slots: Sequence[int]) -> None:
        """List other slots from position ``at`` on, and nothing behind them."""
        self.slots[at:] = slots
        if at < self._length:
            self._forget()

    def up_to(self, end: int) -> str:
        """The slots of the first ``end`` positions, as text."""
        if end < self._length:
            self._forget()
        for slot in self.slots[self._length : end]:
            self._add(slot)
        self._length = end
        return " ".join(self._texts)

    def _forget(self) -> None:
        self._length, self._spans, self._texts = 0, [], []

    def _add(self, slot: int) -> None:
        """Put a slot among the spans, which it may lengthen or join."""
        first = last = slot
        begin = end = bisect(self._spans, (slot, slot))
        if any(one <= slot <= other for one, other in self._spans[max(0, begin - 1) : end + 1]):
            return  # a row that lists a slot twice is a bug for others to tell
        if begin and self._spans[begin - 1][1] == slot - 1:
            begin, first = begin - 1, self._spans[begin - 1][0]
        if end < len(self._spans) and self._spans[end][0] == slot + 1:
            end, last = end + 1, self._spans[end][1]
        self._spans[begin:end] = [(first, last)]
        self._texts[begin:end] = [span_text(first, last)]


KV, PAGE_TABLE, INPUTS, PINNED = "kv", "page table", "inputs", "pinned"


class StepTouches(NamedTuple):
    """What the ops of one step touch; ``verify`` and ``draft`` are those of a step with drafts."""

    forward: Sequence[Touch] = ()
    sample: Sequence[Touch] = ()
    verify: Sequence[Touch] = ()
    draft: Sequence[Touch] = ()


NOTHING = StepTouches()


class Touches:
    """Says what each step's ops will touch, as soon as it is laid out.

    From what the device's page table lists by then: when a thread of the host launches the step,
    the scheduler may have taken a request's pages back. ``places`` are the devices that the model
    is cut over; each has a page table and KV of its own.

    Where steps carry drafts (``num_draft_tokens``) it says what they touch at most: a row whose
    drafts before it are in flight may begin anywhere in what was reserved for it. All of that
    counts as written; so does what it may read there, which the steps before it wrote.
    """

    def __init__(
        self,
        program: Program,
        relay: Relay,
        max_len: int,
        page_size: int,
        places: Sequence[str] = ("",),
        num_draft_tokens: int = 0,
        drafter: Drafter | None = None,
    ) -> None:
        self.program = program
        self.relay = relay
        self.max_len = max_len
        self.page_size = page_size
        self.places = places
        self.num_draft_tokens, self.drafter = num_draft_tokens, drafter
        self.table = defaultdict[int, RowSlots](RowSlots)  # what the device's page table lists

    def declare(self, batch: ScheduleBatch, flat: ModelWorkerBatch) -> StepTouches:
        """Host: a step is laid out; its arrays (``inputs``, one cell for each step) are written.

        What each of its ops will touch; nothing where nobody keeps it.
        """
        if not self.program.is_on:
            return NOTHING
        self.program.touch("write", INPUTS, [batch.step])
        self._list_pages(batch)
        inputs = self.inputs(batch)
        forward = [inputs, *self.relay.reads(batch, flat.input_ids), *self.memory(batch, flat)]
        sample = [inputs, *self.relay.writes(batch, flat.dests)]
        if not self.num_draft_tokens:
            return StepTouches(forward, sample)
        verify, draft, rows = sample, [inputs], flat.req_pool_indices
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

    def undeclared(self, batch: ScheduleBatch, flat: ModelWorkerBatch) -> StepTouches:
        """Host: what a step would have touched that was lost before it was laid out.

        Its pages are listed all the same, and the step behind it takes its tokens from where this
        one would have left them.
        """
        if not self.program.is_on:
            return NOTHING
        self._list_pages(batch)
        return StepTouches([*self.memory(batch, flat), *self.relay.writes(batch, flat.dests)])

    def written(self, whole: StepTouches) -> list[Touch]:
        """All that a step may have written that was not launched as a whole.

        What it reads is nobody's: the relay's cells may lack what the lost step was to send there.
        """
        return [touch for touch in chain.from_iterable(whole) if touch.kind != "read"]

    def follow(self, inputs: ForwardBatch) -> None:
        """Host: when the last name of a step's inputs goes, their memory may be handed out again.

        What the device still has to do with them is no name: an op is given a copy of the batch.
        """
        if self.program.is_on:
            freed = ("free", INPUTS, [inputs.label.step])
            weakref.finalize(inputs, self.program.touch, *freed).atexit = False

    def inputs(self, batch: ScheduleBatch) -> Touch:
        """What every op reads that is given the step's arrays."""
        return Touch("read", INPUTS, [batch.step])

    def read_back(self, step: int, buffer: int, size: int, uploaded: bool) -> None:
        """Host: the copy is read; what the step's upload was given can go."""
        self.program.touch("read", f"host output {buffer}", range(size))
        if uploaded:
            self.program.touch("free", PINNED, [step])

    def free_pages(self, pages: Sequence[int], lease: Lease | None) -> None:
        """Host: pages are taken back: nobody may touch them any more."""
        if not self.program.is_on:
            return
        for place in self.places:
            slots, rid = slots_of(pages, self.page_size), lease.rid if lease else ""
            self.program.touch("free", place + KV, slots, rid)

    def free_row(self, lease: Lease) -> None:
        """Host: a row is taken back, and what the relay keeps for it."""
        if not self.program.is_on:
            return
        length = len(lease.pages) * self.page_size
        cells = range(lease.row * self.max_len, lease.row * self.max_len + length)
        for place in self.places:
            self.program.touch("free", place + PAGE_TABLE, cells, lease.rid)
        if isinstance(self.relay, RowRelay):
            for resource, of_row in self.relay.of_row(lease.row, length):
                self.program.touch("free", resource, of_row, lease.rid)

    def memory(self, batch: ScheduleBatch, flat: ModelWorkerBatch) -> Iterator[Touch]:
        """The page table's rows, and the KV slots that they list.

        In a pass all rows write before any reads, so a row may read what one behind it writes
        (rule ``prompt_pages`` "scheduled"): that is said last.
        """
        if flat.table_index:
            yield Touch("write", PAGE_TABLE, flat.table_index)
        to_come = self._written(batch.rows[1:]) if batch.num_extend_reqs else Counter[int]()
        late: list[Touch] = []
        for at, row in enumerate(batch.rows):
            cell, rid, end = row.lease.row * self.max_len, row.req.rid, self.end_of(row)
            listed = self.table[row.lease.row]
            yield Touch("read", PAGE_TABLE, range(cell, cell + end), rid)
            read = Touch("read", KV, listed.up_to(row.start), rid)
            if to_come and not to_come.keys().isdisjoint(listed.slots[: row.start]):
                late.append(read)
            else:
                yield read
            yield Touch("write", KV, listed.slots[row.start : end], rid)
            if at + 1 >= batch.num_extend_reqs:
                to_come.clear()  # a row that decodes was admitted in an earlier step
            to_come -= self._written(batch.rows[at + 1 : at + 2]) if to_come else Counter()
        yield from late

    def _written(self, rows: Sequence[Row]) -> Counter[int]:
        """The KV slots that these compute."""
        slots = (self.table[row.lease.row].slots[row.start : self.end_of(row)] for row in rows)
        return Counter(chain.from_iterable(slots))

    def end_of(self, row: Row) -> int:
        """One past the last position that a row may compute."""
        if self.num_draft_tokens and None in row.ids:
            return len(self.table[row.lease.row].slots)
        return row.end

    def reach(self, row: Row, is_prompt: bool) -> Reach:
        """Where a row's positions may lie."""
        at, end = row.lease.row, self.end_of(row)
        return Reach(at, row.req.rid, is_prompt, row.start, end, self.table[at].slots)

    def _list_pages(self, batch: ScheduleBatch) -> None:
        """Follow what the step writes to the page table."""
        for at, (pages_at, pages) in batch.new_pages.items():
            listed = self.table[batch.leases[at].row]
            listed.replace(pages_at * self.page_size, slots_of(pages, self.page_size))
