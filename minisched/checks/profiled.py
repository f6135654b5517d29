"""A profiler's view of a real engine as a trace: lanes, launches, steps and phases.

``foreign.py`` reads files and yields only their events (``SeenEvent``): ops on streams, calls of
threads, and ranges around them.
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
from sys import intern
from typing import NamedTuple

from ..record import Value
from ..trace import Edge, Slice, Trace
from .answers import Recorded
from .causes import WORK

KERNEL, TO_HOST, TO_DEVICE = "forward", "copy", "upload"  # names of ops; others keep their own
CALL = "call"  # of the CUDA API, by a thread of the host
RANGE = "range"  # any other activity of a thread: an operator, a function
ANNOTATION = "annotation"  # a range that the engine's authors named: an NVTX range


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


# -- Ranges: they mark steps, and the phases of the host in between --------------------------------
#
# A *step* is one turn of an engine, from the launch of a batch's forward pass to its tokens. An
# engine marks its begin and end with ``torch.profiler.record_function``, an NVTX range, or both:
#
# - SGLang: ``scheduler.run_batch``, in it ``step[DECODE bs=32]``, ``step[EXTEND bs=15 ..]``;
# - vLLM: ``execute_context_3(128)_generation_2(2)``, also ``execute_5_context_..`` with the sums of
#   the attention's lengths in the brackets, and ``execute_new_1_cached_2``;
# - TensorRT-LLM: ``[Executor] _forward_step 7: 1 ctx reqs, ..``;
# - any engine: ``step``, ``step 12``, ``iteration#3``, and ``ProfilerStep#3`` of torch.profiler.
#
# A name that the user gives comes before all of them. Other annotations are phases; the outermost
# one counts.

NUMBERED = re.compile(r"[\s#:_-]*\d+$")  # forward 12, forward#12: numbers of one phase
NOISE = re.compile(
    r", (op_id|seq) = \d+.*$| object at 0x[0-9a-f]+|^.*/(?=[^/]+\.py\(\d+\): )", re.DOTALL
)
TAKEN = frozenset({"wait", "receive"})  # of our own traces: blocked, or waiting for a request
STEPS = (  # engines', any engine's, the profiler's; the first kind around a launch is used
    re.compile(
        r"scheduler\.run_batch|step\[.*|execute_(\d+_)?context_.+|execute_new_\d+_cached_\d+"
        r"|\[Executor\] _forward_step \d+.*"
    ),
    re.compile(r"(step|iteration)[\s#:_-]*\d*", re.IGNORECASE),
    re.compile(r"ProfilerStep(#\d+)?\*?"),
)


@lru_cache(1 << 12)
def plain(name: str) -> str:
    """Return a range's name without operator numbers (``emit_nvtx``), addresses and folders."""
    return NOISE.sub("", name)


@lru_cache(1 << 12)
def is_step(name: str) -> bool:
    """Return whether this is the name of a step."""
    return any(kind.fullmatch(plain(name)) for kind in STEPS)


@lru_cache(1 << 12)
def without_number(name: str) -> str:
    """Return a range's name for sums over steps: ``ProfilerStep#3`` without its number."""
    return NUMBERED.sub("", plain(name)) if is_step(name) else plain(name)


@lru_cache(1 << 12)
def phase_named(name: str) -> str:
    """Return the name of the phase that an annotation of this name marks; empty: it marks none."""
    name = plain(name)
    if is_step(name) or name.startswith("aten::"):
        return ""
    name = NUMBERED.sub("", name)
    return f"{name} (annotated)" if name in TAKEN else name


