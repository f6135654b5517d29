"""Races: two lanes touch the same memory, one of them writes, and nothing orders them.

Found from a trace's ``program`` and what comes before what in it (``history.py``), so it does not
matter who came first this time. What is found:

- a **race**: two accesses to one cell from two lanes, one of them no read, and neither comes before
  the other. A free counts as a write: whoever touches what it frees in no order with it races;
- a **use after free**: a read behind a free of what nobody has written since. Whoever writes it is
  its next owner, and that is no race if the write comes behind the free;
- the same by the old owner: who freed cells for a request writes them for the same one (a **write
  after free**), or reads what others have written since (a **late read**), and was not given them
  again;
- a **double free**: of cells in a row nobody wrote any since the first, nor were they handed out;
- what is **unwritten** and read, if anybody writes to that memory at all: else it came filled, as
  weights do.

Then it is told which missing edge explains it all, with what never happens (``WaitsForEver``).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

from ..trace import Act, Trace
from ..trace.cells import LARGEST, Span, joined, spans_of, without
from ..trace.events import lane_words
from .history import VALUE, Done, Offence, PlayedOrder, Words, order_of, side_of

T = TypeVar("T")

# -- Who touched what ------------------------------------------------------------------------------


class SpanMap(Generic[T]):
    """What was put last on each cell, as stretches in order that never overlap."""

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []
        self.whats: list[T] = []
        self.newest: T | None = None  # that was put anywhere

    def over(self, first: int, last: int) -> list[tuple[int, int, T]]:
        """The stretches that share cells with ``first`` to ``last``, cut to them."""
        return [
            (max(first, self.firsts[at]), min(last, self.lasts[at]), self.whats[at])
            for at in range(bisect_left(self.lasts, first), bisect_right(self.firsts, last))
        ]

    def put(self, first: int, last: int, *what: T) -> None:
        """Cells ``first`` to ``last`` have a new one; or none any more."""
        self.newest = what[0] if what else self.newest
        at = slice(bisect_left(self.lasts, first), bisect_right(self.firsts, last))
        new = [(first, last, it) for it in what]
        if old := self.whats[at]:
            start, end = self.firsts[at][0], self.lasts[at][-1]
            new = [*([(start, first - 1, old[0])] if start < first else []), *new]
            new += [(last + 1, end, old[-1])] if end > last else []
        self.firsts[at] = [stretch[0] for stretch in new]
        self.lasts[at] = [stretch[1] for stretch in new]
        self.whats[at] = [stretch[2] for stretch in new]


@dataclass
class AccessPair:
    """Two accesses that are in each other's way, in the order in which they happened.

    ``kind`` is a key of ``TELLS``. What nobody wrote is read by both, which are one.
    """

    kind: str
    first: Done
    second: Done
    cells: list[Span] = field(default_factory=list)


class ResourceHistory:
    """What is known of one resource: which ``lanes`` ever touch it, and what they did by now.

    ``unfit`` is what nobody should read: what is free, by the free, and what nobody has written,
    by None. ``given_up`` is what was freed for a request, ``unwritten`` what was read too early.
    """

    def __init__(self) -> None:
        self.lanes: set[str] = set()
        self.logs: defaultdict[tuple[str, bool], SpanMap[Done]] = defaultdict(SpanMap)  # is a read
        self.unfit: SpanMap[Done | None] = SpanMap()
        self.given_up: defaultdict[str, SpanMap[Done]] = defaultdict(SpanMap)
        self.unwritten: list[tuple[Done, Span]] = []


class Detector:
    """Goes through what an order has done, and finds the ``pairs`` that are in each other's way.

    Where a ``trace`` is given, its marks say to whom cells were handed out in the meantime.

    Raises:
        ValueError: an act's cells are none; one sentence.
    """

    def __init__(self, order: PlayedOrder, trace: Trace | None = None) -> None:
        self.trace = trace
        self.slices = {item.id: item for item in trace.slices} if trace else {}
        self.found: dict[tuple[str, int, int], AccessPair] = {}
        self.memory: defaultdict[str, ResourceHistory] = defaultdict(ResourceHistory)
        for done in order.done:
            if name := done.act.resource:
                memory = self.memory[name]
                memory.lanes.add(done.act.lane)
                if done.act.kind == "write" and not memory.unfit.whats:
                    memory.unfit.put(0, LARGEST, None)
        if taken := VALUE in self.memory:
            self.memory[VALUE].lanes |= {it.act.lane for it in order.done if it.act.kind == "end"}
        for act in (act for acts in order.stuck.values() for act in acts):
            if act.kind == "write":  # it never comes, which is told: nothing else of it
                for span in spans_of(act.at):
                    self.memory[act.resource].unfit.put(*span)
        for done in order.done:
            act = done.act
            if act.kind == "end" and taken:
                done = done._replace(act=Act(act.lane, "write", act.op, VALUE, str(act.op)))
            elif not act.at:
                continue
            try:
                cells = spans_of(done.act.at)
            except ValueError as error:
                who = f"the {lane_words(act.lane)} {VERBS[act.kind]} cells of {act.resource!r}"
                raise ValueError(f"{who}, but {error}") from None
            memory = self.memory[done.act.resource]
            self._look_at_frees(done, cells, memory)
            if len(memory.lanes) > 1:
                self._look_at_others(done, cells, memory)
        for memory in self.memory.values():
            for read, span in memory.unwritten:
                self._found("unwritten", read, read, span)
        self.pairs = list(self.found.values())

    def _look_at_others(self, done: Done, cells: Sequence[Span], memory: ResourceHistory) -> None:
        """Compare it with what other lanes did in no order with it, and keep it for them."""
        lane, is_read, clock = done.act.lane, done.act.kind == "read", done.clock
        for (other, was_read), log in memory.logs.items():
            if other != lane and not (is_read and was_read):
                known = clock.get(other, 0)
                if log.newest is None or log.newest.moment <= known:
                    continue
                for first, last, access in (some for span in cells for some in log.over(*span)):
                    if access.moment > known:
                        self._found("race", access, done, (first, last))
        for span in cells:
            memory.logs[lane, is_read].put(*span, done)

    def _look_at_frees(self, done: Done, cells: Sequence[Span], memory: ResourceHistory) -> None:
        """Note what is free or written from now on, or used although it is not."""
        act, unfit = done.act, memory.unfit
        is_write = act.kind == "write"
        for span in cells if act.kind == "free" else ():
            before = [it for it in unfit.over(*span) if it[2] is not None]
            is_whole = sum(last - first + 1 for first, last, _ in before) == span[1] - span[0] + 1
            for first, last, free in before if is_whole else ():  # else some of them were in use
                if free and free.is_before(done) and not self._is_given(free, done, (first, last)):
                    self._found("double free", free, done, (first, last))
            unfit.put(*span, done)
            if act.rid:
                memory.given_up[act.rid].put(*span, done)
        if act.kind != "free" and unfit.whats:
            if given_up := memory.given_up.get(act.rid):
                for first, last, free in [it for span in cells for it in given_up.over(*span)]:
                    if is_write:
                        given_up.put(first, last)
                    if free.is_before(done) and not self._is_given(free, done, (first, last)):
                        gone = () if is_write else unfit.over(first, last)
                        kind = "write after free" if is_write else "late read"
                        for left in without([(first, last)], [some[:2] for some in gone]):
                            self._found(kind, free, done, left)
            for span in cells:
                if is_write:
                    unfit.put(*span)
                    continue
                for first, last, some in unfit.over(*span):
                    if some is None:
                        memory.unwritten.append((done, (first, last)))
                    elif some.is_before(done):
                        self._found("use after free", some, done, (first, last))
        if memory.unwritten and act.kind != "read":
            memory.unwritten = [  # what is written now in no order with the read is a race
                (read, left)
                for read, span in memory.unwritten
                for left in ([span] if read.is_before(done) else without([span], cells))
            ]

    def _found(self, kind: str, first: Done, second: Done, cells: Span) -> None:
        key = kind, first.when, second.when
        self.found.setdefault(key, AccessPair(kind, first, second)).cells.append(cells)

    @cached_property
    def _handed_out(self) -> Mapping[tuple[str, str | int], list[tuple[int, str]]]:
        """By side and page, or request that got a row: when, and to whom."""
        found: defaultdict[tuple[str, str | int], list[tuple[int, str]]] = defaultdict(list)
        for mark in self.trace.marks if self.trace else ():
            if mark.name in ("page alloc", "row alloc"):
                side, rid = str(mark.attrs.get("side", "")), str(mark.attrs["rid"])
                pages = map(int, str(mark.attrs.get("pages", "")).split())
                for what in (rid,) if mark.name == "row alloc" else pages:
                    found[side, what].append((mark.time, rid))
        return found

    def _is_given(self, free: Done, use: Done, cells: Span) -> bool:
        """Whether cells were handed out between a free and the launch of who uses them.

        Of KV, all of its pages, to the one who uses them if that is known; a request that gets a
        row may share pages that others have written, so to read it takes no more than that.
        """
        if self.trace is None:
            return False
        act, (side, name), handed_out = use.act, side_of(use.act.resource), self._handed_out
        slices, launch = self.slices, use.launch
        begin = slices.get(free.act.op)
        end = slices.get(launch.act.during if launch else act.op)
        start, stop = begin.start if begin else 0, end.end if end else LARGEST

        def is_given(what: str | int) -> bool:
            return any(
                start <= time <= stop and (act.kind == "free" or rid == act.rid)
                for time, rid in handed_out.get((side, what), ())
            )

        is_paged = any(isinstance(what, int) for _, what in handed_out)
        if act.kind == "read" or not name.endswith("kv") or not is_paged:
            return is_given(act.rid)
        pools = (mark.attrs for mark in self.trace.marks if mark.name == "kv pool")
        size = int(next(pools, {}).get("page_size", 1))
        return all(map(is_given, range(cells[0] // size, cells[1] // size + 1)))


# -- Which missing edge explains it ----------------------------------------------------------------

MOST_TRIALS = 8  # causes to try; whoever has more has other worries


@dataclass
class Cause:
    """Pairs that the same missing edge explains, step by step; ``in_turn``: who should come first.

    An edge that is missing in every step is told once, not once a step. And one missing edge shows
    in several places: where a copy does not wait for the sampling, the host, which waits for the
    copy alone, knows nothing of the forward pass either when it frees its inputs. So each missing
    edge is put in on trial, and what is gone then belongs to it: ``also``.
    """

    kind: str
    in_turn: tuple[Done, Done]
    pairs: list[AccessPair] = field(default_factory=list)
    also: list[Cause] = field(default_factory=list)


def told_once(pairs: Iterable[AccessPair], order: PlayedOrder, words: Words) -> list[Cause]:
    """The causes, those that explain most first."""
    causes = grouped(pairs, words)
    races = {key: cause for key, cause in causes.items() if cause.kind == "race"}
    cured: dict[object, set[tuple[object, ...]]] = {
        key: set() for key in races
    }  # what is gone with each
    for key, cause in list(races.items())[:MOST_TRIALS] if len(races) > 1 else ():
        acts = with_edges([done.act for done in order.done], cause.pairs, words)
        if not (trial := PlayedOrder(acts)).stuck:
            cured[key] = races.keys() - grouped(Detector(trial).pairs, words).keys()
    told = []
    while races:
        best = max(races, key=lambda key: len(cured[key] & races.keys()))
        told.append(cause := races.pop(best))
        cause.also = [races.pop(key) for key in [*races] if key in cured[best]]
    return told + [cause for cause in causes.values() if cause.kind != "race"]


def grouped(pairs: Iterable[AccessPair], words: Words) -> dict[tuple[object, ...], Cause]:
    """Pairs by what they have in common: the resource, and who does what on which lane."""
    causes: dict[tuple[object, ...], Cause] = {}
    for pair in pairs:
        both = in_turn(pair, words)
        about = [(act.lane, act.kind, words.name(act.op)) for act in (done.act for done in both)]
        key = (pair.kind, re.sub(r"\d+", "", pair.first.act.resource), *about)
        causes.setdefault(key, Cause(pair.kind, both)).pairs.append(pair)
    return causes


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


def with_edges(acts: Sequence[Act], pairs: Iterable[AccessPair], words: Words) -> list[Act]:
    """The same acts and, for each pair, a signal behind the first op and a wait before the second.

    What the host does itself belongs to no op: there they stand right beside the act, or beside the
    first of the frees that it does in one go, in one slice.
    """
    ops = {act.op for act in acts if act.kind == "begin"}
    heads: dict[int, int] = {}  # of each free, the first of its go; both by ``id``
    newest: dict[str, Act] = {}
    for act in acts:
        before = newest.get(act.lane, act)
        is_more = before.kind == act.kind == "free" and before.op == act.op
        heads[id(act)] = heads.get(id(before), id(act)) if is_more else id(act)
        newest[act.lane] = act
    behind: defaultdict[tuple[str, int], list[Act]] = defaultdict(list)
    ahead: defaultdict[tuple[str, int], list[Act]] = defaultdict(list)
    for signal, pair in enumerate(pairs, 1):
        first, second = (done.act for done in in_turn(pair, words))
        say, wait = Act(first.lane, "say", -signal), Act(second.lane, "wait", -signal)
        behind[("op", first.op) if first.op in ops else ("act", id(first))].append(say)
        head = heads.get(id(second), 0)
        ahead[("op", second.op) if second.op in ops else ("act", head)].append(wait)
    changed: list[Act] = []
    for act in acts:
        is_alone = bool(act.at) and act.op not in ops
        place = ("act", id(act)) if is_alone else ("op", act.op)
        changed += ahead.get(place, ()) if is_alone or act.kind == "begin" else ()
        changed.append(act)
        changed += behind.get(place, ()) if is_alone or act.kind == "end" else ()
    return changed


# -- What is told ----------------------------------------------------------------------------------

VERBS = {"read": "reads", "write": "writes", "free": "frees"}
TELLS = {
    "race": "{both}, and nothing orders the two: {missing}",
    "use after free": "{both} before, and nobody has written it since: a use after free",
    "late read": "{both} before, and {rid} has not got it back: a use after free",
    "write after free": "{both} before, and {rid} has not got it back: a write after free",
    "double free": "{both} before, and nobody has had it since: a double free",
    "unwritten": "{second} reads what nobody has written before",
    "wait in vain": "it is told to wait for {first} before that is launched, which is no order on "
    "a stream: {missing}",
}
"""By kind, the sentence behind the cells."""


@dataclass(frozen=True)
class Race:
    """Two acts that nothing orders; or something else of ``TELLS``, by its ``kind``.

    ``first`` is of the lower step, or was launched first: it should have ended before ``second``.
    A free is the second, for it comes behind every use; of a use after free it is the first. Of
    what nobody has written both are the read.
    ``cells`` of ``resource`` are as in an act; ``where`` is what they are called. ``who`` are the
    two with lane and requests, ``names`` without. There are ``count`` such pairs, and ``also`` is
    what else the missing edge would have ordered.
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
    also: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[int, int] | None:
        """The edge that should have been there, by ids of slices: from the end of the first one."""
        is_edge = self.kind in ("race", "wait in vain") and self.first.op and self.second.op
        return (self.first.op, self.second.op) if is_edge else None

    def __str__(self) -> str:
        (first, second), one, other = self.who, self.first.kind, self.second.kind
        both = f"{second} {VERBS.get(other, other)} what {first} {VERBS.get(one, one)}"
        missing = f"{self.names[1]} does not wait for {self.names[0]}"
        missing = f"the free must wait for {self.names[0]}" if other == "free" else missing
        told = TELLS[self.kind].format(
            both=both, first=first, second=second, missing=missing, rid=self.second.rid
        )
        times = f"; {self.count} such pairs" if self.count > 1 and one != "begin" else ""
        *most, last = self.also or ("",)
        also = " and ".join(filter(None, [", ".join(most), last]))
        also = f"; that edge would also order {also}" if also else ""
        return f"{self.where}: {told}{times}{also}"


