"""Whose token each step took: the arrows of a trace follow the data, also where it went astray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..core import Lease, ModelWorkerBatch, ScheduleBatch
from ..devices.base import Array, Device, Op, OrNone
from ..devices.sim import SimMemory
from ..relay import Relay
from ..relay.base import placeholders
from ..relay.lazy_chain import LazyChain


def is_chained(relay: Relay) -> bool:
    """Whether a step takes the value of an op before it, and not from the relay's memory."""
    return isinstance(relay, LazyChain)


class Made(NamedTuple):
    """A token that a step has sampled: by which op, and in which cell of the relay it is kept."""

    lease: Lease
    op: int  # slice id
    cell: int
    brought_by: int  # slice id of the copy to the host
    value: Any = None  # (op, place among its tokens), where a virtual clock lets one look


@dataclass
class Input:
    """Where the unknown token of one row comes from; ``at`` is its place in the flat ids."""

    row: int
    at: int
    cell: int | None  # of the relay; None: the relay will not look for it
    is_old: bool  # the host does not know it, and has sent another one in its place
    known: int | None  # what it is, if the host knows it
    needs: Made | None = None  # the newest token of the row's lease
    source: tuple[int, int] = (0, 0)  # slice ids of the host's arrow


@dataclass
class StepEdges:
    """What the recorder of edges keeps of one step, from when it is laid out until it has run."""

    batch: ScheduleBatch
    dests: list[int]
    inputs: list[Input]
    memory: SimMemory | None  # the relay's, where it can be asked who wrote it
    before: Op | None  # whose value it takes, if the relay keeps none
    filled: dict[int, tuple[int, int]] = field(default_factory=dict)  # row -> op and cell
    forward: int = 0  # slice id of its pass, where a virtual clock lets one look at what that took

    def fill(self, rows: Mapping[int, int], copy: Op | None) -> None:
        """Host: it has written tokens that ``copy`` brought into rows of this step."""
        if copy is not None:
            self.filled |= {row: (copy.slice_id, place) for row, place in rows.items()}