def phases_of(ranges: Sequence[SeenEvent]) -> Iterator[tuple[str, int, int]]:
    """Yield the phases of a thread while it was in any range; ``ranges`` are by their start.

    A phase is the outermost annotation that is no step, and ``work`` where there is none.
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
    r"\S*Synchronize\w*|synchronize(Stream)?"  # of any device's runtime
    r"|ur(QueueFinish|EventWait)|cnrtQueueSync"
    r"|(cuda|hip|cu|aclrt|cnrt)Memcpy\w*(?<!Async)"
)
FRAME = re.compile(r".*\.pyx?\(\d+\): ")  # aiter_backend.py(412): forward
AROUND = re.compile(r"_?contextlib\.py|.*: __torch_(function|dispatch)__$")  # not the caller
VERSION = re.compile(r"_v\d+(_ptsz|_ptds)?$")  # cudaLaunchKernel_v7000, as CUPTI names it


def host_slices(
    lane: str, calls: Iterable[SeenEvent], ranges: Sequence[SeenEvent], op_ends: Mapping[str, int],
    launches: dict[str, int], numbers: Iterator[int],
) -> Iterator[Slice]:  # fmt: skip
    """Yield the slices of a thread; ``op_ends`` is the end of each launched op, by correlation.

    A call that launches is a ``launch`` and is put into ``launches``, by correlation. A call that
    blocks until the device is done is a ``wait``. The rest of the thread's ranges, which are by
    their start, has the name of the outermost annotation around it, or ``work``. A copy that
    returns only after it has ended blocks too, whatever its name: its memory was not pinned.
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
            if where := innermost([item.name for item in inside]):
                attrs["where"] = where
            if len(torch) > 1:
                attrs["around"] = intern(", ".join(map(plain, torch)))
            yield Slice(next(numbers), lane, "wait", ready, call.end, attrs={**attrs})
        free = call.end


MOST_FRAMES = 3  # functions of Python in a sentence


def innermost(names: Sequence[str]) -> str:
    """Return the functions of Python around a call, the innermost first; ``names`` are ranges."""
    frames = [name for name in map(plain, reversed(names)) if FRAME.match(name)]
    frames = [name for name in frames if not AROUND.match(name)] or frames
    return intern(", from ".join(frames[:MOST_FRAMES]))


# -- Steps: a file has no numbers for them, so a marked range makes its launches a step ------------
#
# A launch of a CUDA or HIP graph is none: one forward pass may be one graph, or one for each piece
# between two layers that can't be captured. Where no range marks a step, a sentence names the way.

MOST_NAMED = 3  # ranges in a sentence
HOW = (
    "A step is one turn of an engine, from the launch of a batch's forward pass to its tokens, and "
    "a launch of a graph alone is none. Mark each one with "
    'torch.profiler.record_function("step") or an NVTX range "step", or name the range that is '
    "around each one with --step"
)


class NoSuchRange(LookupError):
    """``--step`` or ``--device-lane`` names nothing in the trace; the message is one sentence."""


EVERY = "every thread"


def marked(kind: re.Pattern[str], ranges: Sequence[SeenEvent]) -> list[SeenEvent]:
    """Return the ranges with a name of a kind."""
    return [item for item in ranges if kind.fullmatch(plain(item.name))]


def find_steps(
    launched: Mapping[int, Sequence[int]],
    lanes: Mapping[str, Sequence[Slice]],
    ranges: Mapping[str, Sequence[SeenEvent]],
    every: Sequence[Slice],
    pattern: str = "",
) -> tuple[dict[int, int], str]:
    """Return the step of each slice that has one, and a sentence on the ranges that are steps.

    ``lanes`` are the launches of each lane of a host, and ``ranges`` its ranges, both by their
    start; ``launched`` are the ops of a launch, by ids, and ``every`` are the launches of
    all threads. ``pattern`` is the full name of the ranges
    that are steps; ``*`` in it stands for any text. If one lane launches and no range of its own
    thread is a step, the ranges of another thread are (``ranges`` has them by its name): an
    engine's scheduler and its worker may be two threads, and so are torch's two passes.

    Raises:
        NoSuchRange: in no range that ``pattern`` names anything was launched.
    """
    tries = [(kind, ranges, lanes) for kind in kinds_of_steps(pattern)]
    if len(lanes) == 1:
        for kind in kinds_of_steps(pattern):
            most = max((marked(kind, said) for said in ranges.values()), key=len, default=[])
            tries.append((kind, {EVERY: most}, {EVERY: every}))
    for kind, of_lane, launchers in tries:
        steps, marks = dict[int, int](), list[str]()
        for lane, items in launchers.items():
            starts, free, number = [item.start for item in items], 0, 0
            for mark in of_lane.get(lane, ()):
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
            what = "A step here is all ops that are launched inside a marked range"
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