@dataclass(frozen=True)
class WaitsForEver:
    """Lanes that never go on, from the one that waits for nobody or those in a circle.

    It waits for an op that nobody launches, or a signal that nobody says, or in a circle. What
    comes behind never happens, so nothing of it can race; that it never happens is what there is
    to tell. ``ops`` are what they wait for, ``unreached`` how many acts of theirs never happen.
    """

    lanes: tuple[str, ...]
    ops: tuple[int, ...]
    unreached: int
    sentence: str

    def __str__(self) -> str:
        return self.sentence


class Examined(NamedTuple):
    """What a program's order gives: ``waits`` hold what could not be looked at for races."""

    races: tuple[Race, ...]
    waits: tuple[WaitsForEver, ...]


def examine(trace: Trace) -> Examined:
    """Every race, those of one cause told once, and every wait that never ends.

    Both are empty where the trace has no program.

    Raises:
        ValueError: an act's cells are none; one sentence.
    """
    words, order = Words(trace), order_of(trace)
    causes = told_once(Detector(order, trace).pairs, order, words)
    races = [*_in_vain(trace, order, words), *(_race(cause, words) for cause in causes)]
    return Examined(tuple(races), tuple(_stuck(order, words)))


def find_races(trace: Trace) -> list[Race]:
    """The races of a trace, one of each cause; none where the trace has no program."""
    return list(examine(trace).races)


