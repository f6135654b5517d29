"""Reads traces of other programs: torch.profiler, Nsight Systems; and this one's Chrome export."""

from __future__ import annotations

import codecs
import collections
import itertools
import json
import math
import re
import sqlite3
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from io import BufferedIOBase
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from shutil import copyfileobj
from sys import intern
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

from ..trace import Counter, Edge, Mark, Slice, Trace
from ..trace.events import Value, is_host
from ..trace.files import GZIP, DamagedGzip, Hear, unheard, unpacked
from .history import BadMark, check_events
from .overlap import Interval, intersection

# -- Whether an event of a Chrome trace can be read; if not, a file is refused in a sentence -------


class BadEvent(ValueError):
    """What is wrong, in a few words that begin with the place: ``traceEvents[3] has ...``."""


def check_span(event: dict[str, Any], index: int) -> None:
    """Look at an ``X`` event: a beginning, a duration that is not negative, and arguments.

    Raises:
        BadEvent: one of them is missing or is something else.
    """
    for name, least in (("ts", -math.inf), ("dur", 0)):
        value: Any = event.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (math.isfinite(value) and value >= least):
            what = "a number" if name == "ts" else "a number of microseconds from 0"
            raise BadEvent(_said(event, index, name, what))
    if not isinstance(event.get("args") or {}, dict):
        raise BadEvent(_said(event, index, "args", "an object"))


def _said(event: dict[str, Any], index: int, name: str, what: str) -> str:
    if name not in event:
        return f"traceEvents[{index}] lacks {name!r}"
    shown = json.dumps(event[name])[:60]
    return f"traceEvents[{index}] has {name} = {shown}, but it must be {what}"


# -- Reads the JSON of a Chrome trace event by event, so that a large one need not be held whole
#
# A file of 200 MB has 600,000 events. As a list of dictionaries they take ten times the file; one
# at a time they take nothing, and whoever reads them keeps what he needs.

PIECE = 1 << 18  # bytes that are read at once; a value longer than that is read in more
NOT_OVER = 3  # characters at the end with which a number may go on: 1.5e-
SPACE = re.compile(r"[ \t\n\r]*")
EVENTS = "traceEvents"


class Damaged(ValueError):
    """It is not JSON; the message says why, and at which character."""


class JsonEvents:
    """The members of the list ``traceEvents``, or of the whole file where that is a list.

    It can be iterated over once. ``about`` has what else the object holds, as far as it was read;
    ``has_events`` says whether there was such a list.

    Raises:
        Damaged: while iterating.
    """

    def __init__(self, file: BufferedIOBase) -> None:
        self.about: dict[str, Any] = {}
        self.has_events = False
        self._file = file
        self._decoder: codecs.IncrementalDecoder | None = None
        self._text, self._at, self._gone = "", 0, 0  # what is held, and what was before it
        self._decode = json.JSONDecoder().raw_decode

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._whole()
            if self._peek():
                raise self._damage("Extra data")
        except UnicodeDecodeError as error:
            raise Damaged(f"{error.reason} after character {self._gone + self._at}") from None
        except RecursionError:
            raise Damaged("its brackets are nested too deeply") from None

    def _whole(self) -> Iterator[Any]:
        first = self._peek()
        if first == "[":
            yield from self._list()
        elif first != "{":
            self._value()
        elif self._next_is("{", "}"):
            while True:
                name = self._value() if self._peek() == '"' else None
                if name is None:
                    raise self._damage("Expecting property name enclosed in double quotes")
                if self._peek() != ":":
                    raise self._damage("Expecting ':' delimiter")
                self._at += 1
                if name == EVENTS and self._peek() == "[":
                    yield from self._list()
                else:
                    self.about[name] = self._value()
                if not self._goes_on("}"):
                    return

    def _list(self) -> Iterator[Any]:
        self.has_events = True
        if self._next_is("[", "]"):
            while True:
                yield self._value()
                if not self._goes_on("]"):
                    return

    def _next_is(self, opens: str, closes: str) -> bool:
        """Go into a bracket; whether anything is in it."""
        assert self._peek() == opens
        self._at += 1
        if self._peek() != closes:
            return True
        self._at += 1
        return False

    def _goes_on(self, closes: str) -> bool:
        """Whether a comma comes, or else what closes the bracket."""
        found = self._peek()
        if found not in (",", closes):
            raise self._damage("Expecting ',' delimiter")
        self._at += 1
        return found == ","

    def _value(self) -> Any:
        """The value that comes next, whatever it is."""
        self._peek()
        while True:
            try:
                found, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                at, said = error.pos + self._gone, error.msg
                if not self._more():
                    raise Damaged(f"{said} at character {at + 1}") from None
                continue
            is_cut = end + NOT_OVER >= len(self._text) and isinstance(found, int | float)
            if is_cut and self._more():
                continue
            self._at = end
            return found

    def _peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            match = SPACE.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Read on, twice as much each time that it was not enough; whether there was any more."""
        piece = self._file.read(max(PIECE, len(self._text) - self._at))
        if self._decoder is None:
            encoding = json.detect_encoding(piece)
            self._decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
        text = self._decoder.decode(piece, final=not piece)
        if not piece:
            return False
        self._gone += self._at
        self._text, self._at = self._text[self._at :] + text, 0
        return True

    def _damage(self, what: str) -> Damaged:
        return Damaged(f"{what} at character {self._gone + self._at + 1}")


# -- Reads back what ``export/chrome.py`` writes: slices, edges, counters and events of one run ----
#
# A program (what each lane did in its own order) is not in that format, so races can't be looked
# for.

HEADER = ("loop", "device", "model", "clock")
KNOWN = ("id", "phase", "step", "mode", "rids")
COUNTERS = {"next future slot": "future slots"}  # titles that are not the counter's name


def is_own(data: dict[str, Any]) -> bool:
    """Whether a Chrome trace is this program's."""
    about = data.get("otherData")
    return isinstance(about, dict) and set(HEADER) <= about.keys()


