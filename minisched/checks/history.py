"""What a trace tells, before anybody asks whether it is right: the ground of all questions.

- the order of its program: what comes before what, whatever the clock says (``PlayedOrder``);
- the moments of its marks, as a reader would say them;
- the words for who did something, and for the memory that it was done to.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import NamedTuple, TypeVar

from ..trace import Act, Mark, Slice, Trace
from ..trace.cells import Span, spans_of
from ..trace.events import is_host, lane_words
from ..trace.recorder import span_text, to_text
from ..trace.sides import PAIR, one_side, sides

T = TypeVar("T")


@dataclass(frozen=True)
class Offence:
    """Something that is not as it should be: a race, a leak, a token that nobody may hear.

    ``sentence`` tells it, and a picture shows ``slices`` in red: those that did it, by id.
    ``kind`` is a word of the question that found it, ``rid`` whose it is, where it is somebody's,
    and ``time`` when it could first be seen, in nanoseconds. ``missing`` is the edge that should
    have been between two slices, or None; ``waits`` is what of the second one has to wait, as a
    noun, where it is not all of it: ``free``.
    """

    sentence: str
    slices: tuple[int, ...] = ()
    kind: str = ""
    rid: str = ""
    time: int = 0
    missing: tuple[int, int] | None = None
    waits: str = ""

    def __str__(self) -> str:
        return self.sentence


def kept(question: Callable[[Trace], T]) -> Callable[[Trace], T]:
    """Answer a question about a trace once: for the newest trace the answer is kept."""
    newest: list[tuple[Trace, T]] = []

    @wraps(question)
    def ask(trace: Trace) -> T:
        """The answer that is known, or a new one."""
        for known, answer in newest:
            if known is trace:
                return answer
        answer = question(trace)
        newest[:] = [(trace, answer)]
        return answer

    return ask


# -- What comes before what in a program: Lamport's happens-before, by vector clocks ---------------
#
# - A lane does one thing after the other;
# - a launch comes before the op that it launches;
# - an op's end, or what was said, comes before whatever follows on a lane that waited for it.


class Done(NamedTuple):
    """An act that happened as the ``when``-th, at a ``moment`` of its lane.

    ``clock`` is, by lane, the last of its moments that surely had been; ``launch`` is the launch of
    its op, if the act touches anything.
    """

    when: int
    act: Act
    moment: int
    clock: Mapping[str, int]
    launch: Done | None = None

    def is_before(self, other: Done) -> bool:
        """Whether it surely comes before another one."""
        lane = self.act.lane
        known = other.moment if other.act.lane == lane else other.clock.get(lane, 0)
        return self.moment <= known and self.when != other.when

    def is_unordered(self, other: Done) -> bool:
        """Whether nothing says which of the two comes first."""
        return self.when != other.when and not (self.is_before(other) or other.is_before(self))

    def is_decided_before(self, other: Done) -> bool:
        """Whether its launch, or it itself where nobody launches it, comes before the other's."""
        return (self.launch or self).is_before(other.launch or other)


class PlayedOrder:
    """A program, played once in about the order of its slices.

    A lane's acts stay in its order. A begin comes after the op's launch, and a wait after the first
    end or say of what it waits for. Any other order that keeps to this would do as well: who comes
    before whom is not taken from it, but two acts that nothing orders are told as they came.

    ``done`` are the acts in that order, and ``stuck`` is what each lane never gets to. What the
    host reads of a step's tokens, it reads in the ``process`` of that step: that opens only when
    the host has waited for the copy, so a trace notes the slice before.
    """

    def __init__(self, program: Sequence[Act], slices: Iterable[Slice] = ()) -> None:
        self.done: list[Done] = []
        self.launched: dict[int, Done] = {}
        self.ended: dict[int, Done] = {}  # by op or signal; of a signal the first
        self.last: dict[str, Done] = {}  # of each lane
        by_id = {item.id: item for item in slices}
        process = {(item.lane, item.step): item.id for item in by_id.values()
                   if item.name == "process" and item.step > 0}  # fmt: skip
        waited: dict[str, int] = {}  # the step that a lane waited for last
        places: dict[str, list[int]] = {}
        for at, act in enumerate(program):
            places.setdefault(act.lane, []).append(at)
        is_hosts = {lane: is_host(lane) for lane in places}
        here = dict.fromkeys(places, 0)
        clocks: dict[str, Mapping[str, int]] = {lane: {} for lane in places}
        held: defaultdict[tuple[bool, int], list[str]] = defaultdict(list)
        heap: list[tuple[int, int, str]] = []

        def push(lane: str, now: int) -> None:
            """Its next act: the host does things by the end of a slice, an op from its start."""
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
                act = replace(act, op=process.get((lane, waited.get(lane, 0)), op))
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
    """What a lane knows once it has begun, or waited for, what ``giver`` launched or ended."""
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
    """The order of a trace's program: races, pending leaks and wrong tokens all ask it."""
    return PlayedOrder(trace.program, trace.slices)


# -- When something happened to memory, as a reader would say it: which step, which phase, what time
#
# Marks have a time and no step. A step's memory is reserved before the mark ``commit`` of that
# step, and what its result ends is ended before its mark ``tokens``.


