"""The facts of a trace that every check uses, before any rule is applied to them.

- the order of its program: which act precedes which, whatever the clock shows (``PlayedOrder``);
- the moments of its marks, in words;
- the words for the actor of an act, and for the memory that it touches.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import NamedTuple, TypeVar

from ..record import to_text
from ..trace import Act, Mark, Slice, Trace
from ..trace.cells import Span, span_text, spans_of
from ..trace.events import is_host, lane_words
from ..trace.sides import PAIR, one_side, sides

T = TypeVar("T")


@dataclass(frozen=True)
class Offence:
    """A violation in a trace: a race, a leak, or a token that no client may receive.

    ``sentence`` describes it, and a picture shows ``slices`` in red: those that caused it, by id.
    ``kind`` is a word of the check that found it. ``rid`` is its request, if it has one. ``time``
    is when it could first be seen, in nanoseconds. ``missing`` is the edge that should have been
    between two slices, or None. ``waits`` is the part of the second slice that has to wait, as a
    noun (``free``), if it is not the whole slice. ``cell`` is the contested memory, by resource and
    number (``kv 3``), and ``deeds`` has a phrase for each slice: "writes it for a".
    """

    sentence: str
    slices: tuple[int, ...] = ()
    kind: str = ""
    rid: str = ""
    time: int = 0
    missing: tuple[int, int] | None = None
    waits: str = ""
    cell: str = ""
    deeds: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.sentence


def kept(question: Callable[[Trace], T]) -> Callable[[Trace], T]:
    """Compute a function of a trace once: the result of the newest trace is kept."""
    newest: list[tuple[Trace, T]] = []

    @wraps(question)
    def ask(trace: Trace) -> T:
        """Return the kept result, or compute it."""
        for known, answer in newest:
            if known is trace:
                return answer
        answer = question(trace)
        newest[:] = [(trace, answer)]
        return answer

    return ask


# -- The order of a program: Lamport's happens-before, by vector clocks ----------------------------
#
# - A lane does its acts in order;
# - a launch comes before the op that it launches;
# - an op's end, or a signal, comes before each later act of a lane that waited for it.


class Done(NamedTuple):
    """An act that happened as the ``when``-th, at a ``moment`` of its lane.

    ``clock`` maps each lane to the last of its moments that surely precedes the act. ``launch`` is
    the launch of the act's op, if the act touches anything.
    """

    when: int
    act: Act
    moment: int
    clock: Mapping[str, int]
    launch: Done | None = None

    def is_before(self, other: Done) -> bool:
        """Return whether this act surely comes before another one."""
        lane = self.act.lane
        known = other.moment if other.act.lane == lane else other.clock.get(lane, 0)
        return self.moment <= known and self.when != other.when

    def is_unordered(self, other: Done) -> bool:
        """Return whether no order exists between the two acts."""
        return self.when != other.when and not (self.is_before(other) or other.is_before(self))

    def is_decided_before(self, other: Done) -> bool:
        """Return whether its launch (or the act, without one) precedes the other's."""
        return (self.launch or self).is_before(other.launch or other)


class PlayedOrder:
    """A program, replayed once in about the order of its slices.

    The acts of a lane stay in its order. A begin comes after the launch of its op, and a wait after
    the first end or signal that it waits for. Any other order with these properties gives the same
    happens-before; it only decides in which order two unordered acts are described.

    ``done`` are the acts in that order, and ``stuck`` maps each lane to the act that it never
    reaches. The host reads a step's tokens in the ``process`` slice of that step. That slice opens
    only after the host has waited for the copy, so a trace records the slice before it.
    """

    def __init__(self, program: Sequence[Act], slices: Iterable[Slice] = ()) -> None:
        self.done: list[Done] = []
        self.launched: dict[int, Done] = {}
        self.ended: dict[int, Done] = {}  # by op or signal; of a signal the first
        self.last: dict[str, Done] = {}  # by lane
        by_id = {item.id: item for item in slices}
        process = {(item.lane, item.step): item.id for item in by_id.values()
                   if item.name == "process" and item.step > 0}  # fmt: skip
        waited: dict[str, int] = {}  # the step of each lane's last wait
        places: dict[str, list[int]] = {}
        for at, act in enumerate(program):
            places.setdefault(act.lane, []).append(at)
        is_hosts = {lane: is_host(lane) for lane in places}
        here = dict.fromkeys(places, 0)
        clocks: dict[str, Mapping[str, int]] = {lane: {} for lane in places}
        held: defaultdict[tuple[bool, int], list[str]] = defaultdict(list)
        heap: list[tuple[int, int, str]] = []

        def push(lane: str, now: int) -> None:
            """Queue a lane's next act: by its slice's end, on a device by its op's start."""
            if here[lane] == len(places[lane]):
                return
            at = places[lane][here[lane]]
            act = program[at]
            ran = by_id.get(act.during if act.kind in ("launch", "wait", "say") else act.op)
            if ran is not None:
                now = max(now, ran.end if is_hosts[lane] or act.kind == "end" else ran.start)
            heapq.heappush(heap, (now, at, lane))

        for lane in places:
            push(lane, 0)
        while heap:
            now, at, lane = heapq.heappop(heap)
            act = program[at]
            kind, op = act.kind, act.op
            if kind in ("begin", "wait"):
                giver = (self.launched if kind == "begin" else self.ended).get(op)
                if giver is None:
                    held[kind == "begin", op].append(lane)
                    continue
                clocks[lane] = _learned(lane, clocks[lane], giver)
            here[lane] += 1
            if kind == "wait" and op in by_id:
                waited[lane] = by_id[op].step
            elif kind == "read" and is_hosts[lane] and "host output" in act.resource:
                reader = process.get((lane, waited.get(lane, 0)), op)
                act = Act(lane, kind, reader, act.resource, act.at, act.rid, act.during, act.step)
            launch = self.launched.get(op) if act.at or kind == "end" else None
            done = Done(len(self.done), act, here[lane], clocks[lane], launch)
            self.done.append(done)
            self.last[lane] = done
            if kind in ("launch", "end", "say"):
                (self.launched if kind == "launch" else self.ended).setdefault(op, done)
                for other in held.pop((kind == "launch", op), ()):
                    push(other, now)
            push(lane, now)
        left = {lane: [program[at] for at in places[lane][here[lane] :]] for lane in places}
        self.stuck = {lane: acts for lane, acts in left.items() if acts}


