"""Every bubble has a cause: what the op that ends it had been waiting for, moment by moment.

A device idles from the end of one op to the start of the next one on its lane. Going back from that
start along what came last (``what_if.py:path_to``), the whole gap is taken up by slices of other
lanes; each piece of it is charged to one of them, and to a cause. Where the loop said why
an op had to wait (a mark ``wait``: grammar, penalty, prefill, speculation), the cause is that
reason, whatever lay on the way.

A profiler's trace says when each kernel was launched, and on which streams a device works. There
the causes are those of Holistic Trace Analysis: ``host wait``, ``kernel wait`` and ``other``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from ..trace import Mark, Slice, Trace
from ..trace.events import is_copy, is_host
from .history import side_of
from .overlap import (
    Interval,
    forward_lanes,
    gaps,
    intersection,
    is_blocked,
    is_profiled,
    length,
    nobody_there,
    streams_of,
    union,
)
from .what_if import Course, Segment, course_of, in_time, path_to

# What an op waited for, as far as what is recorded tells; besides these, a loop's own reasons.
HOST = "host"  # a thread of the host was busy
COPY = "copy"  # the host waited for a copy before it went on
MASK = "mask"  # the host built what a grammar or penalties let it sample
UPLOAD = "upload"  # prompts were on their way to the device
TRANSFER = "transfer"  # KV was on its way from another device
STAGE = "stage"  # an earlier stage of a pipeline had it
ARRIVAL = "arrival"  # nobody was there to be served
LATENCY = "latency"  # it had been launched, and the device took that long to begin
UNKNOWN = "unknown"  # nothing recorded explains it
HOST_WAIT, KERNEL_WAIT, OTHER = "host wait", "kernel wait", "other"  # of a profiler's trace


# -- When each op of a device was launched, and in which calls the host was blocked before ---------


class Launch(NamedTuple):
    """The lane of the host that launched an op, and when it was launched at the latest.

    A profiler saw the call itself, which began at ``since``: a device can begin an op before it
    returns. Of other launches no more is known than that time.
    """

    lane: str
    time: int
    since: int


def launches(trace: Trace) -> dict[int, Launch]:
    """The launch of each op, by id: from the program, and from edges where that says nothing.

    A launch is over when its slice is; an op that started before was launched by its start.
    """
    slices = {item.id: item for item in trace.slices}
    by = {edge.dst: edge.src for edge in trace.edges if edge.kind == "launch"}
    by |= {act.op: act.during for act in trace.program if act.kind == "launch" and act.during}
    found = {}
    for number, src in by.items():
        if number in slices and src in slices:
            op, item = slices[number], slices[src]
            time = min(item.end, op.start)
            found[number] = Launch(item.lane, time, item.start if "call" in item.attrs else time)
    return found


class Blocked:
    """The slices in which threads of the host were blocked."""

    def __init__(self, trace: Trace) -> None:
        self.on: defaultdict[str, list[Slice]] = defaultdict(list)
        for item in trace.slices:
            if is_blocked(item):
                self.on[item.lane].append(item)
        self.ends = {lane: [item.end for item in items] for lane, items in self.on.items()}

    def before(self, launch: Launch, since: int) -> Slice | None:
        """What a lane was blocked in last before a launch, if that lasted until ``since``."""
        at = bisect_right(self.ends.get(launch.lane, []), launch.time) - 1
        if at < 0 or self.ends[launch.lane][at] < since:
            return None
        return self.on[launch.lane][at]


def call_of(item: Slice) -> str:
    """What blocked the host: ``cudaStreamSynchronize (aten::item)``; in our traces, a copy."""
    call = str(item.attrs.get("call", "the wait for a step's tokens"))
    within = item.attrs.get("within", "")
    return f"{call} ({within})" if within else call


# -- When a device idled: for a wait that the trace names, for a request to come, or for the host
#
# A loop that lets an op of step N wait says so when it decides it, with a mark: ``recorder.mark(
# "wait", step=N, reason="grammar", op="sample")``. What that cost is read off the intervals.


@dataclass(frozen=True)
class Idle:
    """A stretch in which one device idled between two things that it ran; in nanoseconds.

    ``reason``, ``step`` and ``op`` are those of the wait that it is charged to: the op starts where
    it ends. Without one they are empty.
    """

    lane: str
    start: int
    end: int
    reason: str = ""
    step: int = 0
    op: str = ""


def lost_ns(trace: Trace) -> dict[str, int]:
    """Nanoseconds for which devices idled, by reason; together exactly ``bubble_ns`` of the report.

    A wait is charged the whole gap before its op, from the end of whatever ran before on that lane,
    even if the host would have been late anyway: what the loop would have lost without the wait is
    not known. A wait may cost nothing; then the device had something else to do meanwhile. What no
    wait explains is ``arrival`` where nobody was there to be served, and else ``host``: the device
    waited for the host's ordinary work (a pipeline's later stage, for that or for the one before).
    """
    lost = dict.fromkeys([*num_waits(trace), HOST, ARRIVAL], 0)
    absent = {lane: absence(trace, side_of(lane)[0]) for lane in forward_lanes(trace)}
    for item in idle_times(trace):
        here = ((item.start, item.end),)
        arrival = 0 if item.reason else length(intersection(here, absent[item.lane]))
        lost[ARRIVAL] += arrival
        lost[item.reason or HOST] += item.end - item.start - arrival
    return lost


def num_waits(trace: Trace) -> Counter[str]:
    """How often the loop said that an op must wait, by reason, the first reason first."""
    return Counter(str(mark.attrs["reason"]) for mark in waits(trace))


def waits(trace: Trace) -> tuple[Mark, ...]:
    """The marks of every wait, in order of time."""
    says = {"step", "reason", "op"}
    return tuple(m for m in trace.marks if m.name == "wait" and says <= m.attrs.keys())


def idle_times(trace: Trace) -> list[Idle]:
    """Every gap between two things a device runs, cut where an op starts that had to wait."""
    return [idle for lane in forward_lanes(trace) for idle in _idle_on(trace, lane)]


def _idle_on(trace: Trace, lane: str) -> Iterator[Idle]:
    late = _starts_of_late_ops(trace, lane)
    cuts = sorted(late)
    for start, end in gaps(union(trace.on(lane))):
        for cut in cuts[bisect_right(cuts, start) : bisect_right(cuts, end)]:
            attrs = late[cut].attrs
            yield Idle(lane, start, cut, str(attrs["reason"]), int(attrs["step"]), str(attrs["op"]))
            start = cut  # an op that takes no time leaves the rest of the gap to the next one
        if start < end:
            yield Idle(lane, start, end)


def _starts_of_late_ops(trace: Trace, lane: str) -> dict[int, Mark]:
    """When each op that had to wait started on a lane; of several waits of one op, the first.

    ``forward`` is the first thing that a step does there: a later pipeline stage first receives.
    """
    starts: dict[tuple[int, str], int] = {}
    for item in trace.on(lane):
        starts.setdefault((item.step, item.name), item.start)
        starts.setdefault((item.step, ""), item.start)
    late: dict[int, Mark] = {}
    for mark in waits(trace):
        op = str(mark.attrs["op"])
        key = int(mark.attrs["step"]), "" if op == "forward" else op
        if key in starts and mark.attrs.get("side", "") == side_of(lane)[0]:
            late.setdefault(starts[key], mark)
    return late


def absence(trace: Trace, side: str) -> tuple[Interval, ...]:
    """When nobody was there to be served; whoever is received is, and counted only afterwards."""
    receives = union(
        item
        for item in trace.slices
        if item.name == "receive" and is_host(item.lane) and item.lane.startswith(side)
    )
    quiet = gaps(((0, 0), *receives, (trace.end, trace.end)))
    return intersection(nobody_there(trace, side), quiet)


# -- When a GPU idled in a profiler's trace, and what for
#
# It idles, between the first thing it runs and the last, while neither a kernel nor a copy runs on
# any of its streams. Each such gap is charged to what the op that ends it had waited for, as
# Holistic Trace Analysis does (``get_temporal_breakdown``, ``get_idle_time_breakdown``):
#
# - ``host wait``: its launch began only after the gap had begun: the host was late;
# - ``kernel wait``: it had been launched before, and the gap lasts less than 0.03 ms: the device
#   takes that long from one op to the next;
# - ``other``: it had been launched before and waited longer: for another stream, or for work of
#   which the trace says nothing.
#
# On one stream the figures are that tool's to the nanosecond, if it doesn't round; rounding to
# whole microseconds, as it does unless told otherwise, makes each of its gaps longer by up to 2.
# Over all streams there is one thing more to know: what was launched in a gap and begins long after
# its launch was late only until then. The rest of such a gap is ``other``.

SHORT = 30_000  # nanoseconds of a kernel wait at most; that tool's own default


class Gap(NamedTuple):
    """A piece of idle time in nanoseconds, its cause, and the op that ends the gap it is of."""

    start: int
    end: int
    cause: str
    op: Slice
    launch: Launch | None

    @property
    def duration(self) -> int:
        """Nanoseconds."""
        return self.end - self.start


def idle_gaps(ops: Iterable[Slice], known: Mapping[int, Launch]) -> list[Gap]:
    """The idle time of a device, or of one of its streams, in order; ``ops`` are all that it ran.

    ``known`` are launches, by op.
    """
    ops, found = in_time(op for op in ops if op.duration), list[Gap]()
    first = {op.start: op for op in reversed(ops)}
    for start, end in gaps(union(ops)):
        op = first[end]
        launch = known.get(op.id)
        if launch is None or launch.since <= start:
            found.append(Gap(start, end, KERNEL_WAIT if end - start < SHORT else OTHER, op, launch))
            continue
        late = end if end - launch.since < SHORT else launch.since
        found.append(Gap(start, late, HOST_WAIT, op, launch))
        if late < end:
            found.append(Gap(late, end, OTHER, op, launch))
    return found


def device_gaps(trace: Trace, lane: str, known: Mapping[int, Launch]) -> list[Gap]:
    """When the device of a forward lane idled."""
    lanes = streams_of(trace, lane)
    return idle_gaps((item for item in trace.slices if item.lane in lanes), known)


# -- Bubbles: idle time cut into pieces, each with its cause ---------------------------------------


@dataclass(frozen=True)
class Bubble:
    """A piece of time in which a device idled, in nanoseconds, and why.

    ``phase`` is what ran meanwhile (``process``, ``copy``), on ``where``, and ``waited_for`` the id
    of that slice; empty and 0: nothing did. ``op`` is the one that could not start before.
    """

    lane: str
    start: int
    end: int
    cause: str
    phase: str
    where: str
    op: int
    waited_for: int

    @property
    def duration(self) -> int:
        """Nanoseconds."""
        return self.end - self.start


Piece = tuple[int, int, str, int]  # start, end, cause, the slice waited for (0: none)


def bubbles(trace: Trace, course: Course | None = None) -> list[Bubble]:
    """Every bubble of a run in order of time; together exactly ``bubble_ns`` of ``overlap.py``.

    ``course`` is that of the trace, if it is there already.
    """
    slices, found = {item.id: item for item in trace.slices}, []
    cut = _cut_profiled(trace) if is_profiled(trace) else _cut(trace, course or course_of(trace))
    for lane, number, (start, end, cause, waited_for) in cut:
        if start >= end:
            continue
        item = slices.get(waited_for)
        phase, place = (_phase_of(item), item.lane) if item else ("", "")
        found.append(Bubble(lane, start, end, cause, phase, place, number, item.id if item else 0))
    return sorted(found, key=lambda bubble: (bubble.start, bubble.lane, bubble.end))


def _phase_of(item: Slice) -> str:
    """What a slice did; where nobody named it, the innermost function around it."""
    return str(item.attrs.get("within", "work")) if item.name == "work" else item.name


def by_cause(items: Iterable[Bubble]) -> dict[str, int]:
    """Nanoseconds by cause, the most first."""
    sums: Counter[str] = Counter()
    for item in items:
        sums[item.cause] += item.duration
    return dict(sums.most_common())


def by_phase(items: Iterable[Bubble]) -> dict[tuple[str, str], int]:
    """Nanoseconds by cause and phase, the most first."""
    sums: Counter[tuple[str, str]] = Counter()
    for item in items:
        sums[item.cause, item.phase] += item.duration
    return dict(sums.most_common())


def _cut_profiled(trace: Trace) -> Iterator[tuple[str, int, Piece]]:
    """By lane and op, the pieces; of a ``host wait``, what the launching thread did meanwhile."""
    known = launches(trace)
    for lane in forward_lanes(trace):
        for gap in device_gaps(trace, lane, known):
            at = gap.start
            if gap.cause == HOST_WAIT and gap.launch is not None:
                on = trace.on(gap.launch.lane)
                for item in on[bisect_left(on, at, key=attrgetter("end")) :]:
                    if item.start >= gap.end:
                        break
                    start, end = max(item.start, at), min(item.end, gap.end)
                    yield lane, gap.op.id, (at, start, gap.cause, 0)
                    yield lane, gap.op.id, (start, end, gap.cause, item.id)
                    at = end
            yield lane, gap.op.id, (at, gap.end, gap.cause, 0)


MOST_LATENCY = 100_000  # nanoseconds; what lasts longer has a reason that was not recorded
BY_NAME = {"mask": MASK, "upload": UPLOAD, "transfer": TRANSFER}


def _cut(trace: Trace, course: Course) -> Iterator[tuple[str, int, Piece]]:
    """By lane and op, the pieces of each gap, the newest first."""
    launched = launches(trace).keys()
    absent = {lane: absence(trace, side_of(lane)[0]) for lane in forward_lanes(trace)}
    for idle in idle_times(trace):
        op = course.first_at.get((idle.lane, idle.end), 0)
        path: Iterable[Segment] = [Segment(idle.start, idle.end, 0, 0)]
        if op in course.ran:  # else its program waits in a circle
            path = path_to(course.ran, op, idle.start)
        for segment in path:
            start, end, waited_for, before = segment
            is_latency = before in launched and end - start <= MOST_LATENCY
            item = course.slices.get(waited_for)
            cause = idle.reason or _cause_of(item, LATENCY if is_latency else UNKNOWN)
            for since, until in () if idle.reason else reversed(absent[idle.lane]):
                if since < end and until > start:
                    yield idle.lane, op, (until, end, cause, waited_for)
                    yield idle.lane, op, (max(start, since), min(until, end), ARRIVAL, 0)
                    end = max(start, since)
            yield idle.lane, op, (start, end, cause, waited_for)


def _cause_of(item: Slice | None, nothing: str) -> str:
    """What it is to wait for a slice; ``nothing`` where none ran."""
    if item is None:
        return nothing
    device = COPY if is_copy(item.lane) else STAGE
    return BY_NAME.get(item.name) or (HOST if is_host(item.lane) else device)
