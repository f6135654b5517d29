"""Records of a step in the trace, besides its slices.

- ``Touches``: the memory that its ops share with other ops, declared at the launch, for the race
  check (``checks/races.py``). On ``sim`` a test compares the declared accesses with the real ones.
- ``TokenEdges``: the source of each row's token. The arrows follow the data, also if it is wrong.
- ``Recording``: the records of the engine's phases: counters, waits, outputs, and tokens that came
  over the host.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ..core import Lease, Outputs, Request, Row, ScheduleBatch
from ..devices.base import Array, Device, Label, Op, OrNone
from ..devices.sim import SimMemory
from ..models.base import ForwardBatch, placeholders, slots_of
from ..relay.base import Relay
from ..scheduler import Scheduler
from ..trace import Recorder, Slice, Touch

# -- The memory of its ops -------------------------------------------------------------------------

KV, PAGE_TABLE, INPUTS, PINNED = "kv", "page table", "inputs", "pinned"


class StepTouches(NamedTuple):
    """The memory that the ops of one step touch, and the host when it reads the copy.

    Only a step with drafts has the last two.
    """

    forward: Sequence[Touch] = ()
    sample: Sequence[Touch] = ()
    copy: Sequence[Touch] = ()
    read: Sequence[Touch] = ()
    verify: Sequence[Touch] = ()
    draft: Sequence[Touch] = ()


NOTHING = StepTouches()


class Laid(Protocol):
    """The fields of a step that its layout needs (``worker.py:Step``)."""

    batch: ScheduleBatch
    buffer: int

    @property
    def num_outputs(self) -> int:
        """Return the number of integers in its output buffer."""
        ...


class Touches:
    """Declares the memory that the ops of a step will touch, when the step is laid out.

    It follows the content of the device's page table. The request's own pages are not enough: they
    may be released before a thread of the host launches the step. ``places`` are the devices that
    the model is cut over. For steps with drafts see ``verify.py:DraftTouches``.
    """

    def __init__(
        self,
        recorder: Recorder,
        relay: Relay,
        max_len: int,
        page_size: int,
        places: Sequence[str] = ("",),
    ) -> None:
        self.recorder, self.relay, self.places = recorder, relay, places
        self.max_len, self.page_size = max_len, page_size
        self.table = defaultdict[int, list[int]](list)  # the slots that the device's lists, by row
        self.committed: Callable[[], int] = lambda: 0  # the scheduler's newest step
        self._followed: dict[int, weakref.ref[ForwardBatch]] = {}  # by step

    def declare(self, step: Laid, flat: ForwardBatch) -> StepTouches:
        """Return the memory that each op of a step will touch, when it is laid out.

        Its arrays are written now.
        """
        if not self.recorder.is_on:
            return NOTHING
        batch = step.batch
        self.recorder.touch("write", INPUTS, [batch.step])
        self._list_pages(batch)
        inputs = self.inputs(batch)
        forward = [inputs, *self.relay.reads(batch, flat.ids), *self.memory(batch, flat)]
        output, copied = f"output {step.buffer}", range(step.num_outputs)
        sampled = Touch("write", output, range(len(flat.sampling)))
        sample = [inputs, *self.relay.writes(batch, flat.future_slots), sampled]
        copy = [Touch("read", output, copied), Touch("write", f"host {output}", copied)]
        return StepTouches(forward, sample, copy, [Touch("read", f"host {output}", copied)])

    def undeclared(self, batch: ScheduleBatch, flat: ForwardBatch) -> StepTouches:
        """Host: return the memory of a step that was lost before its layout."""
        if not self.recorder.is_on:
            return NOTHING
        self._list_pages(batch)
        stored = self.relay.writes(batch, flat.future_slots)
        return StepTouches([*self.memory(batch, flat), *stored])

    def follow(self, inputs: ForwardBatch) -> None:
        """Host: record when the last reference to a step's inputs is gone, which frees them."""
        if self.recorder.is_on:
            step = inputs.step
            # Kept here, and in no registry of the whole process: a run that is forgotten goes.
            self._followed[step] = weakref.ref(inputs, lambda _: self._freed(step))

    def _freed(self, step: int) -> None:
        del self._followed[step]
        self.recorder.touch("free", INPUTS, [step])

    def inputs(self, batch: ScheduleBatch) -> Touch:
        """Return the read of the step's arrays, which every op with them does."""
        return Touch("read", INPUTS, [batch.step])

    def free_pages(self, pages: Sequence[int], lease: Lease | None) -> None:
        """Host: record that pages are released: the next owner writes after all launched reads."""
        slots, rid = slots_of(pages, self.page_size), lease.rid if lease else ""
        for place in self.places:
            self.recorder.touch("release", place + KV, slots, rid, self.committed())

    def free_row(self, lease: Lease) -> None:
        """Host: record that a row is released, with the relay's memory of it."""
        length, step = len(lease.pages) * self.page_size, self.committed()
        cells = range(lease.row * self.max_len, lease.row * self.max_len + length)
        for place in self.places:
            self.recorder.touch("release", place + PAGE_TABLE, cells, lease.rid, step)
        for resource, of_row in self.relay.of_row(lease.row, length):
            self.recorder.touch("release", resource, of_row, lease.rid, step)

    def memory(self, batch: ScheduleBatch, flat: ForwardBatch) -> Iterator[Touch]:
        """Yield the rows of the page table, and the KV slots that they list.

        In a pass all rows write before any row reads, so a row may read the writes of a later row
        (rule ``prompt_pages`` "scheduled"): these reads come last.
        """
        if flat.table_index:
            yield Touch("write", PAGE_TABLE, flat.table_index)
        late, reads_late = list[Touch](), self.reads_late(batch)
        for at, row in enumerate(batch.rows):
            cell, rid, end = row.lease.row * self.max_len, row.req.rid, self.end_of(row)
            listed = self.table[row.lease.row]
            yield Touch("read", PAGE_TABLE, range(cell, cell + end), rid)
            read = Touch("read", KV, listed[: row.start], rid)
            if at in reads_late:
                late.append(read)
            else:
                yield read
            yield Touch("write", KV, listed[row.start : end], rid)
        yield from late

    def reads_late(self, batch: ScheduleBatch) -> set[int]:
        """Return the prompts that begin with positions which a later row computes."""
        late, behind = set[int](), set[int]()
        for at in reversed(range(len(batch.rows) if batch.num_extend_reqs else 0)):
            row = batch.rows[at]
            listed = self.table[row.lease.row]
            if not behind.isdisjoint(listed[: row.start]):
                late.add(at)
            behind.update(listed[row.start : self.end_of(row)])
        return late

    def end_of(self, row: Row) -> int:
        """Return one past the last position that a row computes."""
        return row.end

    def _list_pages(self, batch: ScheduleBatch) -> None:
        """Follow the writes of a step to the page table."""
        for at, (pages_at, pages) in batch.new_pages.items():
            listed = self.table[batch.leases[at].row]
            listed[pages_at * self.page_size :] = slots_of(pages, self.page_size)