def own_trace(data: dict[str, Any]) -> Trace:
    """The trace in one.

    Raises:
        KeyError, TypeError, ValueError: an event is not as it was written.
    """
    about, events = data["otherData"], data["traceEvents"]
    lanes = {
        event["tid"]: lane_named(event["args"]["name"])
        for event in events
        if event.get("name") == "thread_name"
    }
    slices, edges, counters, marks = [], set(), [], []
    for event in events:
        if event["ph"] == "X":
            slices.append(_slice(event, lanes[event["tid"]]))
        elif event["ph"] == "s":
            ends = int(event["args"]["src"]), int(event["args"]["dst"])
            edges.add(Edge(*ends, str(event["name"])))
        elif event["ph"] == "C":
            counters.append(_counter(event))
        elif event["ph"] == "i":
            marks.append(_mark(event))
    slices.sort(key=lambda item: (item.start, item.end, item.id))
    ids = {item.id for item in slices}
    if lost := [edge for edge in edges if not {edge.src, edge.dst} <= ids]:
        raise ValueError(f"{lost[0]} names a slice that is not there")
    loop, device, model, clock = (str(about[name]) for name in HEADER)
    return Trace(
        loop, device, model, clock,
        tuple(slices), tuple(sorted(edges)), tuple(counters), tuple(marks),
        dtype=str(about.get("dtype", "")),
    )  # fmt: skip


def lane_named(title: str) -> str:
    """The lane that a picture calls so: ``Forward stream (device)`` is ``forward``."""
    name, _, side = title.rpartition(" (")
    if side == "host)" and name in ("Scheduler", "Process"):
        return "host"
    return name.lower().removesuffix(" stream")


def _slice(event: dict[str, Any], lane: str) -> Slice:
    args, start = event["args"], _ns(event["ts"])
    attrs = {key: value for key, value in args.items() if key not in KNOWN}
    # a schedule is shown with the step that it led to, but has none of its own
    step = 0 if args["phase"] == "schedule" else int(args["step"])
    rids = tuple(map(str, args["rids"]))
    duration = max(0, _ns(event["dur"]))
    return Slice(int(args["id"]), lane, str(args["phase"]), start, start + duration, step,
                 str(args["mode"]), rids, attrs)  # fmt: skip


def _mark(event: dict[str, Any]) -> Mark:
    attrs = dict(event["args"])
    if event["name"] == "wait":
        attrs["step"] = int(attrs["step"])  # what reads marks of this name relies on it
    return Mark(str(event["name"]), _ns(event["ts"]), attrs)


def _counter(event: dict[str, Any]) -> Counter:
    ((unit, value),) = event["args"].items()
    recorded = round(value * 1000) if unit == "ratio" else round(value)
    name = str(event["name"])
    return Counter(COUNTERS.get(name, name), _ns(event["ts"]), recorded)


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


# -- The host's lanes in a trace of a real engine: launches, blocking calls, and work between them

BLOCKS = re.compile(
    r"(cuda|hip)(Stream|Device|Event)Synchronize|cu(Stream|Event|Ctx)Synchronize"
    r"|(cuda|hip)Memcpy\w*(?<!Async)|cuMemcpy\w*(?<!Async)"
)
VERSION = re.compile(r"_v\d+(_ptsz|_ptds)?$")  # cudaLaunchKernel_v7000, as CUPTI names it


class Call(NamedTuple):
    """A call of the CUDA API by a thread of the host; times in nanoseconds."""

    thread: str
    name: str
    start: int
    end: int
    correlation: str  # that of the op it launched, if any


class HostLanes:
    """Makes the slices of all threads; ``op_ends`` is when what a correlation launched ended.

    A call that launches is a ``launch``, one that blocks until the device is done a ``wait``, and
    the rest of a thread's ranges is called as the outermost annotation around it, or ``work``. A
    copy that returns only after it has ended blocks too, whatever it is called: its memory was not
    pinned.
    """

    def __init__(self, op_ends: Mapping[str, int], numbers: Iterator[int]) -> None:
        self.op_ends, self.numbers = op_ends, numbers
        self.slices: list[Slice] = []
        self.launches: dict[str, int] = {}  # correlation -> the slice that launched it

    def add(self, lane: str, calls: Iterable[Call], ranges: Iterable[Range]) -> None:
        """One thread."""
        around, free = Around(ranges), 0
        for call in sorted(calls, key=lambda call: (call.start, -call.end)):
            if call.start < free and call.end <= free:  # a driver's call, of the runtime's
                if call.correlation in self.op_ends and self.launches:
                    newest = next(reversed(self.launches.values()))
                    self.launches.setdefault(call.correlation, newest)
                continue
            call = call._replace(start=max(call.start, free))  # microseconds in floats are rounded
            if made := self._slices_of(call, lane, around):
                self.slices += around.work(free, call.start, lane, self.numbers)
                self.slices += made
                free = call.end

    def _slices_of(self, call: Call, lane: str, around: Around) -> list[Slice]:
        """The launch, the wait, or both that a call is."""
        name = VERSION.sub("", call.name)
        ended = self.op_ends.get(call.correlation)
        returns_late = ended is not None and "Memcpy" in name and call.end >= ended
        blocks = returns_late or bool(BLOCKS.fullmatch(name))
        if ended is None and not blocks:
            return []
        attrs: dict[str, Value] = {"call": name, **around.named(call)}
        slices, ready = [], call.start
        if ended is not None:
            ready = call.start if blocks else call.end
            number = self.launches[call.correlation] = next(self.numbers)
            slices.append(Slice(number, lane, "launch", call.start, ready, attrs=attrs))
        if blocks:
            slices.append(Slice(next(self.numbers), lane, "wait", ready, call.end, attrs=attrs))
        return slices


