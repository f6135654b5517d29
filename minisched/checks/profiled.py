"""What a profiler saw of a real engine, as a trace: lanes, launches, steps and phases.

``foreign.py`` reads files and says only what is in them (``Seen``): what ran on streams, which
calls threads made, and what else they said they were doing.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from ..trace import Edge, Slice, Trace
from ..trace.events import Value

KERNEL, TO_HOST, TO_DEVICE = "forward", "copy", "upload"  # what ops are called; others: as they are


class DeviceOp(NamedTuple):
    """What ran on a stream; times in nanoseconds."""

    stream: str
    kind: str
    name: str
    start: int
    end: int
    correlation: str  # that of the call that launched it; empty: unknown


class Call(NamedTuple):
    """A call of the CUDA API by a thread of the host; times in nanoseconds."""

    thread: str
    name: str
    start: int
    end: int
    correlation: str  # that of the op it launched, if any


class Range(NamedTuple):
    """Anything else that a thread said it was doing: an operator, an annotation, a function.

    ``is_annotation`` where the engine's authors named it: ``record_function``, an NVTX range.
    """

    thread: str
    name: str
    start: int
    end: int
    is_annotation: bool = False


@dataclass
class Seen:
    """What a file holds; ``source`` is the profiler that wrote it."""

    source: str
    ops: list[DeviceOp] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)


# -- What ranges say: where a step begins and ends, and what the host was at in between ------------
#
# A *step* is one turn of an engine, from the launch of a batch's forward pass to its tokens. Who
# writes an engine says where one begins and ends, with ``torch.profiler.record_function``, an NVTX
# range, or both:
#
# - SGLang: ``scheduler.run_batch``, in it ``step[DECODE bs=32]``, ``step[EXTEND bs=15 ..]``;
# - vLLM: ``execute_context_3(128)_generation_2(2)``, also ``execute_5_context_..`` with the sums of
#   the attention's lengths in the brackets, and ``execute_new_1_cached_2``;
# - TensorRT-LLM: ``[Executor] _forward_step 7: 1 ctx reqs, ..``;
# - anybody: ``step``, ``step 12``, ``iteration#3``, and ``ProfilerStep#3`` of ``torch.profiler``.
#
# A name that the user gives goes before all of them. What else is annotated are phases; the
# outermost one counts.

WORK = "work"  # where nothing is annotated
COUNTED = re.compile(r"[\s#:_-]*\d+$")  # forward 12, forward#12: one phase, however often
NOISE = re.compile(
    r", (op_id|seq) = \d+.*$| object at 0x[0-9a-f]+|^.*/(?=[^/]+\.py\(\d+\): )", re.DOTALL
)
TAKEN = frozenset({"wait", "receive"})  # of our own traces: blocked, or asleep until somebody comes
STEPS = (  # engines', anybody's, the profiler's: a kind is used if none above it is around a launch
    re.compile(
        r"scheduler\.run_batch|step\[.*|execute_(\d+_)?context_.+|execute_new_\d+_cached_\d+"
        r"|\[Executor\] _forward_step \d+.*"
    ),
    re.compile(r"(step|iteration)[\s#:_-]*\d*", re.IGNORECASE),
    re.compile(r"ProfilerStep(#\d+)?\*?"),
)


class Phase(NamedTuple):
    """What a thread was at; times in nanoseconds."""

    name: str
    start: int
    end: int


@lru_cache(1 << 12)
def plain(name: str) -> str:
    """A range's name without numbers of operators (``emit_nvtx``), addresses and folders."""
    return NOISE.sub("", name)


@lru_cache(1 << 12)
def is_step(name: str) -> bool:
    """Whether an engine's authors call a step so."""
    return any(kind.fullmatch(plain(name)) for kind in STEPS)


@lru_cache(1 << 12)
def phase_named(name: str) -> str:
    """What the phase is called that an annotation of this name is; empty: it is none."""
    name = plain(name)
    if is_step(name) or name.startswith("aten::"):
        return ""
    name = COUNTED.sub("", name)
    return f"{name} (annotated)" if name in TAKEN else name


