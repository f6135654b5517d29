"""Which cause a piece of a bubble has: read from slices, edges, counters and marks."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import pairwise

from ...trace import Slice, Trace
from ...trace.events import is_copy, is_forward, is_host
from .course import Course
from .critical_path import Segment
from .launches import launches
from .overlap import Interval, intersection, nobody_there
from .waits import ARRIVAL, HOST, Idle, receiving, side_of

TOKEN, COPY, MASK, UPLOAD, TRANSFER, STAGE, MEMORY, MESSAGE, LATENCY, UNKNOWN = (
    "token", "copy", "mask", "upload", "transfer", "stage", "memory", "message", "latency",
    "unknown",
)  # fmt: skip
MOST_LATENCY = 100_000  # nanoseconds; what lasts longer has a reason that was not recorded
SHORT_OF = ("KV memory", "max_running_requests")
BY_NAME = {"mask": MASK, "upload": UPLOAD, "transfer": TRANSFER}
Piece = tuple[int, int, str, int]  # start, end, cause, the slice waited for (0: none)


class Causes:
    """What a trace says about causes, looked up once."""

    def __init__(self, trace: Trace, course: Course) -> None:
        self.trace, self.slices = trace, course.slices
        self.brings: defaultdict[int, set[int]] = defaultdict(set)  # slice -> what brought it here
        for edge in trace.edges:
            source = self.slices.get(edge.src)
            off_device = source is not None and not is_forward(source.lane)
            if edge.kind == "result" or (edge.kind == "token" and off_device):
                self.brings[edge.dst].add(edge.src)
        self.launched = launches(trace).keys()
        self.after_refusal = set(schedules_after_refusal(trace))
        self.nobody: dict[str, tuple[Interval, ...]] = {}

    def of(self, idle: Idle, op: int, path: Iterable[Segment]) -> Iterator[Piece]:
        """The pieces of a gap with their causes, the newest first."""
        bringers, held_back = set(self.brings.get(op, ())), False
        for segment in path:
            item = self.slices.get(segment.slice)
            cause = self._cause(segment, item, idle.lane)
            if segment.slice in bringers and cause in (HOST, COPY):
                cause = TOKEN
            if item and (item.id in bringers or item.name != "process"):
                bringers |= self.brings.get(item.id, set())
            if held_back:
                cause = MEMORY
            held_back = held_back or segment.slice in self.after_refusal
            if idle.reason:
                cause = idle.reason
            yield from self._without_arrivals(segment, cause, idle)

    def _cause(self, segment: Segment, item: Slice | None, lane: str) -> str:
        if item is None:
            follower = self.slices.get(segment.before)
            if segment.before in self.launched and segment.duration <= MOST_LATENCY:
                return LATENCY
            sleeps = self.trace.clock == "virtual" and follower and is_host(follower.lane)
            return MESSAGE if sleeps and side_of(lane) else UNKNOWN
        if item.name in BY_NAME:
            return BY_NAME[item.name]
        if is_host(item.lane):
            return HOST
        return COPY if is_copy(item.lane) else STAGE

    def _without_arrivals(self, segment: Segment, cause: str, idle: Idle) -> Iterator[Piece]:
        """A piece, less the time in which nobody was there; that is ``arrival``."""
        start, end = segment.start, segment.end
        for since, until in reversed(() if idle.reason else self._absence(side_of(idle.lane))):
            if since < end and until > start:
                if until < end:
                    yield until, end, cause, segment.slice
                end = max(start, since)
                yield end, min(until, segment.end), ARRIVAL, 0
        if start < end:
            yield start, end, cause, segment.slice

    def _absence(self, side: str) -> tuple[Interval, ...]:
        """When nobody was there, as ``waits.py`` counts it."""
        if side not in self.nobody:
            hears = receiving(self.trace, side)
            busy = [(0, 0), *hears, (self.trace.end, self.trace.end)]
            quiet = tuple((a[1], b[0]) for a, b in pairwise(busy))
            absent = tuple(nobody_there(self.trace, side))
            self.nobody[side] = intersection(absent, quiet)
        return self.nobody[side]


def schedules_after_refusal(trace: Trace) -> Iterator[int]:
    """Each schedule that found a batch, where the one before it found none for want of memory.

    Somebody had been refused for want of KV memory or of a row, and not admitted since.
    """
    marks = deque(mark for mark in trace.marks if mark.name in ("refuse", "admit", "finish"))
    refused: set[tuple[str, str]] = set()  # side and request
    last: dict[str, bool] = {}  # of each host: whether its last schedule found nothing for that
    for item in sorted(trace.slices, key=lambda item: item.end):
        while marks and marks[0].time <= item.end:
            mark = marks.popleft()
            who = str(mark.attrs.get("side", "")), str(mark.attrs.get("rid", ""))
            is_short = str(mark.attrs.get("reason", "")).startswith(SHORT_OF)
            (refused.add if mark.name == "refuse" and is_short else refused.discard)(who)
        if item.name == "schedule" and is_host(item.lane):
            if last.get(item.lane):
                yield item.id
            side = item.lane.removesuffix("host").strip()
            last[item.lane] = any(who[0] == side for who in refused)
        elif item.name == "prepare":
            last[item.lane] = False