class Around:
    """What else a thread said it was doing; it has to be asked in order of time."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self.ranges = sorted(ranges, key=lambda item: (item.start, -item.end))
        self.open: list[Range] = []
        self.opened = self.passed = 0
        self.covered: list[Interval] = []
        self.phases = Phases(self.ranges)
        for item in self.ranges:
            if self.covered and item.start <= self.covered[-1][1]:
                first, last = self.covered.pop()
                self.covered.append((first, max(last, item.end)))
            else:
                self.covered.append((item.start, item.end))

    def named(self, call: Call) -> dict[str, str]:
        """The operator that a call is in: the outermost of torch's own, or the innermost range."""
        while self.opened < len(self.ranges) and self.ranges[self.opened].start <= call.start:
            self.open.append(self.ranges[self.opened])
            self.opened += 1
        self.open = [item for item in self.open if item.end >= call.end]
        torch = [item.name for item in self.open if item.name.startswith("aten::")]
        within = torch[0] if torch else self.open[-1].name if self.open else ""
        return {"within": plain(within)} if within else {}

    def work(self, start: int, end: int, lane: str, numbers: Iterator[int]) -> Iterator[Slice]:
        """Slices for the time between two calls in which anything was said to go on."""
        while self.passed < len(self.covered) and self.covered[self.passed][1] <= start:
            self.passed += 1
        at = self.passed
        while at < len(self.covered) and self.covered[at][0] < end:
            for since, until in intersection((self.covered[at],), ((start, end),)):
                for name, first, last in self.phases.cut(since, until):
                    yield Slice(next(numbers), lane, name, first, last, attrs=self._around(first))
            at += 1

    def _around(self, start: int) -> dict[str, Value]:
        """The innermost function around a moment and the call that was last asked for."""
        found = [item for item in self.open if item.start <= start]
        return {"within": plain(found[-1].name)} if found else {}


def by_thread(items: Iterable[Call]) -> dict[str, list[Call]]:
    """Calls by the thread that made them."""
    found: defaultdict[str, list[Call]] = defaultdict(list)
    for item in items:
        found[item.thread].append(item)
    return found


def ranges_by_thread(items: Iterable[Range]) -> defaultdict[str, list[Range]]:
    """Ranges by the thread that was in them."""
    found: defaultdict[str, list[Range]] = defaultdict(list)
    for item in items:
        found[item.thread].append(item)
    return found


# -- An engine's steps, and the phases of a step, as their authors call them in annotations --------
#
# A *step* is one turn of an engine, from the launch of a batch's forward pass to its tokens. Who
# writes an engine says where one begins and ends, with ``torch.profiler.record_function``, an NVTX
# range, or both:
#
# - SGLang: ``scheduler.run_batch``, in it ``step[DECODE bs=32]``, ``step[EXTEND bs=15
# toks=15360]``, - vLLM: ``execute_context_3(128)_generation_2(2)``, also ``execute_5_context_..``
# with the sums of   the attention's lengths in the brackets, and ``execute_new_1_cached_2``, -
# TensorRT-LLM: ``[Executor] _forward_step 7: 1 ctx reqs, ..``, - anybody: ``step``, ``step 12``,
# ``iteration#3``, and ``ProfilerStep#3`` of ``torch.profiler``.
#
# A name that the user gives goes before all of them. What else is annotated inside of a step are
# its phases; the outermost one counts.

WORK = "work"  # where nothing is annotated
COUNTED = re.compile(r"[\s#:_-]*\d+$")  # forward 12, forward#12: one phase, however often
NOISE = re.compile(
    r", (op_id|seq) = \d+.*$| object at 0x[0-9a-f]+|^.*/(?=[^/]+\.py\(\d+\): )", re.DOTALL
)
TAKEN = frozenset({"wait", "receive"})  # of our own traces: blocked, or asleep until somebody comes

# what marks a step, and what it is called in a sentence; a kind is used if none above it is there
ENGINES = (
    (re.compile(r"scheduler\.run_batch"), "scheduler.run_batch"),
    (re.compile(r"execute_(\d+_)?context_.+|execute_new_\d+_cached_\d+"), "execute_…"),
    (re.compile(r"step\[.*"), "step[…]"),
    (re.compile(r"\[Executor\] _forward_step \d+.*"), "_forward_step …"),
)
ANYBODY = ((re.compile(r"(step|iteration)[\s#:_-]*\d*", re.IGNORECASE), "step"),)
OF_PROFILER = "ProfilerStep"  # around everything, so that as a phase it says nothing
PROFILER = ((re.compile(r"ProfilerStep(#\d+)?\*?"), OF_PROFILER),)
KINDS = (ENGINES, ANYBODY, PROFILER)


class Range(NamedTuple):
    """Anything else that a thread said it was doing: an operator, an annotation, a function.

    ``is_annotation`` where the engine's authors named it: ``record_function``, an NVTX range.
    """

    thread: str
    name: str
    start: int
    end: int
    is_annotation: bool = False


class Phase(NamedTuple):
    """An outermost annotation, its number left off; times in nanoseconds."""

    name: str
    start: int
    end: int


@lru_cache(1 << 12)
def plain(name: str) -> str:
    """A range's name without numbers of operators (``emit_nvtx``), addresses and folders."""
    return NOISE.sub("", name)


@lru_cache(1 << 12)
def step_named(name: str) -> str:
    """What the step is called that a range of this name marks; empty: it marks none."""
    name = plain(name)
    return next((said for kind in KINDS for what, said in kind if what.fullmatch(name)), "")