def phases_of(ranges: Sequence[Range]) -> Iterator[Phase]:
    """What a thread was at while it was in any range at all; ``ranges`` are by their start.

    The outermost annotation that is no step, and ``work`` where there is none.
    """
    covered: list[tuple[int, int]] = []
    for item in ranges:
        if covered and item.start <= covered[-1][1]:
            covered[-1] = covered[-1][0], max(covered[-1][1], item.end)
        else:
            covered.append((item.start, item.end))
    named = deque[Phase]()
    for item in ranges:
        is_outermost = not named or item.start >= named[-1].end
        if item.is_annotation and is_outermost and (name := phase_named(item.name)):
            named.append(Phase(name, item.start, item.end))
    for start, end in covered:
        while named and named[0].start < end:
            phase = named.popleft()
            if start < phase.start:
                yield Phase(WORK, start, phase.start)
            yield phase
            start = phase.end
        if start < end:
            yield Phase(WORK, start, end)


# -- The host's lanes in a trace of a real engine: launches, blocking calls, and work between them

BLOCKS = re.compile(
    r"(cuda|hip)(Stream|Device|Event)Synchronize|cu(Stream|Event|Ctx)Synchronize"
    r"|(cuda|hip)Memcpy\w*(?<!Async)|cuMemcpy\w*(?<!Async)"
)
VERSION = re.compile(r"_v\d+(_ptsz|_ptds)?$")  # cudaLaunchKernel_v7000, as CUPTI names it


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

    def add(self, lane: str, calls: Iterable[Call], ranges: Sequence[Range]) -> None:
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

    def __init__(self, ranges: Sequence[Range]) -> None:
        self.ranges = ranges  # by their start
        self.open: list[Range] = []
        self.opened = self.passed = 0
        self.phases = list(phases_of(self.ranges))

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
        while self.passed < len(self.phases) and self.phases[self.passed].end <= start:
            self.passed += 1
        for name, since, until in islice(self.phases, self.passed, None):
            if since >= end:
                return
            first, last = max(since, start), min(until, end)
            inner = [item.name for item in self.open if item.start <= first]
            attrs: dict[str, Value] = {"within": plain(inner[-1])} if inner else {}
            yield Slice(next(numbers), lane, name, first, last, attrs=attrs)


# -- Steps, which a file has no numbers for: what was launched inside of a range that marks one ----
#
# A launch of a CUDA or HIP graph is none: one forward pass may be one graph, or one for each piece
# between two layers that can't be captured. Where no range marks a step, the sentence tells how to.

MOST_NAMED = 3  # ranges in a sentence
HOW = (
    "A step is one turn of an engine, from the launch of a batch's forward pass to its tokens, and "
    "a launch of a graph alone is none. Mark each one with "
    'torch.profiler.record_function("step") or an NVTX range "step", or name the range that is '
    "around each one with --step"
)


class NoSuchRange(LookupError):
    """``--step`` names nothing in the trace; the message is one sentence."""


def find_steps(
    launched: Mapping[int, Sequence[int]],
    lanes: Mapping[str, Sequence[Slice]],
    ranges: Mapping[str, Sequence[Range]],
    pattern: str = "",
) -> tuple[dict[int, int], str]:
    """The step of each slice that has one, and a sentence on what was taken for a step.

    ``lanes`` are the launches of each lane of a host, and ``ranges`` its ranges, both by their
    start; ``launched`` is what a launch started, by ids. ``pattern`` is the name in full of the
    ranges that are steps; ``*`` in it stands for any text.

    Raises:
        NoSuchRange: in no range that ``pattern`` names anything was launched.
    """
    wanted = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    for kind in (wanted,) if pattern else STEPS:
        steps, marks = dict[int, int](), list[str]()
        for lane, items in lanes.items():
            starts, free, number = [item.start for item in items], 0, 0
            for mark in ranges.get(lane, ()):
                if mark.start < free or not kind.fullmatch(name := plain(mark.name)):
                    continue
                free = mark.end
                inside = items[bisect_left(starts, mark.start) : bisect_right(starts, mark.end)]
                number += bool(inside)
                marks += [name] if inside else []
                for item in inside:
                    steps |= dict.fromkeys((item.id, *launched[item.id]), number)
        if marks:
            one = "one" if len(marks) == 1 else f"{len(marks)}, the first of which is"
            what = "A step here is what is launched inside of a marked range"
            return steps, f"{what}; it has {one}: {marks[0]}."
    names = Counter(
        name for lane in lanes for item in ranges.get(lane, ())
        if item.is_annotation and not (name := plain(item.name)).startswith("aten::")
    )  # fmt: skip
    often = "; ".join(f"{name}, {count} times" for name, count in names.most_common(MOST_NAMED))
    instead = f" The most frequent ranges are {often}." if often else ""
    if pattern:
        raise NoSuchRange(f"--step {pattern} names no range around a launch.{instead}")
    return {}, f"{HOW}.{instead}" if lanes else ""


