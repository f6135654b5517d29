"""The cause of each bubble: the op that ends it was waiting for something, at every moment.

A device idles from the end of one op to the start of the next one on its lane. The path back from
that start (``course.py:path_to``) fills the whole gap with slices of other lanes. Each piece is
charged to one of them, and to a cause. A mark ``wait`` of the loop records a reason (grammar,
penalty, prefill, speculation); then that reason is the cause of the whole gap.

A profiler's trace records the launch of each kernel, and the streams of a device. There the causes
are those of Holistic Trace Analysis: ``host wait``, ``kernel wait`` and ``other``. One more is cut
out of ``other``: ``blocked host``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from ..trace import Mark, Slice, Trace
from ..trace.events import ALL_TO_ALL, is_copy, is_host
from .course import Segment, course_of, path_to
from .history import side_of
from .overlap import (
    Interval,
    call_of,
    forward_lanes,
    gaps,
    intersection,
    is_blocked,
    is_profiled,
    nobody_there,
    streams_of,
    union,
)

# Causes that can be read off a trace; a loop's own reasons come in addition.
HOST = "host"  # a thread of the host was busy
COPY = "copy"  # the host waited for a copy before it went on
MASK = "mask"  # the host built what a grammar or penalties let it sample
UPLOAD = "upload"  # prompts were on their way to the device
TRANSFER = "transfer"  # KV was on its way from another device
STAGE = "stage"  # an earlier stage of a pipeline had it
NETWORK = "all to all"  # no half of the batch could compute before its tokens came back
ARRIVAL = "arrival"  # no request was there
LATENCY = "latency"  # it had been launched, and the device took that long to begin
UNKNOWN = "unknown"  # nothing recorded explains it
HOST_WAIT, KERNEL_WAIT, OTHER = "host wait", "kernel wait", "other"  # of a profiler's trace
WORK = "work"  # of the host in a profiler's trace, where no range names it
BLOCKED = "blocked host"  # part of other: the host was in a blocking call meanwhile

BY_NAME = {"mask": MASK, "upload": UPLOAD, "transfer": TRANSFER}
MOST_LATENCY = 100_000  # nanoseconds; what lasts longer has a reason that was not recorded


@dataclass(frozen=True)
class Bubble:
    """A stretch, or a piece of one, in which a device idled between two ops.

    Times are in nanoseconds. ``op`` is the id of the op that ends the stretch. ``during`` is the
    slice that ran meanwhile and was waited for; None: no slice did.
    """

    lane: str
    start: int
    end: int
    cause: str
    op: int = 0
    during: Slice | None = None

    @property
    def duration(self) -> int:
        """Return its length, in nanoseconds."""
        return self.end - self.start

    @property
    def phase(self) -> str:
        """Return the name of the slice; of unnamed work, the innermost function around it.

        Of a blocked host it is the call.
        """
        if self.during is None:
            return ""
        if is_blocked(self.during):
            return call_of(self.during)
        name = self.during.name
        return str(self.during.attrs.get("within", name)) if name == WORK else name

    @property
    def where(self) -> str:
        """Return the lane of that slice."""
        return self.during.lane if self.during else ""


def bubbles(trace: Trace) -> list[Bubble]:
    """Return every piece of idle time with its cause, in order of time: ``bubble_ns`` in all."""
    found = _profiled(trace) if is_profiled(trace) else _explained(trace)
    return sorted((item for item in found if item.start < item.end),
                  key=attrgetter("start", "lane", "end"))  # fmt: skip


def by_cause(items: Iterable[Bubble]) -> dict[str, int]:
    """Return nanoseconds by cause, the most first."""
    sums = Counter[str]()
    for item in items:
        sums[item.cause] += item.duration
    return dict(sums.most_common())


def by_phase(items: Iterable[Bubble]) -> dict[tuple[str, str], int]:
    """Return nanoseconds by cause and phase, the most first."""
    sums = Counter[tuple[str, str]]()
    for item in items:
        sums[item.cause, item.phase] += item.duration
    return dict(sums.most_common())


# -- Idle time: for a wait that the trace names, for a request to arrive, or for the host
#
# A loop that lets an op of step N wait records a mark when it decides that: ``recorder.mark(
# "wait", step=N, reason="grammar", op="sample")``. The cost is read off the intervals.


def waits(trace: Trace) -> tuple[Mark, ...]:
    """Return the marks of every wait, in order of time."""
    needed = {"step", "reason", "op"}
    return tuple(m for m in trace.marks if m.name == "wait" and needed <= m.attrs.keys())


def num_waits(trace: Trace) -> Counter[str]:
    """Count the waits that the loop decided, by reason, the first reason first."""
    return Counter(str(mark.attrs["reason"]) for mark in waits(trace))


def lost_ns(trace: Trace) -> dict[str, int]:
    """Return for how many nanoseconds devices idled, by reason; the sum is the report's bubbles.

    A wait is charged the whole gap before its op, even if the host would have been late anyway: the
    loss without the wait is not known. A wait costs nothing if the device had other work meanwhile.
    The rest is ``arrival`` where no request was there, and ``host`` otherwise: the device waited
    for the host's ordinary work (a later stage of a pipeline also for the stage before).
    """
    lost = dict.fromkeys([*num_waits(trace), HOST, ARRIVAL], 0)
    for item in _charged(trace):
        lost[item.cause] += item.duration
    return lost


def idle_times(trace: Trace) -> Iterator[Bubble]:
    """Yield every gap between two ops of a device, cut where an op starts that had to wait.

    The reason of such a wait is the cause; other gaps have none yet.
    """
    for lane in forward_lanes(trace):
        late, ops = _late_ops(trace, lane), trace.on(lane)
        first, cuts = {item.start: item.id for item in reversed(ops)}, sorted(late)
        for start, end in gaps(union(ops)):
            for cut in cuts[bisect_right(cuts, start) : bisect_right(cuts, end)]:
                yield Bubble(lane, start, cut, late[cut], first[cut])
                start = cut  # an op that takes no time leaves the rest of the gap to the next one
            if start < end:
                yield Bubble(lane, start, end, "", first[end])


def _late_ops(trace: Trace, lane: str) -> dict[int, str]:
    """Return the reason of each op on a lane that had to wait, by its start; the first wait counts.

    ``forward`` is the first op of a step there: a later pipeline stage receives first.
    """
    starts: dict[tuple[int, str], int] = {}
    for item in trace.on(lane):
        starts.setdefault((item.step, item.name), item.start)
        starts.setdefault((item.step, "forward"), item.start)
    late: dict[int, str] = {}
    for mark in waits(trace):
        key = int(mark.attrs["step"]), str(mark.attrs["op"])
        if key in starts and mark.attrs.get("side", "") == side_of(lane)[0]:
            late.setdefault(starts[key], str(mark.attrs["reason"]))
    return late


def _charged(trace: Trace) -> Iterator[Bubble]:
    """Yield the idle times; the part in which no request was there becomes ``arrival``.

    A request is there while it is received, although it is counted only afterwards.
    """
    absent: dict[str, tuple[Interval, ...]] = {}
    for lane in forward_lanes(trace):
        side = side_of(lane)[0]
        receives = union(
            item
            for item in trace.slices
            if item.name == "receive" and is_host(item.lane) and item.lane.startswith(side)
        )
        quiet = gaps(((0, 0), *receives, (trace.end, trace.end)))
        absent[lane] = intersection(nobody_there(trace, side), quiet)
    for idle in idle_times(trace):
        at, here = idle.start, ((idle.start, idle.end),)
        for start, end in () if idle.cause else intersection(here, absent[idle.lane]):
            yield replace(idle, start=at, end=start, cause=HOST)
            yield replace(idle, start=start, end=end, cause=ARRIVAL)
            at = end
        yield replace(idle, start=at, cause=idle.cause or HOST)


def _explained(trace: Trace) -> Iterator[Bubble]:
    """Yield the pieces of each idle time with their causes, the newest first."""
    launched, course = launches(trace).keys(), course_of(trace)
    for idle in _charged(trace):
        if idle.cause == ARRIVAL:
            yield idle
            continue
        path: Iterable[Segment] = [Segment(idle.start, idle.end, 0, 0)]
        if idle.op in course.ran:  # it is not where a program waits in a circle
            path = path_to(course.ran, idle.op, idle.start)
        for start, end, number, before in path:
            during = course.slices.get(number)
            if during is None:
                is_latency = before in launched and end - start <= MOST_LATENCY
                cause = LATENCY if is_latency else UNKNOWN
            else:
                on_device = COPY if is_copy(during.lane) else STAGE
                named = NETWORK if during.lane == ALL_TO_ALL else BY_NAME.get(during.name)
                cause = named or (HOST if is_host(during.lane) else on_device)
            cause, end = cause if idle.cause == HOST else idle.cause, min(end, idle.end)
            yield Bubble(idle.lane, start, end, cause, idle.op, during)


# -- Idle time of a GPU in a profiler's trace
#
# A GPU idles, between its first op and its last, while neither a kernel nor a copy runs on any of
# its streams. Each such gap is charged as Holistic Trace Analysis does it
# (``get_temporal_breakdown``, ``get_idle_time_breakdown``), by the op that ends it:
#
# - ``host wait``: its launch began only after the gap had begun: the host was late;
# - ``kernel wait``: it had been launched before, and the gap lasts less than 0.03 ms: the device
#   takes that long from one op to the next;
# - ``other``: it had been launched before and waited longer: for another stream, or for work that
#   is not recorded.
#
# On one stream the figures are that tool's to the nanosecond, without its rounding. With the
# rounding to whole microseconds, its default, each of its gaps is longer by up to 2.
# Over all streams one more thing is known: an op that is launched in a gap and begins long after
# its launch was late only until then. The rest of such a gap is ``other``.
#
# That tool stops at ``other``. If a thread of the host was in blocking calls for at least half of
# such a gap, the time in these calls is ``blocked host`` here.

SHORT = 30_000  # nanoseconds of a kernel wait at most; that tool's own default


def is_good_part(ns: int, whole: int) -> bool:
    """Return whether a time is long enough to be the cause of an idle time: half of it."""
    return 2 * ns >= whole


class Launch(NamedTuple):
    """The lane of the host that launched an op, and the latest time of the launch.

    A profiler records the call itself, which began at ``since``: a device can begin an op before
    the call returns. Of other launches only the latest time is known.
    """

    lane: str
    time: int
    since: int


def launches(trace: Trace) -> dict[int, Launch]:
    """Return the launch of each op, by id: from the program, or from edges where it has none.

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