def namer(pattern: str) -> list[Callable[[str], bool]]:
    """What may mark a step, the best first: ``pattern`` alone, if there is one.

    A pattern is a name in full; ``*`` in it stands for any text.
    """
    if pattern:
        wanted = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
        return [lambda name: bool(wanted.fullmatch(plain(name)))]
    return [_any_of(tuple(what for what, _ in kind)) for kind in KINDS]


def _any_of(whats: tuple[re.Pattern[str], ...]) -> Callable[[str], bool]:
    return lambda name: any(what.fullmatch(plain(name)) for what in whats)


class Phases:
    """Which phase a thread was in; it has to be asked in order of time."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        ranges = list(ranges)
        steps = (item for item in ranges if step_named(item.name) not in ("", OF_PROFILER))
        self.layers = [_Layer(outermost(ranges)), _Layer(_outermost(steps, step_named))]

    def cut(self, start: int, end: int) -> Iterator[Phase]:
        """The time from ``start`` to ``end``, cut where a phase begins or ends.

        What no phase of a step is around has the step's own name, and is ``work`` outside of one.
        """
        for phase in self.layers[0].cut(start, end):
            yield from self.layers[1].cut(*phase[1:]) if phase.name == WORK else (phase,)


class _Layer:
    """Phases of which none is in another one."""

    def __init__(self, phases: Iterable[Phase]) -> None:
        self.phases = list(phases)
        self.passed = 0

    def cut(self, start: int, end: int) -> Iterator[Phase]:
        """The same, with ``work`` wherever there is none."""
        while self.passed < len(self.phases) and self.phases[self.passed].end <= start:
            self.passed += 1
        at = self.passed
        while at < len(self.phases) and self.phases[at].start < end:
            name, since, until = self.phases[at]
            if start < since:
                yield Phase(WORK, start, since)
            yield Phase(name, max(start, since), min(until, end))
            start = min(until, end)
            at += 1
        if start < end:
            yield Phase(WORK, start, end)


def outermost(ranges: Iterable[Range]) -> Iterator[Phase]:
    """The annotations that are in no other one but in a step; ``ranges`` by their start."""

    def named(name: str) -> str:
        name = plain(name)
        if step_named(name) or name.startswith("aten::"):
            return ""
        name = COUNTED.sub("", name)
        return f"{name} (annotated)" if name in TAKEN else name

    return _outermost((item for item in ranges if item.is_annotation), named)


def _outermost(ranges: Iterable[Range], named: Callable[[str], str]) -> Iterator[Phase]:
    free: int | None = None
    for item in ranges:
        if (free is None or item.start >= free) and (name := named(item.name)):
            yield Phase(name, item.start, item.end)
            free = item.end


# -- Steps in a trace of a real engine, which has no numbers for them ------------------------------
#
# Where its authors marked them (``phases.py``), a step is what a thread launched inside of such a
# range. A launch of a CUDA or HIP graph is none: one forward pass may be one graph, or one for each
# piece between two layers that can't be captured.
#
# Where nothing is marked, a step may show as what is repeated: the same launches in the same order,
# each time until the tokens come to the host (a copy to it; if nothing is ever copied, a call that
# blocks until the device is done). That is believed only if the repetition goes on to the end of
# the recording, at least for the third time there. Layers that bring something to the host are
# repeated too, but what ends a forward pass comes after the last of them.
#
# Else it is unknown what a step is, and the sentence tells how to mark one.

LEAST = 3  # repetitions, the last of which may have been cut off
MOST_NAMED = 3  # ranges in a sentence
HOW = (
    "A step is one turn of an engine, from the launch of a batch's forward pass to its tokens, and "
    "a launch of a graph alone is none. Mark each one with "
    'torch.profiler.record_function("step") or an NVTX range "step", or name the range that is '
    "around each one with --step"
)
OWN_STEPS = "--step is for traces of other programs: this one's own numbers its steps itself."


class NoSuchRange(LookupError):
    """``--step`` names nothing in the trace; the message is one sentence."""


class FoundSteps(NamedTuple):
    """The step of each slice that has one, and a sentence on what was taken for a step."""

    steps: dict[int, int]
    sentence: str


def find_steps(
    slices: Sequence[Slice],
    edges: set[Edge],
    ranges: Mapping[str, Sequence[Range]],
    pattern: str = "",
) -> FoundSteps:
    """The steps of those lanes that launch forward passes; ``ranges`` by lane of the host.

    Raises:
        NoSuchRange: in no range that ``pattern`` names anything was launched.
    """
    launched: defaultdict[int, list[Slice]] = defaultdict(list)
    index = {item.id: item for item in slices}
    for edge in sorted(edges):
        launched[edge.src].append(index[edge.dst])
    lanes: defaultdict[str, list[Slice]] = defaultdict(list)  # what launches or blocks
    for item in sorted(slices, key=lambda item: (item.start, item.end, item.id)):
        if item.lane.endswith("host") and (item.id in launched or item.name == "wait"):
            lanes[item.lane].append(item)
    for is_mark in namer(pattern):
        marks = {
            lane: _marks(items, ranges.get(lane, ()), is_mark) for lane, items in lanes.items()
        }
        if any(marks.values()):
            calls = {lane: _inside(lanes[lane], found) for lane, found in marks.items()}
            return FoundSteps(_with_ops(calls, launched), _marked_sentence(marks))
    if pattern:
        raise NoSuchRange(
            f"--step {pattern} names no range around a launch.{_instead(lanes, ranges)}"
        )
    units = {lane: _repeated(items, launched) for lane, items in lanes.items()}
    if any(units.values()):
        return FoundSteps(_with_ops(units, launched), _repeated_sentence(units, launched))
    return FoundSteps({}, f"{HOW}.{_instead(lanes, ranges)}" if lanes else "")


def _marks(
    launches: list[Slice], ranges: Sequence[Range], is_mark: Callable[[str], bool]
) -> list[Range]:
    """The outermost marks around a launch of a lane, in order of time."""
    starts = [item.start for item in launches]
    found: list[Range] = []
    free: int | None = None
    for item in sorted(ranges, key=lambda item: (item.start, -item.end)):
        if (free is None or item.start >= free) and is_mark(item.name):
            free = item.end
            if bisect_left(starts, item.start) < bisect_right(starts, item.end):
                found.append(item)
    return found


def _inside(launches: list[Slice], marks: list[Range]) -> dict[int, list[Slice]]:
    """What was launched inside of each mark, by the number of its step."""
    starts = [item.start for item in launches]
    return {
        step: launches[bisect_left(starts, mark.start) : bisect_right(starts, mark.end)]
        for step, mark in enumerate(marks, 1)
    }


def _repeated(items: list[Slice], launched: Mapping[int, list[Slice]]) -> dict[int, list[Slice]]:
    """The launches of each repetition, by its number; nothing, if the lane repeats nothing."""
    copies = any(op.name == "copy" for item in items for op in launched.get(item.id, ()))
    parts: list[list[Slice]] = [[]]
    has_kernel, done = False, 0
    for item in items:
        ops = launched.get(item.id, [])
        if ops or not copies:
            parts[-1].append(item)
        is_result = item.name == "wait" and item.end >= done
        if copies:
            is_result = any(op.name == "copy" for op in ops)
        done = max([done, *(op.end for op in ops)])
        kernels = (op for op in ops if op.lane.endswith("forward") and op.name != "copy")
        has_kernel = has_kernel or any(kernels)
        if is_result and has_kernel:
            parts.append([])
            has_kernel = False
    *whole, rest = [[_symbol(item, launched) for item in part] for part in parts]
    for period in range(1, len(whole) // (LEAST - 1) + 1):
        same = 0
        while same < len(whole) - period and whole[-1 - same] == whole[-1 - same - period]:
            same += 1
        count = (same + period) // period
        if count + bool(rest) >= LEAST and rest == whole[-period][: len(rest)]:
            first = len(whole) - count * period
            ends = range(first, len(parts), period)
            groups = [[item for part in parts[at : at + period] for item in part] for at in ends]
            return {step: group for step, group in enumerate(groups, 1) if group}
    return {}


def _symbol(item: Slice, launched: Mapping[int, list[Slice]]) -> tuple[object, ...]:
    """What two launches have to share to be the same one, repeated."""
    ops = launched.get(item.id, [])
    return item.name, *((op.lane, op.name, str(op.attrs.get("kernel", ""))) for op in ops)


def _with_ops(
    calls: Mapping[str, Mapping[int, list[Slice]]], launched: Mapping[int, list[Slice]]
) -> dict[int, int]:
    """The steps of calls, and of what they launched."""
    steps: dict[int, int] = {}
    for by_step in calls.values():
        for step, items in by_step.items():
            for item in items:
                if ops := launched.get(item.id):
                    steps[item.id] = step
                    steps |= {op.id: step for op in ops}
    return steps


def _marked_sentence(marks: Mapping[str, list[Range]]) -> str:
    every = [plain(mark.name) for found in marks.values() for mark in found]
    one = "one" if len(every) == 1 else f"{len(every)}, the first of which is"
    return f"A step here is what is launched inside of a marked range; it has {one}: {every[0]}."


def _repeated_sentence(
    units: Mapping[str, Mapping[int, list[Slice]]], launched: Mapping[int, list[Slice]]
) -> str:
    steps = max(units.values(), key=len)
    length = sum(item.id in launched for item in steps[1])
    what = "the same launch" if length == 1 else f"the same {length} launches"
    copies = any(op.name == "copy" for item in steps[1] for op in launched.get(item.id, ()))
    end = "a copy to the host" if copies else "a call that blocks the host"
    return (
        f"No step is marked; taken for one is what is repeated to the end, {len(steps)} times: "
        f"{what} up to {end}."
    )


def _instead(lanes: Mapping[str, list[Slice]], ranges: Mapping[str, Sequence[Range]]) -> str:
    """The annotations that there are, the most frequent first, as a sentence that follows."""
    names: collections.Counter[str] = collections.Counter()
    for lane in lanes:
        every = (plain(item.name) for item in ranges.get(lane, ()) if item.is_annotation)
        names.update(name for name in every if not name.startswith("aten::"))
    found = [f"{name}, {count} times" for name, count in names.most_common(MOST_NAMED)]
    return f" The most frequent ranges are {'; '.join(found)}." if found else ""


def results(slices: list[Slice]) -> list[Edge]:
    """From the last op that ended while a thread was blocked, to what that thread did next."""
    done = sorted((item.end, item.id) for item in slices if not is_host(item.lane))
    ends = [end for end, _ in done]
    lanes: defaultdict[str, list[Slice]] = defaultdict(list)
    for item in slices:
        if is_host(item.lane):
            lanes[item.lane].append(item)
    edges = []
    for items in lanes.values():
        for wait, after in pairwise(items):
            at = bisect_left(ends, wait.end + 1) - 1
            if wait.name == "wait" and at >= 0 and ends[at] > wait.start:
                edges.append(Edge(done[at][1], after.id, "result"))
    return edges


# -- A trace of a real engine, put together from what a profiler saw: ops and calls of threads -----
#
# The readers (``chrome.py`` for torch.profiler, ``nsys.py`` for Nsight Systems) only
# say what is in a file; here it becomes lanes, steps and edges.

KERNEL, TO_HOST, TO_DEVICE = "forward", "copy", "upload"  # what ops are called; others: as they are


class NotAProfile(ValueError):
    """A file that no reader understands; the message is one sentence that says why."""


class DeviceOp(NamedTuple):
    """What ran on a stream; times in nanoseconds."""

    stream: str
    kind: str
    name: str
    start: int
    end: int
    correlation: str  # that of the call that launched it; empty: unknown


@dataclass
class Seen:
    """What a file holds; ``source`` is the profiler that wrote it."""

    source: str
    ops: list[DeviceOp] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)


@dataclass(frozen=True)
class Foreign:
    """A trace of another engine, and a sentence for each thing that its file lacks.

    ``steps`` is a sentence on what was taken for a step; empty: the file numbers them itself.
    """

    trace: Trace
    lacks: tuple[str, ...]
    steps: str = ""


def build(seen: Seen, step: str = "") -> Foreign:
    """The trace of what was seen; ``step`` names the ranges that are steps (``phases.namer``).

    The busiest stream is ``forward``, its launcher ``host``. Of several devices, each has these
    lanes, with its own name before: ``device 0 forward``, ``device 0 host``.

    Raises:
        NoSuchRange: in no range that ``step`` names anything was launched.
    """
    numbers = itertools.count(1)
    lanes = dict(lanes_of(seen.ops))
    ordered = sorted(seen.ops, key=lambda op: (op.start, op.end, op.stream))
    ops = {next(numbers): op for op in ordered}
    host = HostLanes({op.correlation: op.end for op in ordered if op.correlation}, numbers)
    threads, ranges = dict(threads_of(seen, lanes)), ranges_by_thread(seen.ranges)
    for thread, calls in by_thread(seen.calls).items():
        host.add(threads[thread], calls, ranges[thread])
    edges = {
        Edge(host.launches[op.correlation], number, "launch")
        for number, op in ops.items()
        if op.correlation in host.launches
    }
    named: dict[str, dict[str, Value]] = {op.name: {"kernel": op.name} for op in ordered}
    slices = [
        Slice(number, lanes[op.stream], op.kind, op.start, op.end, attrs=named[op.name])
        for number, op in ops.items()
    ]
    slices += host.slices
    by_lane = {lane: ranges[thread] for thread, lane in threads.items()}
    found = find_steps(slices, edges, by_lane, step)
    for item in slices:
        item.step = found.steps.get(item.id, 0)
    slices = from_zero(slices)
    edges |= set(results(slices))
    device = platform_of(seen) if ops else "cpu"
    in_order = tuple(sorted(edges, key=attrgetter("src", "dst", "kind")))
    trace = Trace(seen.source, device, "", "wall", tuple(slices), in_order, (), ())
    return Foreign(trace, tuple(lacks(trace)), found.sentence)


def platform_of(seen: Seen) -> str:
    """Whose calls a trace has: AMD's are HIP's."""
    return "HIP" if any(call.name.startswith("hip") for call in seen.calls) else "CUDA"


def from_zero(slices: list[Slice]) -> list[Slice]:
    """The slices, which nobody else has, in order, on a clock that begins with the first."""
    zero = min((item.start for item in slices), default=0)
    for item in slices:
        item.start, item.end = item.start - zero, max(item.start, item.end) - zero
    return sorted(slices, key=attrgetter("start", "end", "id"))


def lanes_of(ops: list[DeviceOp]) -> Iterator[tuple[str, str]]:
    """The lane of each stream: where most kernels run is ``forward``, a stream of copies a copy."""
    busy: collections.Counter[str] = collections.Counter()
    kinds: defaultdict[str, collections.Counter[str]] = defaultdict(collections.Counter)
    for op in ops:
        busy[op.stream] += (op.end - op.start) * (op.kind == KERNEL)
        kinds[op.stream][op.kind] += 1
    devices: defaultdict[str, list[str]] = defaultdict(list)
    for stream in kinds:
        devices[device_of(stream)].append(stream)
    for device, streams in devices.items():
        forward = max(streams, key=lambda stream: (busy[stream], kinds[stream].total()))
        for stream in streams:
            found = kinds[stream]
            if stream == forward:
                yield stream, f"{device} forward" if len(devices) > 1 else "forward"
            elif found[TO_HOST] and not found[KERNEL]:
                yield stream, f"{stream} copy"
            else:
                yield stream, stream


def device_of(stream: str) -> str:
    """The device that a stream is on: ``device 0`` has ``device 0 stream 7``."""
    return stream.partition(" stream ")[0]


def threads_of(seen: Seen, lanes: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The lane of each thread that calls the API: who launches most of ``forward`` is ``host``."""
    forwards = {op.correlation: lanes[op.stream] for op in seen.ops if op.correlation}
    launched: defaultdict[str, collections.Counter[str]] = defaultdict(collections.Counter)
    for call in seen.calls:
        if (lane := forwards.get(call.correlation, "")).endswith("forward"):
            launched[lane][call.thread] += 1
    hosts: dict[str, str] = {}
    for lane, threads in launched.items():
        hosts.setdefault(threads.most_common(1)[0][0], lane.removesuffix("forward") + "host")
    for thread in {call.thread for call in seen.calls}:
        yield thread, hosts.get(thread, f"{thread} thread")


