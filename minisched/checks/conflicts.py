"""What lanes did to memory, and which of it is in each other's way.

Found from a trace's ``program`` and what comes before what in it (``happens_before.py``), so it
does not matter who came first this time. What is found:

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
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

from ..trace import Act, Slice, Trace
from ..trace.events import is_host, lane_words
from ..trace.program import LARGEST, Span, common, spans_of, without
from .happens_before import Clock, Done, Order

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


class Memory:
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
class Pair:
    """Two accesses that are in each other's way, in the order in which they were taken.

    ``kind`` is a key of ``TELLS``. What nobody wrote is read by both, which are one.
    """

    kind: str
    first: Done
    second: Done
    cells: list[Span] = field(default_factory=list)


class Detector:
    """``take`` gets what an order has done, one after the other, and finds ``pairs``."""

    def __init__(self, order: Order, handed_out: HandedOut | None = None) -> None:
        self.handed_out = handed_out
        self.memory: defaultdict[str, Memory] = defaultdict(Memory)
        self.clocks: dict[str, Clock] = {}  # by lane, how far it knew the others at last
        self.found: dict[tuple[str, int, int], Pair] = {}
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
    def pairs(self) -> list[Pair]:
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

    def _look_at_others(self, done: Done, cells: Sequence[Span], memory: Memory) -> None:
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

    def _look_at_frees(self, done: Done, cells: Sequence[Span], memory: Memory) -> None:
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

    def _look_at_owner(self, done: Done, cells: Sequence[Span], memory: Memory) -> None:
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
            self.found[key] = Pair(kind, first, second)
        self.found[key].cells.append(cells)


def find_pairs(
    order: Order,
    slices: Mapping[int, Slice] | None = None,
    handed_out: HandedOut | None = None,
) -> list[Pair]:
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