# -- The source of each token ----------------------------------------------------------------------


class Made(NamedTuple):
    """A token that a step has sampled, and where the relay keeps it."""

    lease: Lease
    op: int  # slice id
    future_slot: int  # of the relay; with a chained relay the row of the step
    brought_by: int  # slice id of the copy to the host
    sampled: Any  # its value is at ``place`` of this op's value; None on a wall clock
    place: int


@dataclass
class Input:
    """The source of one row's unknown token; ``at`` is its place in the flat ids."""

    row: int
    at: int
    future_slot: int | None  # of the relay; None: the relay does not look for it
    known: int | None  # what it is, if the host knows it
    is_old: bool = False  # the host does not know it, and has sent another one in its place:
    sent_by: int = 0  # from this slice
    sent_to: int = 0  # to that one
    filled_by: int = 0  # slice id of the copy that brought it, if the host has written it in
    newest: Made | None = None  # of the row's lease, when the forward pass is launched


@dataclass
class StepEdges:
    """The edges of one step, from its layout until it has run."""

    batch: ScheduleBatch
    future_slots: list[int]
    inputs: list[Input]
    before: Op | None  # with the tokens that it takes, if the relay keeps none
    forward: int = 0  # slice id of its pass

    def fill(self, places: Mapping[int, int], copy: Op | None) -> None:
        """Host: note the rows with tokens that ``copy`` brought and the host wrote."""
        for item in self.inputs:
            if copy is not None and item.row in places:
                item.filled_by, item.future_slot = copy.slice_id, places[item.row]