# -- The trace: lanes, steps and edges -------------------------------------------------------------


@dataclass(frozen=True)
class Foreign:
    """A trace of another engine, and a sentence for each thing that its file lacks.

    ``steps`` is a sentence on what was taken for a step; empty: the file numbers them itself.
    """

    trace: Trace
    lacks: tuple[str, ...]
    steps: str = ""


def build(seen: Seen, step: str = "") -> Foreign:
    """The trace of what was seen; ``step`` names the ranges that are steps.

    The busiest stream is ``forward``, its launcher ``host``. Of several devices, each has these
    lanes, with its own name before: ``device 0 forward``, ``device 0 host``.

    Raises:
        NoSuchRange: in no range that ``step`` names anything was launched.
    """
    numbers, lanes = itertools.count(1), dict(lanes_of(seen.ops))
    ordered = sorted(seen.ops, key=lambda op: (op.start, op.end, op.stream))
    ops = {next(numbers): op for op in ordered}
    host = HostLanes({op.correlation: op.end for op in ordered if op.correlation}, numbers)
    calls: defaultdict[str, list[Call]] = defaultdict(list)
    ranges: defaultdict[str, list[Range]] = defaultdict(list)  # both by thread
    for call in seen.calls:
        calls[call.thread].append(call)
    for item in sorted(seen.ranges, key=lambda item: (item.start, -item.end)):
        ranges[item.thread].append(item)
    threads = dict(threads_of(seen, lanes))
    for thread, made in calls.items():
        host.add(threads[thread], made, ranges[thread])
    launched: defaultdict[int, list[int]] = defaultdict(list)
    for number, op in ops.items():
        if op.correlation in host.launches:
            launched[host.launches[op.correlation]].append(number)
    named: dict[str, dict[str, Value]] = {op.name: {"kernel": op.name} for op in ordered}
    slices = host.slices + [
        Slice(number, lanes[op.stream], op.kind, op.start, op.end, attrs=named[op.name])
        for number, op in ops.items()
    ]
    slices.sort(key=attrgetter("start", "end", "id"))
    hosts: defaultdict[str, list[Slice]] = defaultdict(list)
    for one in slices:
        if one.lane.endswith("host") and one.id in launched:
            hosts[one.lane].append(one)
    by_lane = {lane: ranges[thread] for thread, lane in threads.items()}
    steps, sentence = find_steps(launched, hosts, by_lane, step)
    zero = slices[0].start if slices else 0
    for one in slices:  # which nobody else has; its clock begins with the first
        one.step = steps.get(one.id, 0)
        one.start, one.end = one.start - zero, max(one.start, one.end) - zero
    edges = {Edge(src, dst, "launch") for src, every in launched.items() for dst in every}
    in_order = tuple(sorted(edges, key=attrgetter("src", "dst")))
    is_hip = any(call.name.startswith("hip") for call in seen.calls)  # AMD's calls
    device = ("HIP" if is_hip else "CUDA") if ops else "cpu"
    trace = Trace(seen.source, device, "", "wall", tuple(slices), in_order, (), ())
    return Foreign(trace, tuple(lacks(trace)), sentence)


def lanes_of(ops: list[DeviceOp]) -> Iterator[tuple[str, str]]:
    """The lane of each stream: where most kernels run is ``forward``, a stream of copies a copy."""
    busy: Counter[str] = Counter()
    kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for op in ops:
        busy[op.stream] += (op.end - op.start) * (op.kind == KERNEL)
        kinds[op.stream][op.kind] += 1
    devices: defaultdict[str, list[str]] = defaultdict(list)
    for stream in kinds:
        devices[stream.partition(" stream ")[0]].append(stream)
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


def threads_of(seen: Seen, lanes: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The lane of each thread that calls the API: who launches most of ``forward`` is ``host``."""
    forwards = {op.correlation: lanes[op.stream] for op in seen.ops if op.correlation}
    launched: defaultdict[str, Counter[str]] = defaultdict(Counter)
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
