"""What a workload could take at best, with the batches it ran in: and how near a run came to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from ...trace import Slice, Trace
from ...trace.events import is_copy, is_forward, is_host
from .course import Course, course_of, in_time, is_blocked
from .overlap import length, union


@dataclass(frozen=True)
class Bound:
    """No order of the same work can take less than this; times in nanoseconds.

    Either a lane has that much work (``lane``), or tokens depend on each other for that long
    (``lane`` is then empty, and ``rid`` is a request at the end of the longest such chain). What
    went over the host is no part of a chain: a token may stay on the device.
    """

    ns: int
    makespan_ns: int
    lane: str
    rid: str
    lanes: dict[str, int]
    chain_ns: int

    @property
    def percent(self) -> float:
        """How much of the makespan the bound is: 100 cannot be beaten."""
        return 100 * self.ns / self.makespan_ns if self.makespan_ns else 100.0


def bound(trace: Trace, course: Course | None = None) -> Bound:
    """The bound of a run; ``course`` is that of the trace, if it is there already."""
    course = course or course_of(trace)
    names = sorted({item.lane for item in trace.slices})
    works = {lane: [i for i in trace.on(lane) if not is_blocked(i)] for lane in names}
    lanes = {lane: length(union(items)) for lane, items in works.items()}
    busiest = max(lanes, key=lambda lane: lanes[lane], default="")
    chain, rid = longest_chain(trace, course)
    if chain > lanes.get(busiest, 0):
        return Bound(chain, trace.end, "", rid, lanes, chain)
    return Bound(lanes.get(busiest, 0), trace.end, busiest, "", lanes, chain)


def longest_chain(trace: Trace, course: Course) -> tuple[int, str]:
    """The longest chain of ops that depend on each other's values, from a request's coming on."""
    slices = {item.id: item for item in trace.slices}
    before: defaultdict[int, list[int]] = defaultdict(list)
    for src, dst in _dependencies(trace, slices):
        if slices[src].end <= slices[dst].start:
            before[dst].append(src)
    came = arrivals(course)
    ends: dict[int, int] = {}
    best = 0, ""
    for item in in_time(filter(_computes, trace.slices)):
        here = [came[rid] for rid in item.rids if rid in came]
        start = max([0, *here, *(ends.get(src, 0) for src in before[item.id])])
        ends[item.id] = start + item.duration
        best = max(best, (ends[item.id], item.rids[0] if item.rids else ""), key=lambda it: it[0])
    return best


def arrivals(course: Course) -> dict[str, int]:
    """When each request came, as far as that is known: where the host had slept until then."""
    came: dict[str, int] = {}
    for items in course.lanes.values():
        for item in items:
            if item.release:
                came |= dict.fromkeys(course.slices[item.id].rids, item.release)
    return came


def _computes(item: Slice) -> bool:
    return not is_host(item.lane) and not is_copy(item.lane) and item.name != "upload"


def _dependencies(trace: Trace, slices: dict[int, Slice]) -> Iterator[tuple[int, int]]:
    """Pairs of ops of which the second reads what the first has computed."""
    steps: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for item in in_time(i for i in trace.slices if is_forward(i.lane) and i.step):
        steps[item.lane, item.step].append(item.id)
    for ops in steps.values():
        yield from pairwise(ops)
    first = {step: ops[0] for (_, step), ops in reversed(steps.items())}
    last = {step: ops[-1] for (_, step), ops in steps.items()}
    for edge in trace.edges:
        src, dst = edge.src, edge.dst
        if edge.kind == "token" and is_host(slices[src].lane):  # process to prepare
            src, dst = last.get(slices[src].step, 0), first.get(slices[dst].step, 0)
        computed = [op in slices and _computes(slices[op]) for op in (src, dst)]
        if edge.kind in ("token", "recv") and all(computed):
            yield src, dst