def _learned(lane: str, clock: Mapping[str, int], giver: Done) -> Mapping[str, int]:
    """Return a lane's clock after an act that depends on ``giver``: its begin, or its wait."""
    if giver.act.lane == lane or clock.get(giver.act.lane, 0) >= giver.moment:
        return clock
    known = dict(clock)
    for other, moment in giver.clock.items():
        if moment > known.get(other, 0):
            known[other] = moment
    known[giver.act.lane] = giver.moment
    return known


@kept
def order_of(trace: Trace) -> PlayedOrder:
    """Return the order of a trace's program; races, pending leaks and wrong tokens all use it."""
    return PlayedOrder(trace.program, trace.slices)


# -- The moment of a change of memory, in words: its step, its phase, its time ---------------------
#
# Marks have a time but no step. A step's memory is reserved before its mark ``commit``, and its
# result ends requests before its mark ``tokens``.


class MarkMoment(NamedTuple):
    """A moment of a run. ``step`` 0: no step; ``phase`` is empty if the trace does not show it.

    ``after`` is the newest step that was committed before. ``slices`` are the slices in which it
    happened, as far as they are known.
    """

    time: int  # nanoseconds
    step: int = 0
    after: int = 0
    phase: str = ""
    slices: tuple[int, ...] = ()

    def __str__(self) -> str:
        time = f"{self.time / 1e6:.6g} ms"
        about = f"{self.phase}, {time}" if self.phase else time
        if self.step:
            return f"in step {self.step} ({about})"
        return f"after step {self.after} was committed ({about})" if self.after else f"at {time}"


@kept
def heard(trace: Trace) -> dict[str, list[tuple[Mark, MarkMoment]]]:
    """Return each scheduler's marks with their moments; a single scheduler has the name ''."""
    return {side: list(moments(one_side(trace, side))) for side in sides(trace)}


def moments(trace: Trace) -> Iterator[tuple[Mark, MarkMoment]]:
    """Yield the marks of one scheduler, each with its moment.

    Rows and pages that the next step refers to were allocated for it. A request that ends by a
    token ends in the step that comes back next. The mark's ``during`` is its slice.
    """
    by_id = {item.id: item for item in trace.slices}
    ahead: list[tuple[int, tuple[int, ...], int]] = []  # the next commits, and the next results
    commit, rows, back = 0, tuple[int, ...](), 0
    for mark in reversed(trace.marks):
        if mark.name == "commit":
            commit, rows = int(mark.attrs["step"]), mark.attrs["rows"]
        elif mark.name == "tokens":
            back = int(mark.attrs["step"])
        ahead.append((commit, rows, back))
    after = 0
    for mark, (commit, rows, back) in zip(trace.marks, reversed(ahead), strict=True):
        said, item = mark.attrs.get("step", 0), by_id.get(mark.during)
        step = said if isinstance(said, int) else 0  # marks of unknown names may contain anything
        if mark.name in ("row alloc", "page alloc") and mark.attrs.get("row") in rows:
            step = commit
        elif mark.name == "finish" and mark.attrs.get("reason") in ("stop", "length"):
            step = back
        after = step if mark.name == "commit" else after
        phase, slices = (item.name, (item.id,)) if item else ("", ())
        yield mark, MarkMoment(mark.time, step or (item.step if item else 0), after, phase, slices)


# -- In words: the actor of an act, and the memory -------------------------------------------------

VALUE = "value"  # the result of an op: written by its end, read by the ops that take it
MOST_SPANS, MOST_PLACES = 4, 2  # in a sentence; fewer of those that take more words
ONES = {  # one cell of a resource
    "kv": "KV slot",
    "future map": "future slot",
    "last tokens": "last-token cell",
    "prev sampled": "sampled-token cell",
    "last sampled": "last-sampled cell",
    "input ids": "input-id cell",
}


