"""What a profiler saw of a real engine, as a trace: lanes, launches, steps and phases.

``foreign.py`` reads files and says only what is in them (``SeenEvent``): what ran on streams,
which calls threads made, and what else they said they were doing.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from ..trace import Edge, Slice, Trace
from ..trace.events import Value
from .answers import Recorded
from .causes import WORK

KERNEL, TO_HOST, TO_DEVICE = "forward", "copy", "upload"  # what ops are called; others: as they are
CALL = "call"  # of the CUDA API, by a thread of the host
RANGE = "range"  # anything else that a thread said it was doing: an operator, a function
ANNOTATION = "annotation"  # the same where the engine's authors named it: an NVTX range


class SeenEvent(NamedTuple):
    """An op on a stream, or a call or a range of a thread; times in nanoseconds.

    An op and the call that launched it have the same ``correlation``; empty: unknown.
    """

    place: str  # the stream, or the thread
    kind: str
    name: str
    start: int
    end: int
    correlation: str = ""


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

NUMBERED = re.compile(r"[\s#:_-]*\d+$")  # forward 12, forward#12: one phase, however often
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


@lru_cache(1 << 12)
def plain(name: str) -> str:
    """A range's name without numbers of operators (``emit_nvtx``), addresses and folders."""
    return NOISE.sub("", name)


@lru_cache(1 << 12)
def is_step(name: str) -> bool:
    """Whether an engine's authors call a step so."""
    return any(kind.fullmatch(plain(name)) for kind in STEPS)


@lru_cache(1 << 12)
def without_number(name: str) -> str:
    """Return a range's name for sums over steps: ``ProfilerStep#3`` without its number."""
    return NUMBERED.sub("", plain(name)) if is_step(name) else plain(name)


@lru_cache(1 << 12)
def phase_named(name: str) -> str:
    """What the phase is called that an annotation of this name is; empty: it is none."""
    name = plain(name)
    if is_step(name) or name.startswith("aten::"):
        return ""
    name = NUMBERED.sub("", name)
    return f"{name} (annotated)" if name in TAKEN else name


def phases_of(ranges: Sequence[SeenEvent]) -> Iterator[tuple[str, int, int]]:
    """What a thread was at while it was in any range at all; ``ranges`` are by their start.

    The outermost annotation that is no step, and ``work`` where there is none.
    """
    covered = list[list[int]]()
    named = deque[tuple[str, int, int]]()
    for item in ranges:
        if covered and item.start <= covered[-1][1]:
            covered[-1][1] = max(covered[-1][1], item.end)
        else:
            covered.append([item.start, item.end])
        is_outermost = not named or item.start >= named[-1][2]
        if item.kind == ANNOTATION and is_outermost and (name := phase_named(item.name)):
            named.append((name, item.start, item.end))
    for start, end in covered:
        while named and named[0][1] < end:
            name, since, until = named.popleft()
            if start < since:
                yield WORK, start, since
            yield name, since, until
            start = until
        if start < end:
            yield WORK, start, end


# -- The host's lanes in a trace of a real engine: launches, blocking calls, and work between them

BLOCKS = re.compile(
    r"(cuda|hip)(Stream|Device|Event)Synchronize|cu(Stream|Event|Ctx)Synchronize"
    r"|(cuda|hip)Memcpy\w*(?<!Async)|cuMemcpy\w*(?<!Async)"
)
VERSION = re.compile(r"_v\d+(_ptsz|_ptds)?$")  # cudaLaunchKernel_v7000, as CUPTI names it