def race_offence(found: Race | WaitsForEver, trace: Trace) -> Offence:
    """What a picture of it shows in red."""
    ids = {item.id for item in trace.slices}
    if isinstance(found, WaitsForEver):
        return Offence(tuple(op for op in found.ops if op in ids), str(found))
    ops = tuple(dict.fromkeys(op for op in (found.first.op, found.second.op) if op in ids))
    missing = found.missing if len(ops) == 2 else None
    return Offence(ops, str(found), missing, "free" if found.second.kind == "free" else "")


def _race(cause: Cause, words: Words) -> Race:
    first, second = (done.act for done in cause.in_turn)
    cells, *others = (
        (pair.first.act.resource, joined(pair.cells))
        for pair in (it.pairs[0] for it in [cause, *cause.also])
    )
    where, *also = dict.fromkeys(words.cells(*some) for some in [cells, *others])
    who = words.who(first), words.who(second)
    names = words.op(first.op, first.lane), words.op(second.op, second.lane)
    return Race(cause.kind, *cells, where, first, second, who, names, len(cause.pairs), tuple(also))


def _in_vain(trace: Trace, order: PlayedOrder, words: Words) -> Iterator[Race]:
    """The waits that order nothing, those of one kind once."""
    begins = {act.op: act for act in trace.program if act.kind == "begin"} if order.vain else {}
    causes: defaultdict[tuple[str, ...], list[tuple[Act, Act]]] = defaultdict(list)
    for at, behind in order.vain.items():
        first, second = begins[trace.program[at].op], begins[behind]
        key = second.lane, words.name(first.op), words.name(second.op)
        causes[key].append((first, second))
    for pairs in causes.values():
        first, second = pairs[0]
        names = words.op(first.op, ""), words.op(second.op, "")
        where = f"the {lane_words(second.lane)}"
        yield Race("wait in vain", "", "", where, first, second, names, names, len(pairs))


