"""Who last changed what an op reads, and whether somebody changed it at the same time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ...trace import Act, Trace
from ...trace.cells import spans_of
from .act_order import in_order
from .known import Knowledge


@dataclass(frozen=True)
class Change:
    """A write or a free of some cells; ``at`` is its place in the program."""

    at: int
    act: Act


class Past:
    """A trace's program, by resource and in about the order in which it happened."""

    def __init__(self, trace: Trace) -> None:
        self.program = trace.program
        self.known = Knowledge(trace.program)
        places = {id(act): at for at, act in enumerate(trace.program)}
        self.order: dict[int, int] = {}  # when: by place in the program
        self.changes: defaultdict[str, list[Change]] = defaultdict(list)
        self.by_op: defaultdict[int, list[int]] = defaultdict(list)
        for act in in_order(trace.program, trace.slices).acts:
            at = places[id(act)]
            self.order[at] = len(self.order)
            if act.kind in ("read", "write", "free"):
                self.by_op[act.op].append(at)
            if act.kind in ("write", "free"):
                self.changes[act.resource].append(Change(at, act))

    def newest(self, at: int, cells: Iterable[int]) -> dict[int, Change]:
        """By cell, the last change before the read at ``at``; a cell without one is left out."""
        read, wanted = self.program[at], set(cells)
        found: dict[int, Change] = {}
        for change in reversed(self.changes[read.resource]):
            if self.order[change.at] < self.order[at]:
                for cell in [cell for cell in wanted if is_in(cell, change.act.at)]:
                    found[cell] = change
                    wanted.discard(cell)
        return found

    def meanwhile(self, at: int, cells: Iterable[int]) -> tuple[int, Change] | None:
        """A change that nothing orders against the read at ``at``, with the cell; or None."""
        read, wanted = self.program[at], set(cells)
        for change in self.changes[read.resource]:
            if change.act.lane != read.lane:
                for cell in sorted(cell for cell in wanted if is_in(cell, change.act.at)):
                    if self.known.is_unordered(at, change.at):
                        return cell, change
                    break
        return None


def is_in(cell: int, at: str) -> bool:
    """Whether a cell is one of ``3-7 9``."""
    return any(first <= cell <= last for first, last in spans_of(at))


def cells_of(at: str) -> list[int]:
    """All of ``3-7 9``."""
    return [cell for first, last in spans_of(at) for cell in range(first, last + 1)]