@dataclass(frozen=True)
class MarkMoment:
    """A moment of a run. ``step`` 0: of none; ``phase`` is empty where the trace does not say.

    ``after`` is the newest step that was committed before. ``slices`` are the slices in which it
    happened, as well as is known.
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
    """The marks of each scheduler, each with its moment; a scheduler that is alone has no name."""
    return {side: list(moments(one_side(trace, side))) for side in sides(trace)}


def moments(trace: Trace) -> Iterator[tuple[Mark, MarkMoment]]:
    """The marks of one scheduler alone, each with its moment.

    Rows and pages that the next step names were taken for it. Whoever ends by a token does so in
    the step that is about to come back. Which slice it was in is what the mark says (``during``).
    """
    by_id = {item.id: item for item in trace.slices}
    ahead: list[tuple[int, list[int], int]] = []  # the next to be committed, and to come back
    commit, rows, back = 0, list[int](), 0
    for mark in reversed(trace.marks):
        if mark.name == "commit":
            commit, rows = int(mark.attrs["step"]), numbers(mark.attrs["rows"])
        elif mark.name == "tokens":
            back = int(mark.attrs["step"])
        ahead.append((commit, rows, back))
    after = 0
    for mark, (commit, rows, back) in zip(trace.marks, reversed(ahead), strict=True):
        said, item = mark.attrs.get("step", 0), by_id.get(mark.during)
        step = said if isinstance(said, int) else 0  # marks of unknown names may say anything
        if mark.name in ("row alloc", "page alloc") and mark.attrs.get("row") in rows:
            step = commit
        elif mark.name == "finish" and mark.attrs.get("reason") in ("stop", "length"):
            step = back
        after = step if mark.name == "commit" else after
        phase, slices = (item.name, (item.id,)) if item else ("", ())
        yield mark, MarkMoment(mark.time, step or (item.step if item else 0), after, phase, slices)


def numbers(text: object) -> list[int]:
    """The whole numbers in a mark's text."""
    return [int(word) for word in str(text).split() if word.isdecimal()]


# -- In words: who did it, and to what memory ------------------------------------------------------

VALUE = "value"  # what an op gives: written by its end, read by the ops that take it
MOST_SPANS, MOST_PLACES = 4, 2  # that a sentence names; of those that take more words fewer
ONES = {  # one cell of a resource
    "kv": "KV slot",
    "future map": "future slot",
    "last tokens": "last-token cell",
    "prev sampled": "sampled-token cell",
    "input ids": "input-id cell",
}


def many(count: int, one: str, several: str = "") -> str:
    """``1 leak`` or ``3 leaks``."""
    return f"{count} {one if count == 1 else several or one + 's'}"


def milliseconds(nanoseconds: int) -> str:
    """A time to read: ``2.2 ms``, to a thousandth of a millisecond."""
    return f"{round(nanoseconds / 1e6, 3):g} ms"


def plural(word: str, which: Iterable[int]) -> str:
    """``page 3`` or ``pages 3-5``."""
    text = to_text(which)
    return f"{word} {text}" if text.isdecimal() else f"{word}s {text}"


def side_of(resource: str) -> tuple[str, str]:
    """The side of ``pd`` that a resource is on, if there are two, and its name there."""
    side, _, rest = resource.partition(" ")
    return (side, rest) if side in PAIR else ("", resource)


class Words:
    """The words for one trace: ``op`` for who did it, ``cells`` for what it was done to.

    A mark ``row length`` says how many cells each row of a resource has that is a table; without
    it, cells are numbered through.
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
        """What an op is: ``copy``; empty without a slice."""
        return self.slices[op].name if op in self.slices else ""

    def step(self, op: int) -> int:
        """The step of an op; 0 if it has none."""
        return self.slices[op].step if op in self.slices else 0

    def shown(self, *ops: int) -> tuple[int, ...]:
        """Those of them that have a slice, each once."""
        return tuple(op for op in dict.fromkeys(ops) if op in self.slices)

    def op(self, op: int, lane: str) -> str:
        """``copy of step 3``; ``prepare of step 5 on the host``; ``op 17`` without a slice."""
        item = self.slices.get(op)
        if item is None:
            return f"{'call' if is_host(lane) else 'op'} {op}" if op else f"the {lane_words(lane)}"
        name = f"{item.name} of step {item.step}" if item.step else f"{item.name} ({op})"
        return f"{name} on the {lane}" if is_host(lane) else name

    def who(self, act: Act) -> str:
        """The op with its lane and its requests: ``copy of step 3 (copy stream; r0, r1)``."""
        rids = act.rid or ", ".join(self.slices[act.op].rids if act.op in self.slices else ())
        about = [*([] if is_host(act.lane) else [lane_words(act.lane)]), *filter(None, [rids])]
        words = self.op(act.op, act.lane)
        return f"{words} ({'; '.join(about)})" if about else words

    def cells(self, resource: str, at: str) -> str:
        """Some cells in the words of their resource: ``KV slots 3-7 9``, ``the inputs of step 4``.

        ``at`` is as in an act.
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
    """``cell 3``, ``cells 3-7 9``; of many spans the first few, and how many cells more.

    With ``row_len``, by row and position: ``(row 2, positions 3-5)``.
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
