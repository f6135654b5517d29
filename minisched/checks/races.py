"""Find races by *happens-before* and a *vector clock* per act, both kept in ``checks/history.py``.

A race is two accesses to one memory cell by two lanes, with at least one write and no order between
them. A trace's ``program`` contains the acts of all lanes (``Act`` in ``trace/events.py``). The
order is Lamport's happens-before: ``PlayedOrder`` computes it from the program, and ``Done.clock``
is the vector clock of an act. So a race is found whichever access came first in
this run. This file finds:

- a **race**: two unordered accesses as above. A free counts as a write, so an access without an
  order to the free of its cell is a race. A *release* to a pool is no access: launched steps may
  still use the cells, and it is safe if the next owner's write is ordered after them, by a stream,
  an event or a wait. If it is not, that write is the race;
- a **use after free**: a read after a free or a release, without a write in between. A write after
  it is the next owner's, and no race;
- lanes that wait for ever: the acts after such a wait can't be checked.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple

from ..trace import Act, Trace
from ..trace.cells import LARGEST, Span, joined, spans_of
from ..trace.events import lane_words
from .history import VALUE, Done, Offence, PlayedOrder, Words, order_of

RACE = "race"

# -- The accesses of each cell ---------------------------------------------------------------------


class SpanMap:
    """The last access of each cell, as sorted stretches that never overlap."""

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []
        self.whos: list[Done] = []
        self.newest = 0  # the moment, on its lane, of the last access that was put

    def over(self, first: int, last: int) -> list[tuple[int, int, Done]]:
        """Return the stretches that share cells with ``first`` to ``last``, cut to them."""
        return [
            (max(first, self.firsts[at]), min(last, self.lasts[at]), self.whos[at])
            for at in range(bisect_left(self.lasts, first), bisect_right(self.firsts, last))
        ]

    def put(self, first: int, last: int, who: Done | None) -> None:
        """Set the last access of cells ``first`` to ``last``; None removes it."""
        at = slice(bisect_left(self.lasts, first), bisect_right(self.firsts, last))
        self.newest = who.moment if who else self.newest
        if who and self.firsts[at] == [first] and self.lasts[at] == [last]:
            self.whos[at] = [who]  # as usual: the same cells as before
            return
        new = [(first, last, who)] if who else []
        if old := self.whos[at]:
            start, end = self.firsts[at][0], self.lasts[at][-1]
            new = [*([(start, first - 1, old[0])] if start < first else []), *new]
            new += [(last + 1, end, old[-1])] if end > last else []
        self.firsts[at] = [stretch[0] for stretch in new]
        self.lasts[at] = [stretch[1] for stretch in new]
        self.whos[at] = [stretch[2] for stretch in new]


class AccessPair(NamedTuple):
    """Two accesses that conflict, in the order in which they happened."""

    kind: str  # a race, or a use after free
    first: Done
    second: Done
    cells: list[Span]


def find_pairs(
    order: PlayedOrder, step_of: Callable[[int], int] = lambda op: 0
) -> list[AccessPair]:
    """Return all pairs of unordered accesses, and all reads of freed cells, in one pass.

    ``step_of`` returns an op's step. A step that was committed before a release may read after it.

    Per lane only the newest read and the newest write of a cell are kept: an act that comes after
    the newest comes after all earlier ones.
    """
    found: dict[tuple[str, int, int], AccessPair] = {}
    logs: defaultdict[str, dict[tuple[str, bool], SpanMap]] = defaultdict(dict)  # lane, is a read
    freed: defaultdict[str, SpanMap] = defaultdict(SpanMap)

    def note(kind: str, first: Done, second: Done, cells: Span) -> None:
        """Record a pair of accesses to ``cells``."""
        key = kind, first.when, second.when
        if key not in found:
            found[key] = AccessPair(kind, access_of(first), access_of(second), [])
        found[key].cells.append(cells)

    for done in order.done:
        act = done.act
        is_end = act.kind == "end"
        resource, at = (VALUE, str(act.op)) if is_end else (act.resource, act.at)
        if not at:
            continue
        is_read, mine, free = act.kind == "read", logs[resource], freed[resource]
        cells = spans_of(at)
        if act.kind == "release":
            for span in cells:
                free.put(*span, done)
            continue
        for (lane, was_read), log in mine.items():
            if lane == act.lane or (is_read and was_read):
                continue
            known = done.clock.get(lane, 0)
            if log.newest > known:
                for first, last, other in (it for span in cells for it in log.over(*span)):
                    if other.moment > known:
                        note(RACE, other, done, (first, last))
        log = mine.setdefault((act.lane, is_read), SpanMap())
        for span in cells:
            log.put(*span, done)
            for first, last, other in free.over(*span) if is_read and free.whos else ():
                if other.is_before(done) and not 0 < step_of(act.op) <= other.act.step:
                    note("use after free", other, done, (first, last))
            if act.kind == "free" or (free.whos and not is_read):
                free.put(*span, done if act.kind == "free" else None)
    return list(found.values())


def access_of(done: Done) -> Done:
    """Return the end of an op as the write of the op's value, and any other act as it is."""
    act = done.act
    if act.kind != "end":
        return done
    return done._replace(act=Act(act.lane, "write", act.op, VALUE, str(act.op)))