def lacks(trace: Trace) -> Iterator[str]:
    """What a file does not carry."""
    if not any("kernel" in item.attrs for item in trace.slices):
        yield "It has no GPU lanes: only the CPU was profiled."
        return
    if not any(edge.kind == "launch" for edge in trace.edges):
        yield "It has no launches: nothing says which call of the host started which op."
    if not any(item.name == "wait" for item in trace.slices):
        yield "It has no blocking calls: where the host waited cannot be seen."


# -- Reads the Chrome trace that ``torch.profiler`` exports, and this program's own Chrome export
#
# ``export_chrome_trace`` writes ``X`` events with ``cat``: ``kernel``, ``gpu_memcpy`` and
# ``gpu_memset`` on streams (``args``: ``device``, ``stream``, ``correlation``), ``cuda_runtime``
# and ``cuda_driver`` calls on threads with the same ``correlation``, and ``cpu_op``,
# ``user_annotation``, ``python_function`` around them. Times are microseconds.

DEVICE_OPS = {"kernel", "gpu_memcpy", "gpu_memset"}
CALLS = {"cuda_runtime", "cuda_driver", "hip_runtime", "runtime", "driver"}
RANGES = {"cpu_op", "user_annotation", "python_function", "operator"}
NEITHER = (
    '{} is neither a minisched trace (it lacks "format": "minisched trace") nor a Chrome trace of '
    "a profiler ({})."
)