def many(count: int, one: str, several: str = "") -> str:
    """Return ``1 leak`` or ``3 leaks``."""
    return f"{count} {one if count == 1 else several or one + 's'}"


def milliseconds(nanoseconds: int) -> str:
    """Return a time to read: ``2.2 ms``, to a thousandth of a millisecond."""
    return f"{round(nanoseconds / 1e6, 3):g} ms"


def plural(word: str, which: Iterable[int]) -> str:
    """Return ``page 3`` or ``pages 3-5``."""
    text = to_text(which)
    return f"{word} {text}" if text.isdecimal() else f"{word}s {text}"


@cache
def side_of(resource: str) -> tuple[str, str]:
    """Return the side of ``pd`` that a resource is on ('' without sides), and its name there."""
    side, _, rest = resource.partition(" ")
    return (side, rest) if side in PAIR else ("", resource)


class Words:
    """The words for one trace: ``op`` names the actor, ``cells`` the memory.

    A mark ``row length`` contains the number of cells in each row of a table. Without it, cells
    are numbered from the start of the resource.
    """

    def __init__(self, trace: Trace) -> None:
        self.slices: Mapping[int, Slice] = {item.id: item for item in trace.slices}
        self.row_lens = {
            f"{mark.attrs.get('side', '')} {name}".strip(): int(size)
            for mark in trace.marks
            if mark.name == "row length"
            for name, size in mark.attrs.items()
            if isinstance(size, int) and size > 0
        }

    def name(self, op: int) -> str:
        """Return the name of an op: ``copy``; empty without a slice."""
        return self.slices[op].name if op in self.slices else ""

    def step(self, op: int) -> int:
        """Return the step of an op; 0 if it has none."""
        return self.slices[op].step if op in self.slices else 0

    def shown(self, *ops: int) -> tuple[int, ...]:
        """Return those ops that have a slice, each once."""
        return tuple(op for op in dict.fromkeys(ops) if op in self.slices)

    def op(self, op: int, lane: str) -> str:
        """Return ``copy of step 3``, ``prepare of step 5 on the host``; ``op 17`` has no slice."""
        item = self.slices.get(op)
        if item is None:
            return f"{'call' if is_host(lane) else 'op'} {op}" if op else f"the {lane_words(lane)}"
        name = f"{item.name} of step {item.step}" if item.step else f"{item.name} ({op})"
        return f"{name} on the {lane}" if is_host(lane) else name

    def who(self, act: Act) -> str:
        """Return an op with its lane and requests: ``copy of step 3 (copy stream; r0, r1)``."""
        rids = act.rid or ", ".join(self.slices[act.op].rids if act.op in self.slices else ())
        about = [*([] if is_host(act.lane) else [lane_words(act.lane)]), *filter(None, [rids])]
        words = self.op(act.op, act.lane)
        return f"{words} ({'; '.join(about)})" if about else words

    def cells(self, resource: str, at: str) -> str:
        """Return cells in words of their resource: ``KV slots 3-7 9``, ``the inputs of step 4``.

        ``at`` has the form of an act's ``at``.
        """
        (side, name), spans = side_of(resource), sorted(set(spans_of(at)))
        size = self.row_lens.get(resource, 0)
        if name == VALUE:
            said = " and ".join(f"the value of {self.op(cell, '')}" for cell, _ in spans)
        elif name == "inputs":
            said = f"the inputs of {_listed('step', spans)}"
        elif buffer := re.fullmatch(r"(host )?output (\d+)", name):
            kind = "host" if buffer[1] else "device"
            said = f"{kind} output buffer {buffer[2]} ({_listed('cell', spans)})"
        elif name == "page table" and size:
            rows = [(first // size, last // size) for first, last in spans]
            said = f"{_listed('row', rows)} of the page table"
        elif name == "token pool":
            said = _listed("token-pool cell", spans, size)
        else:
            said = _listed(ONES.get(name) or f"{name} cell", spans)
        return f"{said} of the {side} side" if side else said


def _listed(one: str, spans: Iterable[Span], row_len: int = 0) -> str:
    """Return ``cell 3`` or ``cells 3-7 9``; of many spans the first, and the number of others.

    With ``row_len``, cells are shown by row and position: ``(row 2, positions 3-5)``.
    """
    spans, most = sorted(set(spans)), MOST_PLACES if row_len else MOST_SPANS
    is_one = len(spans) == 1 and spans[0][0] == spans[0][1]
    parts = [span_text(*span) for span in spans[:most]]
    for at, (first, last) in enumerate(spans[:most]) if row_len else ():
        (row, start), (last_row, end) = divmod(first, row_len), divmod(last, row_len)
        some = f"position{'' if start == end else 's'} {span_text(start, end)}"
        parts[at] = f"(row {row}, {some})"
        if row != last_row:
            parts[at] = f"(row {row}, position {start}) to (row {last_row}, position {end})"
    rest = sum(last - first + 1 for first, last in spans[most:])
    more = f" and {rest} more" if rest else ""
    return f"{one}{'' if is_one else 's'} {' '.join(parts)}{more}"