def build(
    path: Path, profiler: str, seen: Iterable[SeenEvent], step: str = "", device_lane: str = "",
    devices: Sequence[str] = (), unread: Mapping[str, int] | None = None,
) -> Recorded:  # fmt: skip
    """Return the trace of a profiler's events; ``step`` names the ranges that are steps.

    The busiest stream is ``forward``, its launcher ``host``. Of several devices, each has these
    lanes, with its own name before: ``device 0 forward``, ``device 0 host``. ``device_lane`` names
    another stream instead, or a thread or range of the host that is the device. ``devices`` are
    kinds of devices that are neither CUDA nor HIP, and ``unread`` counts events by category.

    Raises:
        NoSuchRange: ``step`` names no range around a launch, or ``device_lane`` nothing.
    """
    calls: dict[str, list[SeenEvent]] = defaultdict(list)
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
    missing = list[str]()
    if device_lane and device_lane not in {op.place for op in ran}:
        ran, inferred, sentence = device_on_host(ranges, device_lane, step)
        calls, devices, missing = inferred, [device_lane], [sentence]
    numbers, lanes = itertools.count(1), dict(lanes_of(ran, device_lane))
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
    by_lane = {threads.get(thread, f"{thread} thread"): said for thread, said in ranges.items()}
    every = [one for one in slices if one.id in launched]
    steps, sentence = find_steps(launched, hosts, by_lane, every, step)
    zero = slices[0].start if slices else 0
    for one in slices:  # they are this trace's alone; its clock begins with the first
        one.step = steps.get(one.id, 0)
        one.start, one.end = one.start - zero, max(one.start, one.end) - zero
    edges = {Edge(src, dst, "launch") for src, every in launched.items() for dst in every}
    is_hip = any(call.name.startswith("hip") for made in calls.values() for call in made)  # AMD's
    device = (*devices, "HIP" if is_hip else "CUDA")[0] if ops else "cpu"
    trace = Trace(profiler, device, "", "wall", tuple(slices), tuple(sorted(edges)), (), ())
    missing += lacks(trace, ranges, unread or {})
    return Recorded(str(path), trace, tuple(missing), sentence)


def kinds_of_steps(pattern: str) -> Sequence[re.Pattern[str]]:
    """Return patterns of the names of steps, the first of which that is found counts."""
    wanted = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    return (wanted,) if pattern else STEPS


def lanes_of(ops: Iterable[SeenEvent], forward_stream: str = "") -> Iterator[tuple[str, str]]:
    """Yield the lane of each stream; the one with most kernels, or the named one, is ``forward``.

    A stream of copies is a copy's lane.
    """
    busy: Counter[str] = Counter()
    kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for op in ops:
        busy[op.place] += (op.end - op.start) * (op.kind == KERNEL)
        kinds[op.place][op.kind] += 1
    devices: defaultdict[str, list[str]] = defaultdict(list)
    for stream in kinds:
        devices[stream.partition(" stream ")[0]].append(stream)
    for device, streams in devices.items():
        forward = max(streams, key=lambda it: (it == forward_stream, busy[it], kinds[it].total()))
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
    """Yield the lane of each thread that makes calls: most launches of ``forward`` make a host."""
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