# -- Reports: an edge that is missing in every step is reported once, not once a step --------------


def find_races(trace: Trace) -> list[Offence]:
    """Return every race and use after free, one per missing edge; none without a program.

    Pairs are alike if the same ops do the same on the same lanes to one resource. If the missing
    edge of one pair would also order another pair, the other is not reported.

    Raises:
        ValueError: an act's cells are invalid; one sentence.
    """
    words, order = Words(trace), order_of(trace)
    causes: dict[tuple[object, ...], list[AccessPair]] = {}
    for pair in (in_turn(pair, words) for pair in find_pairs(order, words.step)):
        acts = pair.first.act, pair.second.act
        about = [(act.lane, act.kind, words.name(act.op)) for act in acts]
        key = (pair.kind, re.sub(r"\d+", "", acts[0].resource), *about)
        causes.setdefault(key, []).append(pair)

    def edge(alike: list[AccessPair]) -> tuple[int, int]:
        """Return a sort key: the missing edge from the latest first op, to the earliest second."""
        first, second = alike[0].first, alike[0].second
        return -order.ended.get(first.act.op, first).moment, second.moment

    told: list[tuple[int, Offence]] = []  # with the place of its later act
    waits: dict[tuple[str, str], int] = {}  # by lanes, the first moment after a missing edge
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
    """Order a pair as it should be: the lower step first; in one step, by launch or as it came.

    A free comes after every use, whatever the steps: a free in step 3 of memory that step 4 was
    launched to use is too early. Only a write that was launched after the free is the next owner's.
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


VERBS = {"read": "reads", "write": "writes", "free": "frees", "release": "releases"}


def offence_of(pair: AccessPair, count: int, words: Words) -> Offence:
    """Return the offence of the first of ``count`` pairs that are alike, in their proper order.

    The missing edge leads from the end of the first op. A free is the second, because it comes
    after every use; in a use after free it is the first.
    """
    first, second = pair.first.act, pair.second.act
    said = f"{words.who(second)} {VERBS[second.kind]} what {words.who(first)} {VERBS[first.kind]}"
    before, after = words.op(first.op, first.lane), words.op(second.op, second.lane)
    if pair.kind != RACE:
        said += f" before, and no op has written it since: a {pair.kind}"
    elif second.kind == "free":
        said += f", and nothing orders the two: the free must wait for {before}"
    else:
        said += f", and nothing orders the two: {after} does not wait for {before}"
    said += f"; {count} such pairs" if count > 1 else ""
    where = words.cells(first.resource, joined(pair.cells))
    missing = (first.op, second.op) if pair.kind == RACE and first.op and second.op else None
    shown = words.shown(first.op, second.op)
    deeds = tuple(
        next(f"{VERBS[act.kind]} it" for act in (first, second) if act.op == one) for one in shown
    )
    return Offence(
        f"{where}: {said}", shown, pair.kind, missing=missing,
        waits="free" if second.kind == "free" else "",
        cell=f"{first.resource} {pair.cells[0][0]}", deeds=deeds,
    )  # fmt: skip


def find_endless(trace: Trace) -> list[Offence]:
    """Return one offence for all lanes that wait for ever, or none if every lane ends.

    The acts after such a wait never happen, so they can't race; the wait itself is the violation.
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
        never = "" if (is_begin, head.op) in comes else ", which never comes"
        said.append(f"the {lane_words(lane)} waits for {what}{never}")
    unreached = sum(map(len, stuck.values()))
    sentence = f"{'; '.join(said)}: for ever, and {unreached} acts are never reached"
    slices = words.shown(*(head.op for head in heads.values()))
    return [Offence(sentence, slices, "deadlock")] if stuck else []
