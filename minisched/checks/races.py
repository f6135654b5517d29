"""Races: two lanes touch the same memory, one of them writes, and nothing orders them.

Found from a trace's ``program`` and what comes before what in it (``history.py``), so it does not
matter who came first this time. What is found:

- a **race**: two accesses to one cell from two lanes, one of them no read, and neither comes before
  the other. A free counts as a write: whoever touches what it frees in no order with it races;
- a **use after free**: a read behind a free of what nobody has written since. Whoever writes it is
  its next owner, and that is no race if the write comes behind the free;
- lanes that wait for what never comes: what stands behind that can't be looked at.

An edge that is missing in every step is told once, not once a step.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from ..trace import Act, Trace
from ..trace.cells import LARGEST, Span, joined, spans_of
from ..trace.events import lane_words
from .history import VALUE, Done, Offence, PlayedOrder, Words, order_of

# -- Who touched what ------------------------------------------------------------------------------


class SpanMap:
    """Who touched each cell last, as stretches in order that never overlap."""

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []
        self.whos: list[Done] = []
        self.newest = 0  # moment of a lane: the last that was put anywhere

    def over(self, first: int, last: int) -> list[tuple[int, int, Done]]:
        """The stretches that share cells with ``first`` to ``last``, cut to them."""
        return [
            (max(first, self.firsts[at]), min(last, self.lasts[at]), self.whos[at])
            for at in range(bisect_left(self.lasts, first), bisect_right(self.firsts, last))
        ]

    def put(self, first: int, last: int, who: Done | None) -> None:
        """Cells ``first`` to ``last`` have a new one; or none any more."""
        at = slice(bisect_left(self.lasts, first), bisect_right(self.firsts, last))
        new = [(first, last, who)] if who else []
        self.newest = who.moment if who else self.newest
        if old := self.whos[at]:
            start, end = self.firsts[at][0], self.lasts[at][-1]
            new = [*([(start, first - 1, old[0])] if start < first else []), *new]
            new += [(last + 1, end, old[-1])] if end > last else []
        self.firsts[at] = [stretch[0] for stretch in new]
        self.lasts[at] = [stretch[1] for stretch in new]
        self.whos[at] = [stretch[2] for stretch in new]


@dataclass
class AccessPair:
    """Two accesses that are in each other's way, in the order in which they happened."""

    kind: str  # a race, or a use after free
    first: Done
    second: Done
    cells: list[Span] = field(default_factory=list)


def find_pairs(order: PlayedOrder) -> list[AccessPair]:
    """Every two accesses that nothing orders, and every read of what is free; one pass over all.

    Of each lane the newest read and the newest write of a cell are kept: whoever comes behind that
    one comes behind all before it.
    """
    found: dict[tuple[str, int, int], AccessPair] = {}
    logs: defaultdict[str, dict[tuple[str, bool], SpanMap]] = defaultdict(dict)  # lane, is a read
    freed: defaultdict[str, SpanMap] = defaultdict(SpanMap)

    def note(kind: str, first: Done, second: Done, cells: Span) -> None:
        key = kind, first.when, second.when
        found.setdefault(key, AccessPair(kind, first, second)).cells.append(cells)

    for done in order.done:
        act = done.act
        if act.kind == "end":  # which writes the op's value
            act = Act(act.lane, "write", act.op, VALUE, str(act.op))
            done = done._replace(act=act)
        if not act.at:
            continue
        is_read, mine, free = act.kind == "read", logs[act.resource], freed[act.resource]
        cells = spans_of(act.at)
        for (lane, was_read), log in mine.items():
            known = done.clock.get(lane, 0)
            if lane != act.lane and not (is_read and was_read) and log.newest > known:
                for first, last, other in (it for span in cells for it in log.over(*span)):
                    if other.moment > known:
                        note("race", other, done, (first, last))
        log = mine.setdefault((act.lane, is_read), SpanMap())
        for span in cells:
            log.put(*span, done)
            for first, last, other in free.over(*span) if is_read and free.whos else ():
                if other.is_before(done):
                    note("use after free", other, done, (first, last))
            if act.kind == "free" or (free.whos and not is_read):
                free.put(*span, done if act.kind == "free" else None)
    return list(found.values())


def in_turn(pair: AccessPair, words: Words) -> tuple[Done, Done]:
    """Who should come first: the lower step; of one step who was launched first, or as they came.

    A free comes behind every use, whatever the steps: who frees in step 3 what step 4 was told to
    use is too early. Only who writes, and was launched behind the free, is the next owner.
    """
    first, second = pair.first, pair.second
    one, other = words.step(first.act.op), words.step(second.act.op)
    if pair.kind != "race":
        is_turned = False
    elif (first.act.kind == "free") != (second.act.kind == "free"):
        free, use = (first, second) if first.act.kind == "free" else (second, first)
        is_next_owner = use.act.kind == "write" and free.is_decided_before(use)
        is_turned = (free is second) == is_next_owner
    elif one and other and one != other:
        is_turned = one > other
    else:
        is_turned = second.is_decided_before(first) and not first.is_decided_before(second)
    return (second, first) if is_turned else (first, second)


# -- What is told ----------------------------------------------------------------------------------

VERBS = {"read": "reads", "write": "writes", "free": "frees"}