def device_gaps(trace: Trace, lane: str, known: Mapping[int, Launch]) -> list[Bubble]:
    """Return when the device of a forward lane idled, as if a profiler had recorded it."""
    lanes = streams_of(trace, lane)
    return idle_gaps(lane, (item for item in trace.slices if item.lane in lanes), known)


def idle_gaps(lane: str, ops: Iterable[Slice], known: Mapping[int, Launch]) -> list[Bubble]:
    """Return the same for a device, or for one of its streams.

    ``ops`` are all of its ops in order of time, and ``known`` are launches, by op.
    """
    ops, found = [op for op in ops if op.duration], list[Bubble]()
    first = {op.start: op.id for op in reversed(ops)}
    for start, end in gaps(union(ops)):
        op = first[end]
        launch = known.get(op)
        if launch is None or launch.since <= start:
            cause = KERNEL_WAIT if end - start < SHORT else OTHER
            found.append(Bubble(lane, start, end, cause, op))
            continue
        late = end if end - launch.since < SHORT else launch.since
        found.append(Bubble(lane, start, late, HOST_WAIT, op))
        if late < end:
            found.append(Bubble(lane, late, end, OTHER, op))
    return found


def _profiled(trace: Trace) -> Iterator[Bubble]:
    """Yield each gap, cut by what a thread of the host did meanwhile.

    That is the launching thread, or in a gap that is ``other`` the thread that was blocked.
    """
    known = launches(trace)
    lanes = {item.lane for item in trace.slices}
    hosts = {lane: trace.on(lane) for lane in filter(is_host, lanes)}
    blocked = {host: list(filter(is_blocked, items)) for host, items in hosts.items()}
    for lane in forward_lanes(trace):
        own = hosts_of(trace, lane)
        for gap in device_gaps(trace, lane, known):
            if gap.cause == KERNEL_WAIT:
                yield gap
                continue
            thread = known[gap.op].lane if gap.op in known else ""
            is_blocking = False
            if gap.cause == OTHER and own:
                most, longest = max(
                    (sum(part.duration for part in pieces(gap, blocked[host]) if part.during), host)
                    for host in own
                )
                is_blocking = is_good_part(most, gap.duration)
                thread = longest if is_blocking else thread
            for piece in pieces(gap, hosts.get(thread, ())):
                is_part = is_blocking and piece.during and is_blocked(piece.during)
                yield replace(piece, cause=BLOCKED) if is_part else piece


def hosts_of(trace: Trace, lane: str) -> list[str]:
    """Return the host threads that may serve the device of a forward lane, by name.

    A thread that is the host of another device is none of them.
    """
    others = {other.removesuffix("forward") + "host" for other in forward_lanes(trace)}
    others.discard(lane.removesuffix("forward") + "host")
    return sorted({item.lane for item in trace.slices if is_host(item.lane)} - others)


def pieces(gap: Bubble, items: Sequence[Slice]) -> Iterator[Bubble]:
    """Cut a gap by the slices of one lane, which are in order of time."""
    at = gap.start
    for item in items[bisect_left(items, at, key=attrgetter("end")) :]:
        if item.start >= gap.end:
            break
        start, end = max(item.start, at), min(item.end, gap.end)
        yield replace(gap, start=at, end=start)
        yield replace(gap, start=start, end=end, during=item)
        at = end
    yield replace(gap, start=at)