class TokenEdges:
    """Records the edge ``token`` from the op whose token a step's forward pass really takes.

    On the simulated device the memory of the relay knows who wrote each cell, and what the forward
    pass made of it is compared when it runs. On a wall clock it is the relay's own binding: which
    cell was given to whom when, in the order of launches. Where nothing was taken there is no edge.
    A row that takes anything but the newest token of its lease gets a mark ``wrong token``, with
    the arrow's two slices and, where they are known, both tokens.
    """

    def __init__(self, device: Device) -> None:
        self.recorder = device.recorder
        self.is_virtual = device.clock == "virtual"
        self.newest: dict[int, Made] = {}  # by row of the request table
        self.kept: dict[int, int] = {}  # cell of the relay -> the op whose token is kept there
        self.stored_for: dict[int, int] = {}  # of a step with drafts: verify -> sample

    def lay_out(
        self,
        relay: Relay,
        batch: ScheduleBatch,
        known: ScheduleBatch,
        flat: ModelWorkerBatch,
        before: Op | None,
    ) -> StepEdges | None:
        """Host: the relay has bound a step; note which of its inputs are not the host's.

        It was bound as ``known``: that is ``batch``, unless the host has waited for the steps in
        front and written their tokens into rows. None where nothing is recorded.
        """
        if not self.recorder.is_on:
            return None
        memory = relay.kept_in if isinstance(relay.kept_in, SimMemory) else None
        if memory is not None:
            memory.follow()
        cells, ids = relay.takes(known, flat.input_ids), flat.input_ids
        negative = {row: at for row, at, _ in placeholders(known, ids)}
        inputs, start = [], 0
        for row, tokens in enumerate(known.ids):
            if row in cells or None in tokens:
                at = negative.get(row, start + len(tokens) - 1)
                inputs.append(Input(row, at, cells.get(row), ids[at] >= 0, tokens[at - start]))
            start += len(tokens)
        dests = flat.dests or list(range(len(known.reqs)))
        edges = StepEdges(batch, dests, inputs, memory, before)
        for row, is_hidden in enumerate(batch.start_unknown if known is not batch else ()):
            if is_hidden and (made := self._newest(batch.leases[row])):
                edges.filled[row] = made.brought_by, made.cell
        return edges

    def launched(self, edges: StepEdges, forward: Op) -> None:
        """Host: the forward pass is queued."""
        batch = edges.batch
        for item in edges.inputs:
            item.needs = self._newest(batch.leases[item.row])
        for row, (op, cell) in edges.filled.items():
            needs = self._newest(batch.leases[row])
            self.recorder.edge("token", op, forward.slice_id)
            if needs is None or (needs.brought_by, needs.cell) != (op, cell):
                self._wrong(batch, row, op, forward.slice_id)
        edges.inputs = [item for item in edges.inputs if item.row not in edges.filled]
        if self.is_virtual:
            edges.forward = forward.slice_id
            return
        for item in edges.inputs:
            if item.cell is not None:
                before = edges.before
                source = before.slice_id if before is not None else self.kept.get(item.cell, 0)
                self._draw(batch, item, source, forward.slice_id)
            else:
                self._wrong(batch, item.row, item.source[0], item.source[1] or forward.slice_id)

    def took(self, edges: StepEdges, ids: Array) -> None:
        """Device: the relay has resolved a step's inputs; on a virtual clock one may look at them.

        ``ids`` is what the model will be given.
        """
        forward, before, memory = edges.forward, edges.before, edges.memory
        for item in edges.inputs if forward else ():
            got = int(ids[item.at])
            found, source = None, 0
            if before is not None and item.cell is not None:
                tokens, source = OrNone(before).value, before.slice_id
                found = tokens[item.cell] if tokens is not None else None
            elif memory is not None and item.cell is not None:
                found, source = memory.values[item.cell], memory.writers.get(item.cell, 0)
            if item.cell is None:
                self._compare(edges.batch, item, item.source[0], item.source[1] or forward, got)
            else:
                self._draw(edges.batch, item, source if got == found else 0, forward, got)

    def sampled(self, edges: StepEdges, tokens: Op, stored: Op, copy: Op) -> None:
        """Host: sampling is queued; ``stored`` is the op that leaves the tokens in the relay."""
        can_look = self.is_virtual and stored is tokens
        if stored is not tokens:
            self.stored_for[stored.slice_id] = tokens.slice_id
        for place, (lease, cell) in enumerate(zip(edges.batch.leases, edges.dests, strict=True)):
            value = (tokens, place) if can_look else None
            made = Made(lease, tokens.slice_id, cell, copy.slice_id, value)
            self.newest[lease.row], self.kept[cell] = made, tokens.slice_id

    def _newest(self, lease: Lease) -> Made | None:
        made = self.newest.get(lease.row)
        return made if made is not None and made.lease is lease else None

    def _draw(
        self, batch: ScheduleBatch, item: Input, source: int, forward: int, got: int | None = None
    ) -> None:
        """The edge of one row, if it took anything, and the mark if that was wrong."""
        source = self.stored_for.get(source, source)
        if source:
            self.recorder.edge("token", source, forward)
        self._compare(batch, item, source, forward, got)

    def _compare(
        self, batch: ScheduleBatch, item: Input, source: int, reader: int, got: int | None
    ) -> None:
        """A mark if this is not the newest token of the lease: by its value, or else by its place.

        Not if that one was never made, for then the row is nobody's any more.
        """
        needs, made = item.known, item.needs
        if made is not None and made.value is not None:
            op, place = made.value
            if op.error is not None:
                return
            needs = int(op.value[place]) if op.done else None
        is_right = made is not None and (source, item.cell) == (made.op, made.cell)
        if got is not None and needs is not None:
            is_right = got == needs
        if not is_right:
            self._wrong(batch, item.row, source, reader, got, needs)

    def _wrong(
        self,
        batch: ScheduleBatch,
        row: int,
        source: int,
        reader: int,
        got: int | None = None,
        needs: int | None = None,
    ) -> None:
        values = {"got": got, "needs": needs} if None not in (got, needs) else {}
        self.recorder.mark(
            "wrong token", step=batch.step, rid=batch.rids[row], source=source, reader=reader,
            **values,  # type: ignore[arg-type]
        )  # fmt: skip
