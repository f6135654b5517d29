"""Races: two lanes touch the same memory, one of them writes, and nothing orders them.

Found from a trace's ``program``, so it does not matter which of the two came first this time. What
comes before what, and when a stream waits in vain: ``happens_before.py``. What is in each other's
way, what a free means, and what is no race: ``conflicts.py``. Here it is told: which missing edge
explains it all, in a sentence each, with what never happens (``WaitsForEver``).
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

from ..trace import Act, Slice, Trace
from ..trace.cells import LARGEST, Span, common, is_in, joined, spans_of, without
from ..trace.events import is_host, lane_words
from ..trace.recorder import span_text

# -- What comes before what in a program, whatever the clock says: Lamport's happens-before --------
#
# - A lane does one thing after the other;
# - a launch comes before the op that it launches;
# - an op's end, or what was said, comes before whatever follows on a lane that waited for it.
#
# ``PlayedOrder`` plays a program once and notes, with each act, how far the other lanes surely were
# (a vector clock). ``Past`` asks it who changed what an op reads.

Clock = Mapping[str, int]  # by lane, the last of its moments that surely has been


class Done(NamedTuple):
    """An act that happened, ``at`` its place in the program and at a ``moment`` of its lane.

    ``clock`` is how far the other lanes surely were; ``launch`` is the launch of its op, if that
    touches anything.
    """

    at: int
    act: Act
    moment: int
    clock: Clock
    launch: Done | None = None

    @property
    def decided(self) -> Done:
        """Where it was launched, or did itself what nobody launches."""
        return self.launch or self

    def is_before(self, other: Done) -> bool:
        """Whether it surely comes before another one."""
        lane = self.act.lane
        known = other.moment if other.act.lane == lane else other.clock.get(lane, 0)
        return self.moment <= known and self is not other

    def is_decided_before(self, other: Done) -> bool | None:
        """Whether it was launched before another one, in any order of events; None: nobody says."""
        if self.decided.is_before(other.decided):
            return True
        return False if other.decided.is_before(self.decided) else None


class PlayedOrder:
    """A program, played once in about the order of its slices.

    A lane's acts stay in its order. A begin comes after the op's launch, and a wait after the first
    end or say of what it waits for. Any other order that keeps to this would do as well: who comes
    before whom is not taken from it, but two acts that nothing orders are told as they came.

    ``done`` are the acts in that order, ``stuck`` is what each lane never gets to, and ``vain`` are
    the waits that order nothing, see ``waits_in_vain``: by their places, with the op behind them.
    """

    def __init__(self, program: Sequence[Act], slices: Iterable[Slice] = ()) -> None:
        self.done: list[Done] = []
        self.launched: dict[int, Done] = {}
        self.ended: dict[int, Done] = {}  # by op or signal; of a signal the first
        self.last: dict[str, Done] = {}  # of each lane
        self.vain = waits_in_vain(program)
        places: dict[str, list[int]] = {}
        for at, act in enumerate(program):
            places.setdefault(act.lane, []).append(at)
        times = {item.id: (item.start, item.end) for item in slices}
        is_hosts = {lane: is_host(lane) for lane in places}
        here = dict.fromkeys(places, 0)
        clocks: dict[str, Clock] = {lane: {} for lane in places}
        held: defaultdict[tuple[bool, int], list[str]] = defaultdict(list)
        heap: list[tuple[int, int, str]] = []

        def push(lane: str, now: int) -> None:
            if here[lane] < len(places[lane]):
                at = places[lane][here[lane]]
                time = _time(program[at], is_hosts[lane], times)
                heapq.heappush(heap, (max(now, time), at, lane))

        for lane in places:
            push(lane, 0)
        while heap:
            now, at, lane = heapq.heappop(heap)
            act, giver = program[at], None
            kind, op = act.kind, act.op
            if kind == "begin" or (kind == "wait" and at not in self.vain):
                giver = (self.launched if kind == "begin" else self.ended).get(op)
                if giver is None:
                    held[kind == "begin", op].append(lane)
                    continue
                clocks[lane] = self.learned(act, clocks[lane], giver)
            here[lane] += 1
            launch = self.launched.get(op) if act.at or kind == "end" else None
            done = self.last[lane] = Done(at, act, here[lane], clocks[lane], launch)
            self.done.append(done)
            if kind == "launch" or kind in ("end", "say"):
                (self.launched if kind == "launch" else self.ended).setdefault(op, done)
                for other in held.pop((kind == "launch", op), ()):
                    push(other, now)
            push(lane, now)
        left = {lane: [program[at] for at in places[lane][here[lane] :]] for lane in places}
        self.stuck = {lane: acts for lane, acts in left.items() if acts}

    def learned(self, act: Act, clock: Clock, giver: Done) -> Clock:
        """What a lane knows once it has begun, or waited for, what ``giver`` launched or ended."""
        lane, known = giver.act.lane, dict(clock)
        if lane == act.lane or clock.get(lane, 0) >= giver.moment:
            return clock
        for other, moment in giver.clock.items():
            if moment > known.get(other, 0):
                known[other] = moment
        known[lane] = giver.moment
        return known


def _time(act: Act, is_hosts: bool, times: Mapping[int, tuple[int, int]]) -> int:
    """When an act happened: the host does things by the end of its slice, an op from its start."""
    is_between = act.kind in ("launch", "wait", "say")
    start, end = times.get(act.during if is_between else act.op, (0, 0))  # 0: with what came before
    return end if is_hosts or act.kind == "end" else start


def waits_in_vain(program: Sequence[Act]) -> dict[int, int]:
    """The waits of streams for ops that are launched only later: by place, the op behind each.

    A stream waits for what is launched when it is told to wait: ``cudaStreamWaitEvent`` with an
    event that is not recorded yet does nothing. A host that waits, or asks, does so until it is.
    When a stream was told is read off the program's order: before the next op on the stream was
    launched. Where that op stands before its own launch, lanes stand one behind the other, and
    nothing is known of when.
    """
    launched: dict[int, int] = {}
    early: set[int] = set()
    for at, act in enumerate(program):
        if act.kind == "launch":
            launched.setdefault(act.op, at)
        elif act.kind == "wait" and act.op not in launched and not is_host(act.lane):
            early.add(at)
    found: dict[int, int] = {}
    if not early:
        return found
    ran_on = {act.op: act.lane for act in program if act.kind == "begin"}
    behind: dict[str, tuple[int, int]] = {}  # by lane, place and op of its next begin
    for at in range(len(program) - 1, -1, -1):
        act = program[at]
        if act.kind == "begin":
            behind[act.lane] = at, act.op
        elif at in early and act.op in launched and not is_host(ran_on.get(act.op, "host")):
            begin, op = behind.get(act.lane, (0, 0))
            if at < launched.get(op, 0) < begin:
                found[at] = op
    return dict(sorted(found.items()))


class Past:
    """Who last changed what an op reads, and whether somebody changed it at the same time.

    Acts are named by their places in ``program``; ``order`` says when they happened.
    """

    def __init__(self, trace: Trace) -> None:
        self.program = trace.program
        played = PlayedOrder(trace.program, trace.slices)
        self.ended = played.ended  # by op
        self.done = {done.at: done for done in played.done}
        self.order = {done.at: when for when, done in enumerate(played.done)}
        self.changes: defaultdict[str, list[Done]] = defaultdict(list)
        self.by_op: defaultdict[int, list[int]] = defaultdict(list)
        for done in played.done:
            if done.act.at:
                self.by_op[done.act.op].append(done.at)
            if done.act.kind in ("write", "free"):
                self.changes[done.act.resource].append(done)

    def newest(self, at: int, cells: Iterable[int]) -> dict[int, Done]:
        """By cell, the last write or free before the read at ``at``; a cell without is left out."""
        read, wanted = self.program[at], set(cells)
        found: dict[int, Done] = {}
        for change in reversed(self.changes[read.resource]):
            if self.order[change.at] < self.order[at]:
                for cell in [cell for cell in wanted if is_in(cell, change.act.at)]:
                    found[cell] = change
                    wanted.discard(cell)
        return found

    def meanwhile(self, at: int, cells: Iterable[int]) -> tuple[int, Done] | None:
        """A change that nothing orders against the read at ``at``, with the cell; or None."""
        read, wanted = self.program[at], set(cells)
        for change in self.changes[read.resource]:
            if change.act.lane != read.lane:
                for cell in sorted(cell for cell in wanted if is_in(cell, change.act.at)):
                    if self.is_unordered(at, change):
                        return cell, change
                    break
        return None

    def is_unordered(self, at: int, other: Done) -> bool:
        """Whether nothing says which of two acts comes first."""
        done = self.done[at]
        return not (done.is_before(other) or other.is_before(done)) and done is not other


# -- What lanes did to memory, and which of it is in each other's way ------------------------------
#
# Found from a trace's ``program`` and what comes before what in it (``happens_before.py``), so it
# does not matter who came first this time. What is found:
#
# - a **race**: two accesses to one cell from two lanes, one of them no read, and neither comes
# before   the other. A free counts as a write: whoever touches what it frees in no order with it
# races; - a **use after free**: a read behind a free of what nobody has written since. Whoever
# writes it is   its next owner, and that is no race if the write comes behind the free; - the same
# by the old owner: who freed cells for a request writes them for the same one (a **write   after
# free**), or reads what others have written since (a **late read**), and was not given them
# again; - a **double free**: of cells in a row nobody wrote any since the first, nor were they
# handed out; - what is **unwritten** and read, if anybody writes to that memory at all: else it
# came filled, as   weights do.

VALUE = "value"  # what an op gives: written by its end, read by the ops that take it
VERBS = {"read": "reads", "write": "writes", "free": "frees"}
SIDES = ("prefill", "decode")  # of ``pd``: its resources begin with one of them
RECENT = 32  # accesses of a lane that are compared one by one
T = TypeVar("T")


# -- who touched what ------------------------------------------------------------------------------


class Stretch(NamedTuple, Generic[T]):
    """Cells in a row with the same newest access."""

    first: int
    last: int
    what: T


class Newest(Generic[T]):
    """What was put last on each cell; stretches in order, none of which overlap."""

    def __init__(self) -> None:
        self.stretches: list[Stretch[T]] = []
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def shared(self, spans: Iterable[Span]) -> list[Span]:
        """Those spans, whole, in which a cell has something; most have none, and it is quick."""
        firsts, lasts, end = self._firsts, self._lasts, len(self._lasts)
        if not end:
            return []
        return [
            span
            for span in spans
            if (at := bisect_left(lasts, span[0])) < end and firsts[at] <= span[1]
        ]

    def put(self, first: int, last: int, what: T) -> None:
        """Cells ``first`` to ``last`` have a new one."""
        self._replace(first, last, [Stretch(first, last, what)])

    def clear(self, first: int, last: int) -> None:
        """Cells ``first`` to ``last`` have none any more."""
        self._replace(first, last, [])

    def over(self, first: int, last: int) -> Iterator[Stretch[T]]:
        """The stretches that share cells with ``first`` to ``last``, cut to them."""
        for stretch in self.stretches[self._at(first, last)]:
            yield Stretch(max(first, stretch.first), min(last, stretch.last), stretch.what)

    def _at(self, first: int, last: int) -> slice:
        return slice(bisect_left(self._lasts, first), bisect_right(self._firsts, last))

    def _replace(self, first: int, last: int, new: list[Stretch[T]]) -> None:
        at = self._at(first, last)
        if old := self.stretches[at]:
            if old[0].first < first:
                new = [old[0]._replace(last=first - 1), *new]
            if old[-1].last > last:
                new = [*new, old[-1]._replace(first=last + 1)]
        self.stretches[at] = new
        self._firsts[at] = [stretch.first for stretch in new]
        self._lasts[at] = [stretch.last for stretch in new]


class AccessLog:
    """One lane's reads, or its writes and frees, of one resource; the newest to each cell.

    Whoever asks knows most of it already, so the newest stand in a list and are compared one by
    one, back to the last that is known. What is older is folded into one map of stretches, or is
    dropped once every lane knows it that ever touches the resource.
    """

    def __init__(self) -> None:
        self.latest = 0  # the lane's moment at the newest of them
        self.recent: list[Done] = []
        self.older: Newest[Done] = Newest()
        self.latest_older = 0

    def fold(self, known: int) -> None:
        """Keep fewer one by one; everybody knows this lane up to moment ``known``."""
        for old in self.recent[: -RECENT // 2]:
            if old.moment > known:
                self.latest_older = old.moment
                for span in spans_of(old.act.at):
                    self.older.put(*span, old)
        del self.recent[: -RECENT // 2]

    def unknown(self, cells: Sequence[Span], known: int) -> Iterator[tuple[Done, Span]]:
        """The newest access to each of some cells, as far as it came after moment ``known``."""
        for access in reversed(self.recent):
            if access.moment <= known:
                return
            if shared := list(common(cells, spans_of(access.act.at))):
                yield from ((access, span) for span in shared)
                cells = without(cells, shared)
        if self.latest_older > known:
            for stretch in (some for span in cells for some in self.older.over(*span)):
                if stretch.what.moment > known:
                    yield stretch.what, (stretch.first, stretch.last)


class ResourceHistory:
    """What is known of one resource: which ``lanes`` ever touch it, and what they did by now.

    ``unfit`` is what nobody should read: what is free, by the free, and what nobody has written,
    by None. ``given_up`` is what was freed for a request, ``unwritten`` what was read too early.
    """

    def __init__(self) -> None:
        self.lanes: set[str] = set()
        self.logs: dict[tuple[str, bool], AccessLog] = {}  # by lane and whether they read
        self.unfit: Newest[Done | None] = Newest()
        self.given_up: defaultdict[str, Newest[Done]] = defaultdict(Newest)
        self.unwritten: list[tuple[Done, Span]] = []


def side_of(resource: str) -> tuple[str, str]:
    """The side of ``pd`` that a resource is on, if there are two, and its name there."""
    side, _, rest = resource.partition(" ")
    return (side, rest) if side in SIDES else ("", resource)


class HandedOut:
    """When cells were given to a request, as far as a trace's marks tell (``page alloc`` ...)."""

    def __init__(self, trace: Trace, slices: Mapping[int, Slice]) -> None:
        self.trace = trace
        self.slices = slices

    @cached_property
    def pages(self) -> dict[tuple[str, int], list[tuple[int, str]]]:
        """By side and page: when, and to whom."""
        found: dict[tuple[str, int], list[tuple[int, str]]] = {}
        for mark in self.trace.marks:
            if mark.name == "page alloc":
                side, given = str(mark.attrs.get("side", "")), (mark.time, str(mark.attrs["rid"]))
                for page in str(mark.attrs["pages"]).split():
                    found.setdefault((side, int(page)), []).append(given)
        return found

    @cached_property
    def rows(self) -> dict[tuple[str, str], list[int]]:
        """By side and request: when it was given a row."""
        found: dict[tuple[str, str], list[int]] = {}
        for mark in self.trace.marks:
            if mark.name == "row alloc":
                side_and_rid = str(mark.attrs.get("side", "")), str(mark.attrs["rid"])
                found.setdefault(side_and_rid, []).append(mark.time)
        return found

    @cached_property
    def page_size(self) -> int:
        """KV slots in a page."""
        pools = (mark.attrs for mark in self.trace.marks if mark.name == "kv pool")
        return int(next(pools, {}).get("page_size", 1))

    def since(self, free: Done, use: Done, cells: Span) -> bool:
        """Whether cells were handed out between a free and the launch of who uses them.

        Of KV, all of its pages, to the one who uses them if that is known; a request that gets a
        row may share pages that others have written, so to read it takes no more than that.
        """
        act = use.act
        side, name = side_of(act.resource)
        begin = self.slices.get(free.act.op)
        end = self.slices.get(use.launch.act.during if use.launch else act.op)
        start, stop = begin.start if begin else 0, end.end if end else LARGEST
        if act.kind == "read" or not name.endswith("kv") or not self.pages:
            return any(start <= time <= stop for time in self.rows.get((side, act.rid), ()))
        pages = range(cells[0] // self.page_size, cells[1] // self.page_size + 1)
        return all(
            any(
                start <= time <= stop and (rid == act.rid or act.kind == "free")
                for time, rid in self.pages.get((side, page), ())
            )
            for page in pages
        )


# -- what is in each other's way -------------------------------------------------------------------


@dataclass
class AccessPair:
    """Two accesses that are in each other's way, in the order in which they were taken.

    ``kind`` is a key of ``TELLS``. What nobody wrote is read by both, which are one.
    """

    kind: str
    first: Done
    second: Done
    cells: list[Span] = field(default_factory=list)


class Detector:
    """``take`` gets what an order has done, one after the other, and finds ``pairs``."""

    def __init__(self, order: PlayedOrder, handed_out: HandedOut | None = None) -> None:
        self.handed_out = handed_out
        self.memory: defaultdict[str, ResourceHistory] = defaultdict(ResourceHistory)
        self.clocks: dict[str, Clock] = {}  # by lane, how far it knew the others at last
        self.found: dict[tuple[str, int, int], AccessPair] = {}
        self.taken: Newest[bool] = Newest()  # ops whose value somebody reads
        for done in order.done:
            name = done.act.resource
            if name:
                memory = self.memory[name]
                memory.lanes.add(done.act.lane)
                if name == VALUE:
                    for span in spans_of(done.act.at):
                        self.taken.put(*span, True)
                elif done.act.kind == "write" and not memory.unfit.stretches:
                    memory.unfit.put(0, LARGEST, None)
        if self.taken.stretches:
            self.memory[VALUE].lanes |= {
                one.act.lane for one in order.done if one.act.kind == "end"
            }
        for act in (act for acts in order.stuck.values() for act in acts):
            if act.kind == "write":  # it never comes, which is told: nothing else of it
                for span in spans_of(act.at):
                    self.memory[act.resource].unfit.clear(*span)

    @property
    def pairs(self) -> list[AccessPair]:
        """Every pair of accesses found, in the order of the second one; unwritten reads last."""
        for memory in self.memory.values():
            for read, span in memory.unwritten:
                self._found("unwritten", read, read, span)
            memory.unwritten = []
        return list(self.found.values())

    def take(self, done: Done) -> None:
        """One act of one lane; what it comes after has been taken.

        Raises:
            ValueError: its cells are none; one sentence.
        """
        act = done.act
        self.clocks[act.lane] = done.clock
        if act.kind == "end" and self.taken.shared([(act.op, act.op)]):
            done = done._replace(act=Act(act.lane, "write", act.op, VALUE, str(act.op)))
        elif not act.at:
            return
        try:
            cells, memory = spans_of(done.act.at), self.memory[done.act.resource]
        except ValueError as error:
            who = f"the {lane_words(act.lane)} {VERBS[act.kind]} cells of {act.resource!r}"
            raise ValueError(f"{who}, but {error}") from None
        self._look_at_frees(done, cells, memory)
        self._look_at_others(done, cells, memory)

    def _look_at_others(self, done: Done, cells: Sequence[Span], memory: ResourceHistory) -> None:
        """Compare it with what other lanes did in no order with it, and keep it for them."""
        if len(memory.lanes) < 2:
            return
        lane, is_read, clock = done.act.lane, done.act.kind == "read", done.clock
        for (other, was_read), log in memory.logs.items():
            if other != lane and not (is_read and was_read):
                known = clock.get(other, 0)
                if known < log.latest:
                    for access, span in log.unknown(cells, known):
                        self._found("race", access, done, span)
        if (lane, is_read) not in memory.logs:
            memory.logs[lane, is_read] = AccessLog()
        log = memory.logs[lane, is_read]
        log.latest = done.moment
        log.recent.append(done)
        if len(log.recent) > RECENT:
            others = (self.clocks.get(other, {}) for other in memory.lanes if other != lane)
            log.fold(min(clock.get(lane, 0) for clock in others))

    def _look_at_frees(self, done: Done, cells: Sequence[Span], memory: ResourceHistory) -> None:
        """Note what is free or written from now on, or used although it is not."""
        act, unfit = done.act, memory.unfit
        if act.kind == "free":
            for span in cells:
                self._look_for_double(done, span, unfit)
                unfit.put(*span, done)
                if act.rid:
                    memory.given_up[act.rid].put(*span, done)
        elif unfit.stretches:
            if act.rid in memory.given_up:
                self._look_at_owner(done, cells, memory)
            for span in unfit.shared(cells):
                if act.kind == "write":
                    unfit.clear(*span)
                    continue
                for first, last, free in unfit.over(*span):
                    if free is None:
                        memory.unwritten.append((done, (first, last)))
                    elif free.is_before(done):
                        self._found("use after free", free, done, (first, last))
        if memory.unwritten and act.kind != "read":
            memory.unwritten = list(self._still_unwritten(done, cells, memory.unwritten))

    def _look_for_double(self, done: Done, span: Span, unfit: Newest[Done | None]) -> None:
        """Tell of cells in a row, all of which are free already: else some of them were in use."""
        before = list(unfit.over(*span))
        size = sum(last - first + 1 for first, last, free in before if free is not None)
        if size == span[1] - span[0] + 1:
            for first, last, free in before:
                if free and free.is_before(done) and not self._is_given(free, done, (first, last)):
                    self._found("double free", free, done, (first, last))

    def _look_at_owner(self, done: Done, cells: Sequence[Span], memory: ResourceHistory) -> None:
        """Tell of what a request writes, or reads although others have it now, and gave up."""
        given_up, is_write = memory.given_up[done.act.rid], done.act.kind == "write"
        for span in given_up.shared(cells):
            for first, last, free in list(given_up.over(*span)):
                if is_write:
                    given_up.clear(first, last)
                if not free.is_before(done) or self._is_given(free, done, (first, last)):
                    continue
                unfit = [] if is_write else [some[:2] for some in memory.unfit.over(first, last)]
                for left in without([(first, last)], unfit):
                    self._found("write after free" if is_write else "late read", free, done, left)

    def _is_given(self, free: Done, use: Done, cells: Span) -> bool:
        return self.handed_out is not None and self.handed_out.since(free, use, cells)

    def _still_unwritten(
        self, done: Done, cells: Sequence[Span], unwritten: Iterable[tuple[Done, Span]]
    ) -> Iterator[tuple[Done, Span]]:
        """Those but for what is written now in no order with the read, which is a race."""
        for read, span in unwritten:
            is_race = not read.is_before(done)
            yield from ((read, left) for left in (without([span], cells) if is_race else [span]))

    def _found(self, kind: str, first: Done, second: Done, cells: Span) -> None:
        """Note cells of a pair."""
        key = kind, first.at, second.at
        if key not in self.found:
            self.found[key] = AccessPair(kind, first, second)
        self.found[key].cells.append(cells)


def find_pairs(
    order: PlayedOrder,
    slices: Mapping[int, Slice] | None = None,
    handed_out: HandedOut | None = None,
) -> list[AccessPair]:
    """Every pair of accesses of an order that are in each other's way."""
    detector = Detector(order, handed_out)
    for done in in_their_steps(order.done, slices or {}):
        detector.take(done)
    return detector.pairs


def in_their_steps(done: Iterable[Done], slices: Mapping[int, Slice]) -> Iterator[Done]:
    """What the host reads of a step's tokens, it reads in the ``process`` of that step.

    A trace notes the read when the host has waited for the copy. ``process`` opens only then, so
    the slice that it notes is the one before: the launch of the next step, or its schedule.
    """
    process = {
        (item.lane, item.step): item.id
        for item in slices.values()
        if item.name == "process" and is_host(item.lane) and item.step > 0
    }
    step: dict[str, int] = {}  # that a lane waited for last
    for item in done:
        act = item.act
        if act.kind == "wait" and act.op in slices:
            step[act.lane] = slices[act.op].step
        elif act.kind == "read" and is_host(act.lane) and "host output" in act.resource:
            op = process.get((act.lane, step.get(act.lane, 0)), act.op)
            item = item._replace(act=replace(act, op=op))
        yield item


# -- What a picture of a broken law shows in red ---------------------------------------------------


@dataclass(frozen=True)
class Offence:
    """The slices that did it, by id, and the edge that should have been between two of them.

    ``missing`` is (from, to) or None; ``sentence`` is what the picture says beside it; ``waits`` is
    what of the second slice has to wait, as a noun, where it is not all of it: ``free``.
    """

    slices: tuple[int, ...]
    sentence: str
    missing: tuple[int, int] | None = None
    waits: str = ""


MOST_TRIALS = 8  # causes to try; whoever has more has other worries


# -- which missing edge explains it ----------------------------------------------------------------

Key = tuple[str, ...]
Place = tuple[str, int]


@dataclass
class Cause:
    """Pairs that the same missing edge explains, step by step; ``in_turn``: who should come first.

    An edge that is missing in every step is told once, not once a step. And one missing edge shows
    in several places: where a copy does not wait for the sampling, the host, which waits for the
    copy alone, knows nothing of the forward pass either when it frees its inputs. So each missing
    edge is put in on trial, and what is gone then belongs to it: ``also``.
    """

    key: Key
    in_turn: tuple[Done, Done]
    pairs: list[AccessPair] = field(default_factory=list)
    also: list[Cause] = field(default_factory=list)


def told_once(pairs: Sequence[AccessPair], order: PlayedOrder, words: Words) -> list[Cause]:
    """The causes, those that explain most first."""
    causes = grouped(pairs, words)
    races = [cause for cause in causes.values() if cause.key[0] == "race"]
    left = [cause for cause in causes.values() if cause.key[0] != "race"]
    if len(races) < 2:
        return races + left
    done = (item for item in order.done if item.at not in order.vain)
    acts = [item.act for item in in_their_steps(done, words.slices)]
    cured = {cause.key: _cured_by(cause, acts, races, words) for cause in races[:MOST_TRIALS]}
    told = []
    while races:
        keys = {cause.key for cause in races}
        best = max(races, key=lambda cause: len(cured.get(cause.key, set()) & keys))
        gone = cured.get(best.key, set()) | {best.key}
        best.also = [cause for cause in races if cause.key in gone and cause is not best]
        told.append(best)
        races = [cause for cause in races if cause.key not in gone]
    return told + left


def grouped(pairs: Iterable[AccessPair], words: Words) -> dict[Key, Cause]:
    """Pairs by what they have in common: the resource, and who does what on which lane."""
    causes: dict[Key, Cause] = {}
    for pair in pairs:
        in_turn = _in_turn(pair, words)
        abouts = [(a.lane, a.kind, words.name(a.op)) for a in (done.act for done in in_turn)]
        family = re.sub(r"\d+", "", pair.first.act.resource)
        key = (pair.kind, family, *abouts[0], *abouts[1])
        causes.setdefault(key, Cause(key, in_turn)).pairs.append(pair)
    return causes


def _in_turn(pair: AccessPair, words: Words) -> tuple[Done, Done]:
    """Who should come first: the lower step; of one step who was launched first, or as taken.

    A free comes behind every use, whatever the steps: who frees in step 3 what step 4 was told to
    use is too early. Only who writes, and was launched behind the free, is the next owner.
    """
    first, second = pair.first, pair.second
    if pair.kind != "race":
        return first, second
    if (first.act.kind == "free") != (second.act.kind == "free"):
        free, use = (first, second) if first.act.kind == "free" else (second, first)
        is_next_owner = use.act.kind == "write" and free.is_decided_before(use)
        return (free, use) if is_next_owner else (use, free)
    one, other = words.step(first.act.op), words.step(second.act.op)
    is_known = one and other and one != other
    if (one > other) if is_known else first.is_decided_before(second) is False:
        return second, first
    return first, second


def _cured_by(cause: Cause, acts: Sequence[Act], races: list[Cause], words: Words) -> set[Key]:
    """Which races are gone once every pair of a cause is ordered; none if that is a circle."""
    order = PlayedOrder(with_edges(acts, [_in_turn(pair, words) for pair in cause.pairs]))
    if order.stuck:
        return set()
    return {cause.key for cause in races} - grouped(find_pairs(order), words).keys()


def with_edges(acts: Sequence[Act], edges: Iterable[tuple[Done, Done]]) -> list[Act]:
    """The same acts and, for each edge, a signal behind the first op and a wait before the second.

    What the host does itself belongs to no op: there they stand right beside the act, or beside the
    first of the frees that it does in one go.
    """
    ops, heads = {act.op for act in acts if act.kind == "begin"}, _heads(acts)
    behind: defaultdict[Place, list[Act]] = defaultdict(list)
    before: defaultdict[Place, list[Act]] = defaultdict(list)
    for signal, (first, second) in enumerate(edges, 1):
        say, wait = Act(first.act.lane, "say", -signal), Act(second.act.lane, "wait", -signal)
        behind[_place(first.act, ops, {})].append(say)
        before[_place(second.act, ops, heads)].append(wait)
    changed: list[Act] = []
    for act in acts:
        is_alone, place = bool(act.at) and act.op not in ops, _place(act, ops, {})
        changed += before.get(place, ()) if is_alone or act.kind == "begin" else ()
        changed.append(act)
        changed += behind.get(place, ()) if is_alone or act.kind == "end" else ()
    return changed


def _place(act: Act, ops: set[int], heads: dict[int, int]) -> Place:
    return ("op", act.op) if act.op in ops else ("act", heads.get(id(act), id(act)))


def _heads(acts: Iterable[Act]) -> dict[int, int]:
    """Of each free the first one of those that its lane does in one go, in one slice; by ``id``."""
    heads: dict[int, int] = {}
    newest: dict[str, Act] = {}
    for act in acts:
        before = newest.get(act.lane)
        if act.kind == "free":
            is_more = before and before.kind == "free" and before.op == act.op
            heads[id(act)] = heads[id(before)] if is_more else id(act)
        newest[act.lane] = act
    return heads


# -- in words --------------------------------------------------------------------------------------

MOST_SPANS, MOST_PLACES = 4, 2  # that a sentence names; of those that take more words fewer
ROWS = ("page table", "token pool")
ONES = {  # one cell of a resource
    "kv": "KV slot",
    "future map": "future slot",
    "last tokens": "last-token cell",
    "prev sampled": "sampled-token cell",
    "input ids": "input-id cell",
}


class Words:
    """The words for one trace: ``op`` for who did it, ``cells`` for what it was done to.

    A mark ``row length`` says how many cells each row of a resource has that is a table; without
    it, cells are numbered through.
    """

    def __init__(self, trace: Trace) -> None:
        self.slices: Mapping[int, Slice] = {item.id: item for item in trace.slices}
        self.row_lens: dict[str, int] = {}
        for mark in trace.marks:
            if mark.name == "row length":
                side = str(mark.attrs.get("side", ""))
                named = ((f"{side} {name}".strip(), size) for name, size in mark.attrs.items())
                self.row_lens.update({name: int(size) for name, size in named
                                      if isinstance(size, int) and size > 0})  # fmt: skip

    def name(self, op: int) -> str:
        """What an op is: ``copy``; empty without a slice."""
        return self.slices[op].name if op in self.slices else ""

    def step(self, op: int) -> int:
        """The step of an op; 0 if it has none."""
        return self.slices[op].step if op in self.slices else 0

    def op(self, op: int, lane: str) -> str:
        """``copy of step 3``; ``prepare of step 5 on the host``; ``op 17`` without a slice."""
        item = self.slices.get(op)
        if item is None:
            return f"{'call' if is_host(lane) else 'op'} {op}" if op else f"the {lane_words(lane)}"
        name = f"{item.name} of step {item.step}" if item.step else f"{item.name} ({op})"
        return f"{name} on the {lane}" if is_host(lane) else name

    def who(self, act: Act) -> str:
        """The op with its lane and its requests: ``copy of step 3 (copy stream; r0, r1)``."""
        item = self.slices.get(act.op)
        rids = act.rid or ", ".join(item.rids if item else ())
        about = [] if is_host(act.lane) else [lane_words(act.lane)]
        about += [rids] if rids else []
        words = self.op(act.op, act.lane)
        return f"{words} ({'; '.join(about)})" if about else words

    def cells(self, resource: str, at: str) -> str:
        """Some cells in the words of their resource: ``KV slots 3-7 9``, ``the inputs of step 4``.

        ``at`` is as in an act.
        """
        side, name = side_of(resource)
        return self._named(name, resource, spans_of(at)) + (f" of the {side} side" if side else "")

    def _named(self, name: str, resource: str, spans: Sequence[Span]) -> str:
        if name == VALUE:
            return " and ".join(f"the value of {self.op(cell, '')}" for cell, _ in spans)
        if name == "inputs":
            return f"the inputs of {_counted('step', spans)}"
        if buffer := re.fullmatch(r"(host )?output (\d+)", name):
            kind = "host" if buffer[1] else "device"
            return f"{kind} output buffer {buffer[2]} ({_counted('cell', spans)})"
        size = self.row_lens.get(resource, 0)
        if name == ROWS[0] and size:
            rows = [(first // size, last // size) for first, last in spans]
            return f"{_counted('row', rows)} of the page table"
        if name == ROWS[1]:
            return _counted("token-pool cell", spans, size)
        return _counted(ONES.get(name) or f"{name} cell", spans)


def _counted(one: str, spans: Sequence[Span], row_len: int = 0) -> str:
    """``cell 3``, ``cells 3-7 9``; of many spans the first few, and how many cells more.

    With ``row_len``, by row and position.
    """
    spans, most = sorted(set(spans)), MOST_PLACES if row_len else MOST_SPANS
    is_one = len(spans) == 1 and spans[0][0] == spans[0][1]
    parts = [_places(*span, row_len) if row_len else span_text(*span) for span in spans[:most]]
    rest = sum(last - first + 1 for first, last in spans[most:])
    more = f" and {rest} more" if rest else ""
    return f"{one}{'' if is_one else 's'} {' '.join(parts)}{more}"


def _places(first: int, last: int, row_len: int) -> str:
    """``(row 2, position 3)``, ``(row 2, positions 3-5)``."""
    (row, start), (last_row, end) = divmod(first, row_len), divmod(last, row_len)
    if row != last_row:
        return f"(row {row}, position {start}) to (row {last_row}, position {end})"
    return f"(row {row}, position{'' if start == end else 's'} {span_text(start, end)})"


# -- what is told ----------------------------------------------------------------------------------

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

    @property
    def missing_edge(self) -> str:
        """The same in words."""
        first, second = self.names
        is_free = self.second.kind == "free"
        return (
            f"the free must wait for {first}" if is_free else f"{second} does not wait for {first}"
        )

    def __str__(self) -> str:
        (first, second), one, other = self.who, self.first.kind, self.second.kind
        both = f"{second} {VERBS.get(other, other)} what {first} {VERBS.get(one, one)}"
        told = TELLS[self.kind].format(
            both=both, first=first, second=second, missing=self.missing_edge, rid=self.second.rid
        )
        times = f"; {self.count} such pairs" if self.count > 1 and one != "begin" else ""
        also = f"; that edge would also order {_listed(self.also)}" if self.also else ""
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


@dataclass(frozen=True)
class Examined:
    """What a program's order gives: ``waits`` hold what could not be looked at for races."""

    races: tuple[Race, ...]
    waits: tuple[WaitsForEver, ...]


def examine(trace: Trace) -> Examined:
    """Every race, those of one cause told once, and every wait that never ends.

    Both are empty where the trace has no program.

    Raises:
        ValueError: an act's cells are none; one sentence.
    """
    words, order = Words(trace), PlayedOrder(trace.program, trace.slices)
    pairs = find_pairs(order, words.slices, HandedOut(trace, words.slices))
    races = [_race(cause, words) for cause in told_once(pairs, order, words)]
    return Examined((*_told_in_vain(trace, order, words), *races), _told_stuck(order, words))


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
    pair, (first, second) = cause.pairs[0], (done.act for done in cause.in_turn)
    cells, also = joined(pair.cells), [some.pairs[0] for some in cause.also]
    where = words.cells(first.resource, cells)
    others = [words.cells(some.first.act.resource, joined(some.cells)) for some in also]
    return Race(
        pair.kind,
        first.resource,
        cells,
        where,
        first,
        second,
        (words.who(first), words.who(second)),
        (words.op(first.op, first.lane), words.op(second.op, second.lane)),
        len(cause.pairs),
        tuple(dict.fromkeys(other for other in others if other != where)),
    )


def _told_in_vain(trace: Trace, order: PlayedOrder, words: Words) -> list[Race]:
    """The waits that order nothing, those of one kind once."""
    begins = {act.op: act for act in trace.program if act.kind == "begin"} if order.vain else {}
    causes: dict[Key, list[tuple[Act, Act]]] = {}
    for at, behind in order.vain.items():
        first, second = begins[trace.program[at].op], begins[behind]
        key = (second.lane, words.name(first.op), words.name(second.op))
        causes.setdefault(key, []).append((first, second))
    return [
        Race(
            "wait in vain", "", "", f"the {lane_words(second.lane)}", first, second,
            (words.op(first.op, ""), words.op(second.op, "")),
            (words.op(first.op, ""), words.op(second.op, "")), len(pairs),
        )
        for pairs in causes.values() for first, second in pairs[:1]
    ]  # fmt: skip


def _told_stuck(order: PlayedOrder, words: Words) -> tuple[WaitsForEver, ...]:
    """What is stuck, each circle once, with whoever waits behind it."""
    heads = {lane: acts[0] for lane, acts in order.stuck.items()}
    waits_for = {lane: _giver(act, order) for lane, act in heads.items()}
    ends: dict[tuple[str, ...], list[str]] = {}
    for lane in heads:
        ends.setdefault(_root(lane, waits_for), []).append(lane)
    return tuple(_waits_for_ever(root, lanes, order, words) for root, lanes in ends.items())


def _giver(head: Act, order: PlayedOrder) -> str:
    """The stuck lane that would launch, end or say what a lane waits for; empty: nobody does."""
    kinds = ("launch",) if head.kind == "begin" else ("end", "say")
    for lane, acts in order.stuck.items():
        if any(act.op == head.op and act.kind in kinds for act in acts):
            return lane
    return ""


def _root(lane: str, waits_for: dict[str, str]) -> tuple[str, ...]:
    """The circle that a lane's wait leads to, in one order; or the lane that waits for nobody."""
    seen: list[str] = []
    while lane not in seen:
        seen.append(lane)
        if not waits_for[lane]:
            return (lane,)
        lane = waits_for[lane]
    circle = seen[seen.index(lane) :]
    least = circle.index(min(circle))
    return tuple(circle[least:] + circle[:least])


def _waits_for_ever(
    root: tuple[str, ...], lanes: list[str], order: PlayedOrder, words: Words
) -> WaitsForEver:
    heads = [order.stuck[lane][0] for lane in root]
    is_circle = len(root) > 1 or bool(_giver(heads[0], order))
    needs = [("the launch of " if a.kind == "begin" else "") + words.op(a.op, "") for a in heads]
    sentence = "; ".join(
        f"the {lane_words(lane)} waits for {need}" for lane, need in zip(root, needs, strict=True)
    )
    nobody = {"begin": "launches", "wait": "ends or says"}[heads[0].kind]
    sentence += ": a circle" if is_circle else f", which nobody {nobody}: it waits for ever"
    unreached = sum(len(order.stuck[lane]) for lane in lanes)
    rest = [lane for lane in lanes if lane not in root]
    sentence += f"; {unreached} acts are never reached"
    sentence += f", the {', the '.join(map(lane_words, rest))} behind them" if rest else ""
    return WaitsForEver((*root, *rest), tuple(act.op for act in heads), unreached, sentence)


def _listed(things: tuple[str, ...]) -> str:
    return " and ".join(filter(None, [", ".join(things[:-1]), things[-1]]))
