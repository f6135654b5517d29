"""A trace of a real engine, put together from what a profiler saw: ops and calls of threads.

The readers (``chrome.py`` for torch.profiler, ``nsys.py`` for Nsight Systems) only
say what is in a file; here it becomes lanes, steps and edges.
"""

from __future__ import annotations

import collections
import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from ...trace import Edge, Slice, Trace
from ...trace.events import Value
from .calls import Call, HostLanes, by_thread, ranges_by_thread
from .phases import Range
from .steps import find_steps, results

KERNEL, TO_HOST, TO_DEVICE = "forward", "copy", "upload"  # what ops are called; others: as they are


class NotATrace(ValueError):
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