def read_chrome(path: Path, step: str = "", hear: Hear = unheard) -> Foreign:
    """The trace in a Chrome trace file, perhaps compressed with gzip; ``step`` as in ``build``.

    Only what is used of an event is kept; this program's own export is read whole. ``hear`` is told
    how many bytes of the file were read.

    Raises:
        NotATrace: it is not one; the message is one sentence.
        NoSuchRange: ``step`` names nothing in it.
        OSError: it cannot be read.
    """
    own: list[dict[str, Any]] = []
    seen = Seen("torch.profiler")
    try:
        with unpacked(path, hear) as file:
            events = JsonEvents(file)
            for index, event in enumerate(events):
                if not isinstance(event, dict):
                    raise NotAProfile(NEITHER.format(path, "it lacks a list of traceEvents"))
                if is_own(events.about):
                    own.append(event)
                else:
                    see(event, index, seen)
        if is_own(events.about) and events.has_events:
            if step:
                raise NoSuchRange(OWN_STEPS)
            return Foreign(_own({**events.about, EVENTS: own}), ())
        if seen.ops or seen.calls or seen.ranges:
            return build(seen, step)
    except (NotAProfile, NoSuchRange):
        raise
    except Damaged as error:
        raise NotAProfile(f"{path} is not a Chrome trace: it is not JSON ({error}).") from None
    except DamagedGzip as error:
        raise NotAProfile(f"{path} is not a Chrome trace: {error.strerror}.") from None
    except KeyError as error:
        raise NotAProfile(f"{path} is a damaged Chrome trace: an event lacks {error}.") from None
    except (BadEvent, BadMark) as error:
        raise NotAProfile(f"{path} is a damaged Chrome trace: {error}.") from None
    except (TypeError, ValueError, AttributeError, OverflowError):
        what = "an event has a value that cannot be read"
        raise NotAProfile(f"{path} is a damaged Chrome trace: {what}.") from None
    lack = "it has no op, call or range" if events.has_events else "it lacks a list of traceEvents"
    raise NotAProfile(NEITHER.format(path, lack))