def _stuck(order: PlayedOrder, words: Words) -> Iterator[WaitsForEver]:
    """What is stuck, each circle once, with whoever waits behind it."""
    heads = {lane: acts[0] for lane, acts in order.stuck.items()}
    ahead: dict[str, str] = {}  # by lane, the stuck one that would give what it waits for
    for lane, head in heads.items():
        kinds = ("launch",) if head.kind == "begin" else ("end", "say")
        for other, acts in order.stuck.items():
            if any(act.op == head.op and act.kind in kinds for act in acts):
                ahead.setdefault(lane, other)
    groups: dict[tuple[str, ...], list[str]] = {}  # by who waits for nobody, or by the circle
    for lane in heads:
        seen = [lane]
        while (after := ahead.get(seen[-1])) and after not in seen:
            seen.append(after)
        circle = seen[seen.index(after) :] if after else seen[-1:]
        least = circle.index(min(circle))
        groups.setdefault((*circle[least:], *circle[:least]), []).append(lane)
    for lanes, every in groups.items():
        rest = [lane for lane in every if lane not in lanes]
        unreached = sum(len(order.stuck[lane]) for lane in every)
        said = "; ".join(
            f"the {lane_words(lane)} waits for {'the launch of ' * (heads[lane].kind == 'begin')}"
            f"{words.op(heads[lane].op, '')}"
            for lane in lanes
        )
        nobody = "launches" if heads[lanes[0]].kind == "begin" else "ends or says"
        said += ": a circle" if lanes[0] in ahead else f", which nobody {nobody}: it waits for ever"
        said += f"; {unreached} acts are never reached"
        said += f", the {', the '.join(map(lane_words, rest))} behind them" if rest else ""
        yield WaitsForEver(
            (*lanes, *rest), tuple(heads[lane].op for lane in lanes), unreached, said
        )