def host_slices(
    lane: str, calls: Iterable[SeenEvent], ranges: Sequence[SeenEvent], op_ends: Mapping[str, int],
    launches: dict[str, int], numbers: Iterator[int],
) -> Iterator[Slice]:  # fmt: skip
    """What a thread did; ``op_ends`` is when what a correlation launched ended.

    A call that launches is a ``launch`` and goes into ``launches``, by correlation; one that blocks
    until the device is done is a ``wait``; and the rest of the thread's ranges, which are by their
    start, is called as the outermost annotation around it, or ``work``. A copy that returns only
    after it has ended blocks too, whatever it is called: its memory was not pinned.
    """
    phases, free = deque(phases_of(ranges)), 0
    inside, opened = list[SeenEvent](), 0  # the ranges around a call; those that have begun by then
    for call in sorted(calls, key=lambda call: (call.start, -call.end)):
        start = max(call.start, free)  # microseconds in floats are rounded
        name, ended = VERSION.sub("", call.name), op_ends.get(call.correlation)
        if call.start < free and call.end <= free:  # a driver's call, of the runtime's
            if ended is not None and launches:
                launches.setdefault(call.correlation, next(reversed(launches.values())))
            continue
        returns_late = ended is not None and "Memcpy" in name and call.end >= ended
        blocks = returns_late or bool(BLOCKS.fullmatch(name))
        if ended is None and not blocks:
            continue
        while opened < len(ranges) and ranges[opened].start <= start:
            inside.append(ranges[opened])
            opened += 1
        inside = [item for item in inside if item.end >= call.end]
        while phases and phases[0][2] <= free:
            phases.popleft()
        for phase, since, until in phases:
            if since >= start:
                break
            first = max(since, free)
            inner = [item.name for item in inside if item.start <= first]
            work = Slice(next(numbers), lane, phase, first, min(until, start))
            work.attrs |= {"within": without_number(inner[-1])} if inner else {}
            yield work
        torch = [item.name for item in inside if item.name.startswith("aten::")]
        around = torch[:1] or [item.name for item in inside if not is_step(item.name)][-1:]
        attrs = {"call": name}
        if around:  # the outermost operator of torch's own, or the innermost range
            attrs["within"] = plain(around[0])
        ready = call.end if ended is not None and not blocks else start
        if ended is not None:
            number = launches[call.correlation] = next(numbers)
            yield Slice(number, lane, "launch", start, ready, attrs={**attrs})
        if blocks:
            yield Slice(next(numbers), lane, "wait", ready, call.end, attrs={**attrs})
        free = call.end


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
    ranges: Mapping[str, Sequence[SeenEvent]],
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
        if item.kind == ANNOTATION and not (name := plain(item.name)).startswith("aten::")
    )  # fmt: skip
    often = "; ".join(f"{name}, {count} times" for name, count in names.most_common(MOST_NAMED))
    instead = f" The most frequent ranges are {often}." if often else ""
    if pattern:
        raise NoSuchRange(f"--step {pattern} names no range around a launch.{instead}")
    return {}, f"{HOW}.{instead}" if lanes else ""


# -- The trace: lanes, steps and edges -------------------------------------------------------------


def build(path: Path, profiler: str, seen: Iterable[SeenEvent], step: str = "") -> Recorded:
    """The trace of what a profiler has seen; ``step`` names the ranges that are steps.

    The busiest stream is ``forward``, its launcher ``host``. Of several devices, each has these
    lanes, with its own name before: ``device 0 forward``, ``device 0 host``.

    Raises:
        NoSuchRange: in no range that ``step`` names anything was launched.
    """
    calls: defaultdict[str, list[SeenEvent]] = defaultdict(list)
    ranges: defaultdict[str, list[SeenEvent]] = defaultdict(list)  # both by thread
    ran = list[SeenEvent]()
    for item in seen:
        if item.kind == CALL:
            calls[item.place].append(item)
        elif item.kind in (RANGE, ANNOTATION):
            ranges[item.place].append(item)
        else:
            ran.append(item)
    for said in ranges.values():
        said.sort(key=lambda item: (item.start, -item.end))
    ran.sort(key=attrgetter("start", "end", "place"))
    numbers, lanes = itertools.count(1), dict(lanes_of(ran))
    ops = {next(numbers): op for op in ran}
    named: dict[str, dict[str, Value]] = {op.name: {"kernel": op.name} for op in ran}
    slices = [
        Slice(number, lanes[op.place], op.kind, op.start, op.end, attrs=named[op.name])
        for number, op in ops.items()
    ]
    threads, launches = dict(threads_of(calls, ran, lanes)), dict[str, int]()
    op_ends = {op.correlation: op.end for op in ran if op.correlation}
    for thread, made in calls.items():
        slices += host_slices(threads[thread], made, ranges[thread], op_ends, launches, numbers)
    slices.sort(key=attrgetter("start", "end", "id"))
    launched: defaultdict[int, list[int]] = defaultdict(list)
    for number, op in ops.items():
        if op.correlation in launches:
            launched[launches[op.correlation]].append(number)
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
    is_hip = any(call.name.startswith("hip") for made in calls.values() for call in made)  # AMD's
    device = ("HIP" if is_hip else "CUDA") if ops else "cpu"
    trace = Trace(profiler, device, "", "wall", tuple(slices), tuple(sorted(edges)), (), ())
    return Recorded(str(path), trace, tuple(lacks(trace)), sentence)


def lanes_of(ops: Iterable[SeenEvent]) -> Iterator[tuple[str, str]]:
    """The lane of each stream: where most kernels run is ``forward``, a stream of copies a copy."""
    busy: Counter[str] = Counter()
    kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for op in ops:
        busy[op.place] += (op.end - op.start) * (op.kind == KERNEL)
        kinds[op.place][op.kind] += 1
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


def threads_of(
    calls: Mapping[str, Sequence[SeenEvent]], ops: Iterable[SeenEvent], lanes: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """The lane of each thread that calls the API: who launches most of ``forward`` is ``host``."""
    forwards = {op.correlation: lanes[op.place] for op in ops if op.correlation}
    launched: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for thread, made in calls.items():
        for call in made:
            if (lane := forwards.get(call.correlation, "")).endswith("forward"):
                launched[lane][thread] += 1
    hosts: dict[str, str] = {}
    for lane, threads in launched.items():
        hosts.setdefault(threads.most_common(1)[0][0], lane.removesuffix("forward") + "host")
    for thread in calls:
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
