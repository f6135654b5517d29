"""Races: two lanes touch the same memory, one of them writes, and nothing orders them.

Found from a trace's ``program`` and what comes before what in it (``history.py``), so it does not
matter who came first this time. What is found:

- a **race**: two accesses to one cell from two lanes, one of them no read, and neither comes before
  the other. A free counts as a write: whoever touches what it frees in no order with it races;
- a **use after free**: a read behind a free of what nobody has written since. Whoever writes it is
  its next owner, and that is no race if the write comes behind the free;
- lanes that wait for what never comes: what stands behind that can't be looked at.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from operator import itemgetter
from typing import NamedTuple

from ..trace import Act, Trace
from ..trace.cells import LARGEST, Span, joined, spans_of
from ..trace.events import lane_words
from .history import VALUE, Done, Offence, PlayedOrder, Words, order_of

RACE = "race"

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


class AccessPair(NamedTuple):
    """Two accesses that are in each other's way, in the order in which they happened."""

    kind: str  # a race, or a use after free
    first: Done
    second: Done
    cells: list[Span]


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
        found.setdefault(key, AccessPair(kind, first, second, [])).cells.append(cells)

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
                        note(RACE, other, done, (first, last))
        log = mine.setdefault((act.lane, is_read), SpanMap())
        for span in cells:
            log.put(*span, done)
            for first, last, other in free.over(*span) if is_read and free.whos else ():
                if other.is_before(done):
                    note("use after free", other, done, (first, last))
            if act.kind == "free" or (free.whos and not is_read):
                free.put(*span, done if act.kind == "free" else None)
    return list(found.values())


# -- What is told of them: an edge that is missing in every step is told once, not once a step -----


def find_races(trace: Trace) -> list[Offence]:
    """Every race and use after free, those of one missing edge once; none without a program.

    Pairs are alike in which the same ops do the same on the same lanes to one resource. Where the
    edge that one of them lacks would order another one too, that one is not told.

    Raises:
        ValueError: an act's cells are none; one sentence.
    """
    words, order = Words(trace), order_of(trace)
    causes: dict[tuple[object, ...], list[AccessPair]] = {}
    for pair in (in_turn(pair, words) for pair in find_pairs(order)):
        acts = pair.first.act, pair.second.act
        about = [(act.lane, act.kind, words.name(act.op)) for act in acts]
        key = (pair.kind, re.sub(r"\d+", "", acts[0].resource), *about)
        causes.setdefault(key, []).append(pair)

    def edge(alike: list[AccessPair]) -> tuple[int, int]:
        """From the end of the first op, the latest first, to what has to wait."""
        first, second = alike[0].first, alike[0].second
        return -order.ended.get(first.act.op, first).moment, second.moment

    told: list[tuple[int, Offence]] = []  # with when it happened
    waits: dict[tuple[str, str], int] = {}  # by lanes, who waits first with the edges told
    for alike in sorted(causes.values(), key=edge):
        first, second = alike[0].first, alike[0].second
        if alike[0].kind == RACE:
            lanes = first.act.lane, second.act.lane
            if second.moment >= waits.get(lanes, LARGEST):
                continue
            waits[lanes] = second.moment
        told.append((max(first.when, second.when), offence_of(alike[0], len(alike), words)))
    return [offence for _, offence in sorted(told, key=itemgetter(0))]


def in_turn(pair: AccessPair, words: Words) -> AccessPair:
    """Who should come first: the lower step; of one step who was launched first, or as they came.

    A free comes behind every use, whatever the steps: who frees in step 3 what step 4 was told to
    use is too early. Only who writes, and was launched behind the free, is the next owner.
    """
    kind, first, second, cells = pair
    one, other = words.step(first.act.op), words.step(second.act.op)
    if kind != RACE:
        is_turned = False
    elif (first.act.kind == "free") != (second.act.kind == "free"):
        free, use = (first, second) if first.act.kind == "free" else (second, first)
        is_next_owner = use.act.kind == "write" and free.is_decided_before(use)
        is_turned = (free is second) == is_next_owner
    elif one and other and one != other:
        is_turned = one > other
    else:
        is_turned = second.is_decided_before(first) and not first.is_decided_before(second)
    return AccessPair(kind, second, first, cells) if is_turned else pair


VERBS = {"read": "reads", "write": "writes", "free": "frees"}


def offence_of(pair: AccessPair, count: int, words: Words) -> Offence:
    """The first of so many pairs that are alike, in the order in which they should come.

    The edge that should have been there leads from the end of the first op. A free is the second,
    for it comes behind every use; of a use after free it is the first.
    """
    first, second = pair.first.act, pair.second.act
    said = f"{words.who(second)} {VERBS[second.kind]} what {words.who(first)} {VERBS[first.kind]}"
    before, behind = words.op(first.op, first.lane), words.op(second.op, second.lane)
    if pair.kind != RACE:
        said += f" before, and nobody has written it since: a {pair.kind}"
    elif second.kind == "free":
        said += f", and nothing orders the two: the free must wait for {before}"
    else:
        said += f", and nothing orders the two: {behind} does not wait for {before}"
    said += f"; {count} such pairs" if count > 1 else ""
    where = words.cells(first.resource, joined(pair.cells))
    missing = (first.op, second.op) if pair.kind == RACE and first.op and second.op else None
    return Offence(
        f"{where}: {said}", words.shown(first.op, second.op), pair.kind,
        missing=missing, waits="free" if second.kind == "free" else "",
    )  # fmt: skip


def find_endless(trace: Trace) -> list[Offence]:
    """Who waits for what never comes, told in one; nobody where every lane comes to its end.

    What comes behind never happens, so nothing of it can race; that is what there is to tell.
    """
    words, stuck = Words(trace), order_of(trace).stuck
    comes = {
        (act.kind == "launch", act.op)
        for acts in stuck.values()
        for act in acts
        if act.kind in ("launch", "end", "say")
    }
    said, heads = list[str](), {lane: acts[0] for lane, acts in stuck.items()}
    for lane, head in heads.items():
        is_begin = head.kind == "begin"
        what = f"{'the launch of ' * is_begin}{words.op(head.op, '')}"
        nobody = "" if (is_begin, head.op) in comes else ", which never comes"
        said.append(f"the {lane_words(lane)} waits for {what}{nobody}")
    unreached = sum(map(len, stuck.values()))
    sentence = f"{'; '.join(said)}: for ever, and {unreached} acts are never reached"
    slices = words.shown(*(head.op for head in heads.values()))
    return [Offence(sentence, slices, "deadlock")] if stuck else []
