"""The host's lanes in a trace of a real engine: launches, blocking calls, and work between them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ...trace import Slice
from ...trace.events import Value
from ..overlap.overlap import Interval, intersection
from .phases import Phases, Range, plain

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