def _own(data: dict[str, Any]) -> Trace:
    """The trace in this program's own export, its events checked.

    Raises:
        KeyError, TypeError, ValueError: an event is not as it was written.
    """
    for index, event in enumerate(data["traceEvents"]):
        if event.get("ph") == "X":
            check_span(event, index)
    trace = own_trace(data)
    check_events(trace.slices, trace.marks)
    return trace


def seen_in(events: Iterable[dict[str, Any]]) -> Seen:
    """What a profiler's events say.

    Raises:
        BadEvent: one has no time, or no duration, or is of no thread.
    """
    seen = Seen("torch.profiler")
    for index, event in enumerate(events):
        see(event, index, seen)
    return seen


def see(event: dict[str, Any], index: int, seen: Seen) -> None:
    """Add what one event says, if it is of use; texts that come again are kept once.

    Raises:
        BadEvent: it has no time, or no duration, or is of no thread.
    """
    cat = str(event.get("cat", "")).lower()
    if event.get("ph") != "X" or cat not in DEVICE_OPS | CALLS | RANGES:
        return
    check_span(event, index)
    if cat not in DEVICE_OPS and "tid" not in event:
        raise BadEvent(f"traceEvents[{index}] lacks 'tid'")
    start = round(event["ts"] * 1000)
    end = start + round(event["dur"] * 1000)
    args, name = event.get("args") or {}, intern(str(event.get("name", "")))
    correlation = intern(str(args.get("correlation", args.get("Correlation ID", ""))))
    if cat in DEVICE_OPS:
        place = f"device {args.get('device', event.get('pid'))}"
        place += f" stream {args.get('stream', event.get('tid'))}"
        kind = _kind(cat, name)
        seen.ops.append(DeviceOp(intern(place), kind, name, start, end, correlation))
    elif cat in CALLS:
        seen.calls.append(Call(intern(f"{event['tid']}"), name, start, end, correlation))
    else:
        is_annotation = cat == "user_annotation"
        seen.ranges.append(Range(intern(f"{event['tid']}"), name, start, end, is_annotation))


def _kind(cat: str, name: str) -> str:
    if cat == "kernel":
        return KERNEL
    if "DtoH" in name or "Device -> Host" in name or "DeviceToHost" in name:
        return TO_HOST
    return TO_DEVICE if "HtoD" in name or "HostToDevice" in name else cat.removeprefix("gpu_")


# -- Reads what ``nsys export --type sqlite`` writes, with the standard library's sqlite3 ----------
#
# Tables are there only if the profile has such events: ``CUPTI_ACTIVITY_KIND_KERNEL``, ``_MEMCPY``
# (``copyKind`` 1 is host to device, 2 device to host), ``_MEMSET``, ``_GRAPH_TRACE`` (one row a
# launch, where graphs were not traced node by node), ``_RUNTIME`` (calls, with the
# ``correlationId`` of what they launched), ``NVTX_EVENTS`` and ``StringIds``. Times are
# nanoseconds; a ``globalTid`` has the process in bits 24 to 47 and the thread below.

MAGIC = b"SQLite format 3\x00"
CUPTI = "CUPTI_ACTIVITY_KIND_"
COPIES = {1: TO_DEVICE, 2: TO_HOST}
TABLES = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")