@dataclass(frozen=True)
class Race:
    """Two acts that nothing orders; or a use after free, by its ``kind``.

    ``first`` is of the lower step, or was launched first: it should have ended before ``second``.
    A free is the second, for it comes behind every use; of a use after free it is the first.
    ``cells`` of ``resource`` are as in an act; ``where`` is what they are called. ``who`` are the
    two with lane and requests, ``names`` without. There are ``count`` such pairs. ``slices`` are
    those that show the two, by id.
    """

    kind: str
    resource: str
    cells: str
    where: str
    first: Act
    second: Act
    who: tuple[str, str]
    names: tuple[str, str]
    count: int = 1
    slices: tuple[int, ...] = ()

    @property
    def missing(self) -> tuple[int, int] | None:
        """The edge that should have been there, by ids of slices: from the end of the first one."""
        is_edge = self.kind == "race" and self.first.op and self.second.op
        return (self.first.op, self.second.op) if is_edge else None

    @property
    def offence(self) -> Offence:
        """What a picture of it shows in red."""
        missing = self.missing if len(self.slices) == 2 else None
        return Offence(self.slices, str(self), missing, "free" * (self.second.kind == "free"))

    def __str__(self) -> str:
        (first, second), (before, behind) = self.who, self.names
        said = f"{second} {VERBS[self.second.kind]} what {first} {VERBS[self.first.kind]}"
        if self.kind != "race":
            said += f" before, and nobody has written it since: a {self.kind}"
        elif self.second.kind == "free":
            said += f", and nothing orders the two: the free must wait for {before}"
        else:
            said += f", and nothing orders the two: {behind} does not wait for {before}"
        times = f"; {self.count} such pairs" if self.count > 1 else ""
        return f"{self.where}: {said}{times}"


@dataclass(frozen=True)
class WaitsForEver:
    """Lanes that never go on: they wait for what nobody does, or for each other in a circle.

    What comes behind never happens, so nothing of it can race; that it never happens is what there
    is to tell. ``ops`` are what they wait for, ``unreached`` how many acts of theirs never happen.
    """

    lanes: tuple[str, ...]
    ops: tuple[int, ...]
    unreached: int
    sentence: str
    slices: tuple[int, ...] = ()

    @property
    def offence(self) -> Offence:
        """What a picture of it shows in red."""
        return Offence(self.slices, self.sentence)

    def __str__(self) -> str:
        return self.sentence


class Examined(NamedTuple):
    """What a program's order gives: ``waits`` hold what could not be looked at for races."""

    races: tuple[Race, ...]
    waits: tuple[WaitsForEver, ...]


def examine(trace: Trace) -> Examined:
    """Every race, those of one missing edge once, and who waits for ever.

    Both are empty where the trace has no program.

    Raises:
        ValueError: an act's cells are none; one sentence.
    """
    words, order = Words(trace), order_of(trace)
    waits = (_stuck(order, words),) if order.stuck else ()
    return Examined(tuple(_told_once(find_pairs(order), order, words)), waits)


def _told_once(pairs: Iterable[AccessPair], order: PlayedOrder, words: Words) -> list[Race]:
    """A race for all pairs in which the same ops do the same on the same lanes to one resource.

    Where the edge that one of them lacks would order another one too, that one is not told.
    """
    causes: dict[tuple[object, ...], list[AccessPair]] = {}
    for pair in pairs:
        about = [(it.act.lane, it.act.kind, words.name(it.act.op)) for it in in_turn(pair, words)]
        key = (pair.kind, re.sub(r"\d+", "", pair.first.act.resource), *about)
        causes.setdefault(key, []).append(pair)

    def edge(alike: list[AccessPair]) -> tuple[int, int]:
        """From the end of the first op, the latest first, to what has to wait."""
        one, other = in_turn(alike[0], words)
        return -order.ended.get(one.act.op, one).moment, other.moment

    told: list[tuple[int, Race]] = []  # with when it happened
    waits: dict[tuple[str, str], int] = {}  # by lanes, who waits first with the edges told
    for alike in sorted(causes.values(), key=edge):
        one, other = in_turn(alike[0], words)
        first, second, kind = one.act, other.act, alike[0].kind
        if kind == "race":
            if other.moment >= waits.get((first.lane, second.lane), LARGEST):
                continue
            waits[first.lane, second.lane] = other.moment
        name, cells = first.resource, joined(alike[0].cells)
        who = words.who(first), words.who(second)
        names = words.op(first.op, first.lane), words.op(second.op, second.lane)
        where, count = words.cells(name, cells), len(alike)
        slices = tuple(op for op in dict.fromkeys((first.op, second.op)) if op in words.slices)
        race = Race(kind, name, cells, where, first, second, who, names, count, slices)
        told.append((alike[0].second.when, race))
    return [race for _, race in sorted(told, key=itemgetter(0))]


def _stuck(order: PlayedOrder, words: Words) -> WaitsForEver:
    """Who waits for what, of all lanes that never go on."""
    comes = {
        ("launch" if act.kind == "launch" else "end", act.op)
        for acts in order.stuck.values()
        for act in acts
        if act.kind in ("launch", "end", "say")
    }
    said, heads = [], {lane: acts[0] for lane, acts in order.stuck.items()}
    for lane, head in heads.items():
        kind = "launch" if head.kind == "begin" else "end"
        what = f"{'the launch of ' * (kind == 'launch')}{words.op(head.op, '')}"
        nobody = "" if (kind, head.op) in comes else ", which never comes"
        said.append(f"the {lane_words(lane)} waits for {what}{nobody}")
    unreached = sum(map(len, order.stuck.values()))
    sentence = f"{'; '.join(said)}: for ever, and {unreached} acts are never reached"
    ops = tuple(head.op for head in heads.values())
    slices = tuple(op for op in ops if op in words.slices)
    return WaitsForEver(tuple(heads), ops, unreached, sentence, slices)
