"""What one step of one request read, and whom it has it from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ...trace import Act, Slice, Trace
from ...trace.events import is_host
from ...trace.program import cells_of
from ..happens_before import Past
from ..leaks.leaks import moments
from ..leaks.lease import HeldLease
from ..leaks.ledger import Ledger

ROW_CELLS = ("page table", "token pool")  # a cell for each position of each row of the table


class Fault(NamedTuple):
    """What is not as it should be: a sentence, the slices that did it, and the edge that lacks."""

    sentence: str
    slices: tuple[int, ...]
    missing: tuple[int, int] | None = None


class Source(NamedTuple):
    """A step whose work for a request was read, and where, in words."""

    step: int
    rid: str
    where: str
    is_token: bool = False  # and not KV


@dataclass
class StepReads:
    """Everything that step ``step`` read for ``rid``, in one scheduler's run (``side``).

    Whoever looks at a read adds to ``sources`` what it was built upon.
    """

    trace: Trace
    past: Past
    step: int
    rid: str
    side: str = ""
    sources: list[Source] = field(default_factory=list)

    @cached_property
    def slices(self) -> dict[int, Slice]:
        """By id."""
        return {item.id: item for item in self.trace.slices}

    @cached_property
    def ledger(self) -> Ledger:
        """The books as they were when the step had just been committed."""
        ledger = Ledger()
        for mark, now in moments(self.trace, self.side):
            ledger.hear(mark, now)
            if mark.name == "commit" and mark.attrs["step"] == self.step:
                break
        return ledger

    @cached_property
    def lease(self) -> HeldLease | None:
        """The request's lease in this step."""
        leases = self.ledger.commits.get(self.step, [])
        return next((lease for lease in leases if lease and lease.rid == self.rid), None)

    @cached_property
    def steps_before(self) -> list[int]:
        """Earlier steps that named the same lease."""
        return self.steps_of(self.lease)

    def steps_of(self, lease: HeldLease | None) -> list[int]:
        """Earlier steps that named a lease."""
        commits = self.ledger.commits.items()
        return [step for step, named in commits if step < self.step and lease in named]

    def giver_of(self, lease: HeldLease | None) -> int:
        """The step whose sample is the lease's input, if the host did not know it; else 0.

        The host knows what had come back when this step was committed.
        """
        return self.ledger.giver_of(lease)

    @cached_property
    def page_size(self) -> int:
        """KV slots in a page."""
        sizes = [mark.attrs["page_size"] for mark in self.trace.marks if mark.name == "kv pool"]
        return int(sizes[0]) if sizes else 1

    @cached_property
    def row_len(self) -> int:
        """Cells of a row of the page table; 0 where the trace does not say."""
        for at in self.reads("page table"):
            if self.lease is not None and self.past.program[at].rid:
                return cells_of(self.past.program[at].at)[0] // self.lease.row
        return 0

    @cached_property
    def ops(self) -> list[Slice]:
        """What the devices ran of this step."""
        before = f"{self.side} " if self.side else ""
        return [
            item
            for item in self.trace.slices
            if item.step == self.step and not is_host(item.lane) and item.lane.startswith(before)
        ]

    def samples_of(self, step: int) -> tuple[int, ...]:
        """The slice in which a step sampled, by id; nothing if there is none."""
        before = f"{self.side} " if self.side else ""
        found = (item for item in self.trace.slices if item.step == step and item.name == "sample")
        return tuple(item.id for item in found if item.lane.startswith(before))

    def reads(self, *resources: str) -> Iterator[int]:
        """Where this step reads for ``rid`` what begins or ends in one of ``resources``."""
        for item in self.ops:
            for at in self.past.by_op[item.id]:
                act = self.past.program[at]
                name, is_mine = act.resource, act.rid in ("", self.rid)
                is_asked = name.endswith(resources) or name.startswith(resources)
                if act.kind == "read" and is_mine and is_asked:
                    yield at

    def step_of(self, act: Act) -> int:
        """The step that an act belongs to; 0 if to none."""
        return self.slices[act.op].step if act.op in self.slices else 0

    def who(self, act: Act) -> str:
        """Who did it: ``the forward of step 3``."""
        item = self.slices.get(act.op)
        return f"the {item.name} of step {item.step}" if item and item.step else act.lane

    def name_of(self, resource: str, cell: int) -> str:
        """A cell in words."""
        if resource.endswith("kv"):
            return f"{resource[:-2]}KV slot {cell}"
        if resource == "future map":
            return f"future slot {cell}"
        if resource.endswith(ROW_CELLS) and self.row_len:
            row, position = divmod(cell, self.row_len)
            return f"position {position} of row {row} of the {resource}"
        if buffer := re.fullmatch(r"(.*?)(host )?(output \d+)", resource):
            where, kind, name = buffer.groups()
            return f"cell {cell} of {where}{kind or 'device '}{name.replace(' ', ' buffer ')}"
        return f"cell {cell} of {resource}"

    def race(self, at: int, cells: list[int]) -> Iterator[Fault]:
        """Somebody changes a cell, and nothing says whether before or after it is read."""
        if found := self.past.meanwhile(at, cells):
            cell, change = found
            read, other = self.past.program[at], change.act
            verb = "frees" if other.kind == "free" else "writes"
            yield Fault(
                f"{self.who(read)} reads {self.name_of(read.resource, cell)}, which "
                f"{self.who(other)} {verb}, and nothing makes one of them wait for the other",
                (other.op, read.op),
                (other.op, read.op),
            )