def read_nsys(path: Path, step: str = "", hear: Hear = unheard) -> Foreign:
    """The trace in an exported report, perhaps compressed with gzip; ``step`` as in ``build``.

    Raises:
        NotATrace: it is not one; the message is one sentence.
        NoSuchRange: ``step`` names nothing in it.
        OSError: it cannot be read, or not be unpacked beside temporary files.
    """
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
    if start.startswith(GZIP):
        with unpacked(path, hear) as packed, NamedTemporaryFile(suffix=".sqlite") as plain:
            copyfileobj(packed, plain)
            plain.flush()
            return _in_database(Path(plain.name), path, step)
    if start != MAGIC:
        raise NotAProfile(f"{path} is not an SQLite database.")
    return _in_database(path, path, step)


def seen_by_nsys(path: Path) -> Seen:
    """What is in an exported report, call by call.

    Raises:
        NotATrace: it is not one; the message is one sentence.
    """
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        return _seen(Tables(database), path)


def _in_database(file: Path, path: Path, step: str) -> Foreign:
    """The trace in a database; ``path`` is what the user calls it."""
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return build(_seen(Tables(database), path), step)
    except KeyError as error:
        what = f"a table lacks column {error}"
        raise NotAProfile(f"{path} is a damaged Nsight Systems export: {what}.") from None
    except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
        raise NotAProfile(f"{path} is a damaged Nsight Systems export: {error}.") from None


class Tables:
    """Rows of tables that may not be there, as dictionaries."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        database.row_factory = sqlite3.Row
        rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.names = {str(row["name"]) for row in rows}

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Every row of a table; nothing if there is no such table."""
        if name in self.names:
            for row in self.database.execute(f'SELECT * FROM "{name}"'):
                yield dict(row)


def _seen(tables: Tables, path: Path) -> Seen:
    if not any(name.startswith(CUPTI) or name == "NVTX_EVENTS" for name in tables.names):
        raise NotAProfile(
            f"{path} is no Nsight Systems export: it has no {CUPTI}* table and no NVTX_EVENTS."
        )
    texts = {row["id"]: str(row["value"]) for row in tables.rows("StringIds")}
    seen = Seen("nsys")
    for kind in TABLES:
        seen.ops += [_op(row, kind, texts) for row in tables.rows(CUPTI + kind)]
    for row in tables.rows(CUPTI + "RUNTIME"):
        name = texts.get(row.get("nameId"), "")
        thread, key = _thread(row), _correlation(row, "globalTid")
        seen.calls.append(Call(thread, name, *_span(row), key))
    for row in tables.rows("NVTX_EVENTS"):
        if row.get("end") is not None:
            name = row.get("text") or texts.get(row.get("textId"), "")
            seen.ranges.append(Range(_thread(row), str(name), row["start"], row["end"], True))
    return seen


def _op(row: dict[str, Any], kind: str, texts: dict[int, str]) -> DeviceOp:
    name = texts.get(row.get("shortName") or row.get("demangledName") or -1, kind.lower())
    stream = f"device {row.get('deviceId', 0)} stream {row.get('streamId', 0)}"
    is_copy = kind == "MEMCPY"
    what = COPIES.get(row.get("copyKind", 0), "memcpy") if is_copy else KERNEL
    what = "memset" if kind == "MEMSET" else what
    return DeviceOp(stream, what, name, *_span(row), _correlation(row, "globalPid"))


def _span(row: dict[str, Any]) -> tuple[int, int]:
    """When a row starts and ends.

    Raises:
        KeyError: it has no such column.
        ValueError: they are no whole numbers, or it ends before it starts.
    """
    start, end = row["start"], row["end"]
    if not (isinstance(start, int) and isinstance(end, int) and start <= end):
        raise ValueError(f"a row has start = {start!r:.60} and end = {end!r:.60}")
    return start, end


def _thread(row: dict[str, Any]) -> str:
    return str((row.get("globalTid") or 0) & 0xFFFFFF)


def _correlation(row: dict[str, Any], process: str) -> str:
    """Correlation ids count from 1 in every process."""
    number = row.get("correlationId")
    return f"{(row.get(process) or 0) >> 24 & 0xFFFFFF}:{number}" if number else ""


__all__ = ["Foreign", "NotAProfile", "read_foreign"]


def read_foreign(path: Path, step: str = "", hear: Hear = unheard) -> Foreign:
    """The trace in a file of torch.profiler, of Nsight Systems, or of ``export/chrome.py``.

    What a file is, is seen by how it begins, whatever its name; it may be compressed with gzip.
    ``step`` is the name of the ranges that are steps, with ``*`` for any text, and ``hear`` is told
    how many bytes were read.

    Raises:
        NotATrace: it is none of them, or damaged, or has no such range; the message is one
            sentence.
        OSError: it cannot be read.
    """
    try:
        return _read(path, step, hear)
    except NoSuchRange as error:
        raise NotAProfile(f"{path}: {error}") from None


def _read(path: Path, step: str, hear: Hear) -> Foreign:
    try:
        with unpacked(path) as file:
            start = file.read(len(MAGIC))
    except DamagedGzip as error:
        raise NotAProfile(f"{path} is no trace: {error.strerror}.") from None
    if start == MAGIC:
        return read_nsys(path, step, hear)
    if start.lstrip()[:1] in (b"{", b"["):
        return read_chrome(path, step, hear)
    if path.suffix == ".nsys-rep":
        raise NotAProfile(
            f"{path} is a report of Nsight Systems: export it first, with "
            f"nsys export --type sqlite {path.name}."
        )
    raise NotAProfile(
        f"{path} is no trace: neither a minisched trace, nor a Chrome trace (JSON, perhaps in "
        "gzip), nor an SQLite export of Nsight Systems."
    )