class TokenEdges:
    """Records the edge ``token`` from the op with the token that a forward pass really takes.

    On the simulated device the memory of the relay records the writer of each future slot. The
    ids of the forward pass are compared with it when it runs. On a wall clock the future slots are
    compared, in the order of launches. If a row takes another token than the newest one of its
    lease, a mark ``wrong token`` has the two slices of the arrow and the known tokens.
    """

    def __init__(self, device: Device, relay: Relay) -> None:
        self.recorder, self.relay = device.recorder, relay
        self.is_virtual = device.clock == "virtual"
        self.memory = relay.token_ids_map if isinstance(relay.token_ids_map, SimMemory) else None
        if self.memory is not None:
            self.memory.is_followed = self.recorder.is_on
        self.newest: dict[int, Made] = {}  # by row of the request table
        self.kept: dict[int | None, int] = {}  # future slot -> the op that left a token there

    def lay_out(
        self, batch: ScheduleBatch, flat: ForwardBatch, before: Op | None
    ) -> StepEdges | None:
        """Host: after ``bind``, note the inputs of a step that the host does not know."""
        if not self.recorder.is_on:
            return None
        slots, ids = self.relay.takes(batch, flat.ids), flat.ids
        negative = {row: at for row, at, _ in placeholders(batch, ids)}
        inputs, start = [], 0
        for row, tokens in enumerate(batch.ids):
            if row in slots or None in tokens:
                at = negative.get(row, start + len(tokens) - 1)
                inputs.append(Input(row, at, slots.get(row), tokens[at - start], ids[at] >= 0))
            start += len(tokens)
        return StepEdges(batch, flat.future_slots or list(range(len(batch.reqs))), inputs, before)

    def launched(self, edges: StepEdges, forward: Op) -> None:
        """Host: note that the forward pass is queued."""
        edges.forward = forward.slice_id
        for item in edges.inputs:
            item.newest = self._newest(edges.batch.leases[item.row])
            if item.filled_by:
                self._take(edges, item, item.filled_by)
            elif not self.is_virtual:
                before = edges.before
                source = self.kept.get(item.future_slot, 0) if before is None else before.slice_id
                self._take(edges, item, source)

    def took(self, edges: StepEdges, ids: Array) -> None:
        """Device: compare the resolved inputs with the relay's memory, on a virtual clock.

        ``ids`` are the inputs of the model.
        """
        before, memory = edges.before, self.memory
        for item in edges.inputs if self.is_virtual else ():
            if item.filled_by:
                continue
            got, found, source, slot = int(ids[item.at]), None, 0, item.future_slot
            if before is not None and slot is not None:
                tokens, source = OrNone(before).value, before.slice_id
                found = tokens[slot] if tokens is not None else None
            elif memory is not None and slot is not None:
                found, source = memory.values[slot], memory.writers.get(slot, 0)
            self._take(edges, item, source if got == found else 0, got)

    def sampled(self, edges: StepEdges, tokens: Op, stored: Op, copy: Op) -> None:
        """Host: note that sampling is queued; ``stored`` leaves the tokens in the relay."""
        looked_at = tokens if self.is_virtual and stored is tokens else None
        slots = zip(edges.batch.leases, edges.future_slots, strict=True)
        for place, (lease, slot) in enumerate(slots):
            made = Made(lease, stored.slice_id, slot, copy.slice_id, looked_at, place)
            self.newest[lease.row], self.kept[slot] = made, stored.slice_id

    def _newest(self, lease: Lease) -> Made | None:
        made = self.newest.get(lease.row)
        return made if made is not None and made.lease is lease else None

    def _take(self, edges: StepEdges, item: Input, source: int, got: int | None = None) -> None:
        """Record the edge of one row, if it took a token of a step, and a mark if it was wrong.

        The token is judged by its value if that is known, or by its place.
        """
        batch, reader, newest, needs = edges.batch, edges.forward, item.newest, item.known
        if item.future_slot is None:  # the host has sent something
            source, reader = item.sent_by, item.sent_to or reader
        elif source:
            self.recorder.edge("token", source, reader)
        if newest is not None and newest.sampled is not None and got is not None:
            if newest.sampled.error is not None:
                return
            needs = int(newest.sampled.value[newest.place]) if newest.sampled.done else None
        attrs = dict[str, int]()
        if got is not None and needs is not None:
            attrs = {"got": got, "needs": needs}
            is_right = got == needs
        else:
            is_right = newest is not None and (
                source in (newest.op, newest.brought_by) and item.future_slot == newest.future_slot
            )
        if not is_right:
            self.recorder.mark(
                "wrong token", step=batch.step, rid=batch.rids[item.row],
                source=source, reader=reader, **attrs,
            )  # fmt: skip