def lacks(
    trace: Trace, ranges: Mapping[str, Sequence[SeenEvent]], unread: Mapping[str, int]
) -> Iterator[str]:
    """Yield a sentence on each thing that a file does not contain."""
    if not any("kernel" in item.attrs for item in trace.slices):
        if unread:
            most = sorted(unread.items(), key=lambda item: -item[1])[:MOST_NAMED]
            others = ", ".join(f"{name} ({count:,} events)" for name, count in most)
            yield (
                "It has no kernel or copy of a device that can be read; these categories are not "
                f"read: {others}."
            )
        else:
            yield "It has no ops of a device: only the CPU was profiled."
        if ranges:
            most_in = sorted(ranges, key=lambda thread: -len(ranges[thread]))[:MOST_NAMED]
            threads = ", ".join(f"'thread {thread}'" for thread in most_in)
            yield (
                "If a thread or a range of the host is the device, name it with --device-lane; "
                f"the threads with most ranges are {threads}."
            )
        return
    if not any(edge.kind == "launch" for edge in trace.edges):
        yield "It has no launches: no call of the host is linked to an op."
    if not any(item.name == "wait" for item in trace.slices):
        yield "It has no blocking calls: where the host waited cannot be seen."


# -- A thread or a range of the host that is the device --------------------------------------------
#
# An engine may compute on a thread of its own, or on a device of which the profiler records no ops.
# Then the ranges of that thread, or those of one name, are the device's ops. No file links them to
# launches. The n-th step is taken to launch the n-th op; if all steps have equally many ops, that
# many each. A step must have launched its op early if it began before the op before had ended, and
# if its op followed that one within ``QUEUED``. Otherwise the launch is put at the step's end or at
# the op's start, whichever comes first.

QUEUED = 500_000  # nanoseconds in which a thread takes the next op from its queue


def device_on_host(
    ranges: dict[str, list[SeenEvent]], name: str, step: str
) -> tuple[list[SeenEvent], dict[str, list[SeenEvent]], str]:
    """Take the ranges of a thread, or those of this name, for the ops of a device.

    It returns the ops, the launches by thread, and a sentence on its assumptions. ``ranges`` are by
    thread and by their start; those of the device are removed.

    Raises:
        NoSuchRange: there is no such stream, thread or range.
    """
    thread = name.removeprefix("thread ").removesuffix(" thread")
    found = ranges.pop(thread, []) if thread in ranges else []
    for place, said in ranges.items() if not found else ():
        named = [item for item in said if plain(item.name) == name]
        if len(named) > len(found):
            found, thread = named, place
    if not found:
        threads = ", ".join(f"'thread {place}'" for place in ranges)
        raise NoSuchRange(
            f"--device-lane {name} names no stream, thread or range; the threads are {threads}."
        )
    ops = list[SeenEvent]()
    for item in found:
        if not ops or item.start >= ops[-1].end:
            ops.append(item)
    marks = list[tuple[str, SeenEvent]]()
    for kind in kinds_of_steps(step):
        for place, said in ranges.items():
            free = 0
            for item in said:
                if item.start >= free and kind.fullmatch(plain(item.name)):
                    marks, free = [*marks, (place, item)], item.end
        if marks:
            break
    marks.sort(key=lambda mark: mark[1].start)
    each = len(ops) // len(marks) if marks and len(ops) % len(marks) == 0 else 0
    calls: defaultdict[str, list[SeenEvent]] = defaultdict(list)
    ran = list[SeenEvent]()
    for at, op in enumerate(ops):
        of_step = at // each if each else -1
        ran.append(SeenEvent("device 0 stream 0", KERNEL, op.name, op.start, op.end, str(of_step)))
        if each and at % each == 0:
            place, mark = marks[of_step]
            before = ops[at - 1].end if at else op.start
            is_queued = mark.start <= before and op.start - before <= QUEUED
            when = mark.start if is_queued else max(mark.start, min(mark.end, op.start))
            calls[place].append(SeenEvent(place, CALL, "launch", when, when, str(of_step)))
    if not each:
        count = f"{len(ops)} ops for {len(marks)} steps" if marks else "no range that marks a step"
        return ran, calls, f"It has no launches of {name}: there are {count}."
    return ran, calls, (
        f"The launches of {name} are not recorded: the n-th of {len(marks)} steps is taken to "
        f"launch its n-th {'op' if each == 1 else f'{each} ops'}."
    )  # fmt: skip
