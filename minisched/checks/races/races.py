"""Races: two lanes touch the same memory, one of them writes, and nothing orders them.

Found from a trace's ``program``, so it does not matter which of the two came first this time. What
orders two lanes, what a free means, and what is no race: ``detector.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...trace import Act, Trace
from ..offence import Offence
from .act_order import in_order
from .causes import Cause, told_once
from .detector import Detector
from .host_reads import in_their_steps
from .spans import joined
from .waits_for_ever import WaitsForEver, told
from .words import VERBS, Words


@dataclass(frozen=True)
class Race:
    """Two acts that nothing orders; or a use of what was freed before it.

    ``first`` is of the lower step, or was launched first: it should have ended before ``second``.
    A free is the second, for it comes behind every use; of a use after free it is the first.
    ``cells`` of ``resource`` are as in an act; ``where`` is what they are called. ``who`` are the
    two with lane and requests, ``names`` without. There are ``count`` such pairs, and ``also`` is
    what else the missing edge would have ordered.
    """

    kind: str  # "race" or "use after free"
    resource: str
    cells: str
    where: str
    first: Act
    second: Act
    who: tuple[str, str]
    names: tuple[str, str]
    count: int = 1
    also: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[int, int] | None:
        """The edge that should have been there, by ids of slices: from the end of the first one."""
        if self.kind != "race" or not (self.first.op and self.second.op):
            return None
        return self.first.op, self.second.op

    @property
    def missing_edge(self) -> str:
        """The same in words."""
        first, second = self.names
        is_free = self.second.kind == "free"
        return (
            f"the free must wait for {first}" if is_free else f"{second} does not wait for {first}"
        )

    def __str__(self) -> str:
        first, second = self.who
        touches = f"{second} {VERBS[self.second.kind]} what {first} {VERBS[self.first.kind]}"
        if self.kind == "race":
            told = f"{touches}, and nothing orders the two: {self.missing_edge}"
        else:
            told = f"{touches} before, and nobody has written it since: a use after free"
        times = f"; {self.count} such pairs" if self.count > 1 else ""
        also = f"; that edge would also order {_listed(self.also)}" if self.also else ""
        return f"{self.where}: {told}{times}{also}"


@dataclass(frozen=True)
class Examined:
    """What a program's order gives: ``waits`` hold what could not be looked at for races."""

    races: tuple[Race, ...]
    waits: tuple[WaitsForEver, ...]


def examine(trace: Trace) -> Examined:
    """Every race, those of one cause told once, and every wait that never ends.

    Both are empty where the trace has no program.
    """
    words, order = Words(trace), in_order(trace.program, trace.slices)
    acts = in_their_steps(order.acts, trace.slices)
    detector = Detector(acts)
    for act in acts:
        detector.take(act)
    causes = told_once(acts, detector.pairs, words)
    return Examined(tuple(_race(cause, words) for cause in causes), told(order, words))


def find_races(trace: Trace) -> list[Race]:
    """The races of a trace, one of each cause; none where the trace has no program."""
    return list(examine(trace).races)


def offence_of(found: Race | WaitsForEver, trace: Trace) -> Offence:
    """What a picture of it shows in red."""
    ids = {item.id for item in trace.slices}
    if isinstance(found, WaitsForEver):
        return Offence(tuple(op for op in found.ops if op in ids), str(found))
    ops = tuple(dict.fromkeys(op for op in (found.first.op, found.second.op) if op in ids))
    missing = found.missing if len(ops) == 2 else None
    return Offence(ops, str(found), missing, "free" if found.second.kind == "free" else "")


def _race(cause: Cause, words: Words) -> Race:
    pair, (first, second) = cause.pairs[0], cause.in_turn
    cells, acts = joined(pair.cells), (first.act, second.act)
    where, also = words.cells(first.act.resource, cells), [some.pairs[0] for some in cause.also]
    others = [words.cells(some.first.act.resource, joined(some.cells)) for some in also]
    return Race(
        pair.kind,
        first.act.resource,
        cells,
        where,
        first.act,
        second.act,
        (words.who(acts[0]), words.who(acts[1])),
        (words.op(acts[0].op, acts[0].lane), words.op(acts[1].op, acts[1].lane)),
        len(cause.pairs),
        tuple(dict.fromkeys(other for other in others if other != where)),
    )


def _listed(things: tuple[str, ...]) -> str:
    return " and ".join(filter(None, [", ".join(things[:-1]), things[-1]]))