# -- The engine's phases ---------------------------------------------------------------------------


@dataclass
class Recording:
    """Records the engine's phases, if the recorder of the device is on."""

    scheduler: Scheduler
    device: Device
    delivered_by: dict[str, int] = field(default_factory=dict)  # live request -> process slice id
    counted: dict[str, int] = field(default_factory=dict)  # counters as they were recorded last

    def arrival(self, messages: Iterable[object]) -> Label:
        """Return the label of a receive slice: the requests that arrive."""
        return Label(rids=tuple(item.name for item in messages if isinstance(item, Request)))

    def count(self) -> None:
        """Record the counters that have changed."""
        recorder, scheduler = self.device.recorder, self.scheduler
        if not recorder.is_on:
            return
        queue = scheduler.waiting_queue
        counters = {
            "waiting": len(queue.waiting) + len(queue.aside),
            "running": len(scheduler.running_batch),
            "kv used": scheduler.num_used_tokens,
            "kv cached": scheduler.page_cache.evictable_size * scheduler.config.page_size,
            "new token ratio": round(1000 * scheduler.new_token_ratio.current),
        }
        for name, value in counters.items():
            if self.counted.get(name) != value:
                self.counted[name] = value
                recorder.counter(name, value)

    def wait(self, start: int, label: Label) -> None:
        """Record a slice for the time since ``start``, in which the host was blocked."""
        recorder, end = self.device.recorder, self.device.now()
        if end > start:
            recorder.slice(Slice(recorder.new_id(), "host", "wait", start, end, **vars(label)))

    def must_wait(self, batch: ScheduleBatch, reason: str, op: str) -> None:
        """Mark that an op of a step has to wait, with the reason (``checks/causes.py``)."""
        self.device.recorder.mark("wait", step=batch.step, reason=reason, op=op)

    def tokens(self, step: int, outputs: Outputs) -> None:
        """Mark the return of a step, with the tokens that clients receive from it.

        These marks let two files be compared (``checks/identity.py``). Spaces in an id are ``%20``.
        Step 0 is the work of another scheduler (``pd``).
        """
        recorder = self.device.recorder
        if not recorder.is_on:
            return
        said = zip(outputs.rids, outputs.tokens, strict=True)
        heard = [(rid, token) for rid, token in said if token is not None]
        if step or heard:
            rids, tokens = tuple(rid for rid, _ in heard), tuple(token for _, token in heard)
            recorder.mark("tokens", step=step, rids=rids, tokens=tokens)

    def delivered(self, outputs: Outputs, process: int) -> None:
        """Remember the process slice of each live request's newest token."""
        if not self.device.recorder.is_on:
            return
        for at, rid in enumerate(outputs.rids):
            more = outputs.more.get(at)
            if more is None or not (more.finish_reason or more.namesake):
                self.delivered_by[rid] = process
            elif not more.namesake:
                self.delivered_by.pop(rid, None)

    def tokens_by_host(self, batch: ScheduleBatch, edges: StepEdges | None, prepare: int) -> None:
        """Record an edge to ``prepare`` for each row with an input token that came over the host.

        Some rows with a token that the host does not know get an old one from it.
        """
        others = {item.row: item for item in edges.inputs} if edges else {}
        for at, row in enumerate(batch.rows if self.delivered_by else ()):
            source, item = self.delivered_by.get(row.req.rid, 0), others.get(at)
            has_newest = None not in row.ids and row.start < row.req.known_len <= row.end
            if source and (item.is_old if item else has_newest):
                self.device.recorder.edge("token", source, prepare)
                if item:
                    item.sent_by, item.sent_to = source, prepare
