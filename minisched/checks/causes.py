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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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
    is_profiled,
    nobody_there,
    streams_of,
    union,
)
from .what_if import Segment, course_of, path_to

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

BY_NAME = {"mask": MASK, "upload": UPLOAD, "transfer": TRANSFER}
MOST_LATENCY = 100_000  # nanoseconds; what lasts longer has a reason that was not recorded


@dataclass(frozen=True)
class Bubble:
    """A stretch, or a piece of one, in which a device idled between two things that it ran.

    Times are in nanoseconds. ``op`` is the id of what could not start before, and ``during`` what
    ran meanwhile and was waited for; None: nothing did.
    """

    lane: str
    start: int
    end: int
    cause: str
    op: int = 0
    during: Slice | None = None

    @property
    def duration(self) -> int:
        """Nanoseconds."""
        return self.end - self.start

    @property
    def phase(self) -> str:
        """What ran meanwhile; where nobody named it, the innermost function around it."""
        if self.during is None:
            return ""
        name = self.during.name
        return str(self.during.attrs.get("within", name)) if name == "work" else name

    @property
    def where(self) -> str:
        """The lane that it ran on."""
        return self.during.lane if self.during else ""


def bubbles(trace: Trace) -> list[Bubble]:
    """Every piece of idle time with its cause, in order of time: ``bubble_ns`` in all."""
    found = _profiled(trace) if is_profiled(trace) else _explained(trace)
    return sorted((item for item in found if item.start < item.end),
                  key=attrgetter("start", "lane", "end"))  # fmt: skip


def by_cause(items: Iterable[Bubble]) -> dict[str, int]:
    """Nanoseconds by cause, the most first."""
    sums = Counter[str]()
    for item in items:
        sums[item.cause] += item.duration
    return dict(sums.most_common())


def by_phase(items: Iterable[Bubble]) -> dict[tuple[str, str], int]:
    """Nanoseconds by cause and phase, the most first."""
    sums = Counter[tuple[str, str]]()
    for item in items:
        sums[item.cause, item.phase] += item.duration
    return dict(sums.most_common())


# -- When a device idled: for a wait that the trace names, for a request to come, or for the host
#
# A loop that lets an op of step N wait says so when it decides it, with a mark: ``recorder.mark(
# "wait", step=N, reason="grammar", op="sample")``. What that cost is read off the intervals.


def waits(trace: Trace) -> tuple[Mark, ...]:
    """The marks of every wait, in order of time."""
    says = {"step", "reason", "op"}
    return tuple(m for m in trace.marks if m.name == "wait" and says <= m.attrs.keys())


def num_waits(trace: Trace) -> Counter[str]:
    """How often the loop said that an op must wait, by reason, the first reason first."""
    return Counter(str(mark.attrs["reason"]) for mark in waits(trace))


def lost_ns(trace: Trace) -> dict[str, int]:
    """Nanoseconds for which devices idled, by reason; together exactly ``bubble_ns`` of the report.

    A wait is charged the whole gap before its op, from the end of whatever ran before on that lane,
    even if the host would have been late anyway: what the loop would have lost without the wait is
    not known. A wait may cost nothing; then the device had something else to do meanwhile. What no
    wait explains is ``arrival`` where nobody was there to be served, and else ``host``: the device
    waited for the host's ordinary work (a pipeline's later stage, for that or for the one before).
    """
    lost = dict.fromkeys([*num_waits(trace), HOST, ARRIVAL], 0)
    for item in _charged(trace):
        lost[item.cause] += item.duration
    return lost


def idle_times(trace: Trace) -> Iterator[Bubble]:
    """Every gap between two things a device runs, cut where an op starts that had to wait.

    Such a wait's reason is the cause, as far as one is known here.
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
    """When each op that had to wait started on a lane, and why; of several waits of one, the first.

    ``forward`` is the first thing that a step does there: a later pipeline stage first receives.
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
    """Idle times, of which ``arrival`` is cut out: then nobody was there to be served.

    Whoever is received is there, and counted only afterwards.
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
    """What was waited for in each idle time, the newest first."""
    launched, course = launches(trace).keys(), course_of(trace)
    for idle in _charged(trace):
        if idle.cause == ARRIVAL:
            yield idle
            continue
        path: Iterable[Segment] = [Segment(idle.start, idle.end, 0, 0)]
        if idle.op in course.ran:  # else its program waits in a circle
            path = path_to(course.ran, idle.op, idle.start)
        for start, end, number, before in path:
            during = course.slices.get(number)
            if during is None:
                is_latency = before in launched and end - start <= MOST_LATENCY
                cause = LATENCY if is_latency else UNKNOWN
            else:
                on_device = COPY if is_copy(during.lane) else STAGE
                cause = BY_NAME.get(during.name) or (HOST if is_host(during.lane) else on_device)
            cause, end = cause if idle.cause == HOST else idle.cause, min(end, idle.end)
            yield Bubble(idle.lane, start, end, cause, idle.op, during)


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


def device_gaps(trace: Trace, lane: str, known: Mapping[int, Launch]) -> list[Bubble]:
    """When the device of a forward lane idled, as if a profiler had seen it."""
    lanes = streams_of(trace, lane)
    return idle_gaps(lane, (item for item in trace.slices if item.lane in lanes), known)


def idle_gaps(lane: str, ops: Iterable[Slice], known: Mapping[int, Launch]) -> list[Bubble]:
    """The same of a device, or of one of its streams, of which ``ops`` are all that it ran.

    They are in order of time, and ``known`` are launches, by op.
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
    """Each gap; of a ``host wait``, what the launching thread did meanwhile."""
    known = launches(trace)
    for lane in forward_lanes(trace):
        for gap in device_gaps(trace, lane, known):
            at, on = gap.start, trace.on(known[gap.op].lane) if gap.cause == HOST_WAIT else ()
            for item in on[bisect_left(on, at, key=attrgetter("end")) :]:
                if item.start >= gap.end:
                    break
                start, end = max(item.start, at), min(item.end, gap.end)
                yield replace(gap, start=at, end=start)
                yield replace(gap, start=start, end=end, during=item)
                at = end
            yield replace(gap, start=at)
