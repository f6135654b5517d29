"""The findings on overlap in a run: two verdicts, the causes of idle time, a gain, and a next step.

*Overlaps* is about the host: whether it works ahead (``ahead.py``). *Busy* is about the device:
whether it works. A run that is overlapped and not busy is bound by its host, by a blocking call, or
by missing requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..trace import Slice, Trace
from ..trace.events import is_host
from .ahead import NO_BLOCK, NO_CALL, OverlapVerdict, overlap_verdict
from .causes import (
    ARRIVAL,
    BLOCKED,
    COPY,
    HOST,
    HOST_WAIT,
    KERNEL_WAIT,
    LATENCY,
    MASK,
    OTHER,
    UNKNOWN,
    WORK,
    Bubble,
    bubbles,
    by_cause,
    by_phase,
)
from .course import Segment, course_of, path_to
from .history import many, milliseconds
from .overlap import (
    TOKENS,
    call_of,
    device_runs,
    forward_lanes,
    intersection,
    is_blocked,
    length,
    span,
    union,
    with_waits,
    work_of,
)

# -- The largest share of the idle time ------------------------------------------------------------

MEANINGS = {  # of a profiler's trace
    HOST_WAIT: "host wait lasts until the op after the gap has been launched",
    KERNEL_WAIT: "kernel wait is less than 0.03 ms, before an op that was already launched",
    BLOCKED: "blocked host is longer, before a launched op, while a thread of the host was in a "
    "blocking call",
    OTHER: "other is longer, before a launched op that waited for another stream or for an event "
    "that is not recorded",
}


@dataclass(frozen=True)
class Largest:
    """The largest cause, and the largest phase in it, for ``phase_ns``.

    In a profiler's trace ``phase`` is what the host did meanwhile; empty: it made no recorded call.
    """

    cause: str
    phase: str
    ns: int
    percent: float  # of the bubbles
    phase_ns: int

    @property
    def sentence(self) -> str:
        """Return ``Of the idle time, host took 25 ms (69.4 %), above all schedule; ...``."""
        start = f"Of the idle time, {self.cause} took {milliseconds(self.ns)} "
        start += f"({self.percent:.1f} %)"
        if self.cause == KERNEL_WAIT:
            return f"{start}; larger kernels, or a graph of them, would have fewer such gaps."
        if self.cause in MEANINGS:
            did = f"was in {shortened(self.phase)}" if self.phase else "made no recorded call"
            did = "was at work" if self.phase == WORK else did
            part = "all" if self.phase_ns == self.ns else milliseconds(self.phase_ns)
            return f"{start}; for {part} of it the host {did}."
        start += f", above all {shortened(self.phase)}" if self.phase else ""
        if self.cause == ARRIVAL:
            why = "there was no request to serve, and only more requests would fill that time"
            return f"{start}: {why}."
        return f"{start}."


def largest_bubble(found: Sequence[Bubble]) -> Largest | None:
    """Return the largest cause; None where no device idled."""
    causes = by_cause(found)
    if not causes:
        return None
    cause = next(iter(causes))
    phases = {phase: ns for (of, phase), ns in by_phase(found).items() if of == cause}
    phase, phase_ns = next(iter(phases.items()))
    percent = 100 * causes[cause] / sum(causes.values())
    return Largest(cause, phase, causes[cause], percent, phase_ns)


# -- Both verdicts, bubbles and bound --------------------------------------------------------------

BUSY = 90  # percent of the time; a device that works less is not busy
MOST_LETTERS = 60  # of a name in a sentence


def shortened(name: str) -> str:
    """Return a name that fits into a sentence, shortened with an ellipsis if needed."""
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"


@dataclass(frozen=True)
class Bound:
    """No order of the same work takes less than ``ns``, as ``lane`` works as long as that.

    ``lanes`` is the time for which each one works, and ``percent`` how near the makespan is.
    """

    ns: int
    lane: str
    lanes: dict[str, int]
    percent: float


@dataclass(frozen=True)
class BlockingCall:
    """A call in which the host was blocked, ``count`` times, for ``ns`` in all.

    ``where`` is the innermost functions of Python around the longest one; empty: not recorded.
    ``names`` are those of the call, of the operators around it, and of these functions.
    """

    call: str
    ns: int
    count: int
    where: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class OverlapFindings:
    """The findings of the overlap check on one trace; times in nanoseconds.

    ``causes`` and ``phases`` (``host: schedule``) together make up ``bubble_ns`` each, the most
    first. ``critical`` is the critical path by lane and name, together the makespan (empty:
    nothing that was recorded ran then). ``largest`` is None where no device idled. ``blocked`` are
    the blocking calls, the longest in all first. ``lacks`` are sentences on missing parts of a
    profiler's file, and ``steps`` is one on what its steps are. ``speed.py`` words them all.
    """

    makespan_ns: int
    bubble_ns: int
    idle_percent: float  # of the time from a device's first op to its last, over all devices
    busy_percent: float  # the rest, in which a request was there
    hidden_percent: float  # of the host's work: the share that was done while a device worked
    unknown_percent: float  # of idle time
    causes: dict[str, int]
    phases: dict[str, int]
    critical: dict[str, int]
    verdict: OverlapVerdict
    bound: Bound
    largest: Largest | None
    blocked: tuple[BlockingCall, ...]
    lacks: tuple[str, ...]
    devices: int
    steps: str
    whole_ns: int  # from a device's first op to its last, over all devices
    advice: str = ""

    @property
    def is_busy(self) -> bool:
        """Return whether the devices work nearly all the time in which a request is there."""
        return self.busy_percent >= BUSY

    @property
    def gain(self) -> float:
        """Return how many times as long as the bound the run took."""
        return self.makespan_ns / self.bound.ns if self.bound.ns else 1.0


def report(trace: Trace, lacks: tuple[str, ...] = (), steps: str = "") -> OverlapFindings:
    """Return the findings on a trace; ``lacks`` and ``steps`` as ``foreign.py`` gives them."""
    trace = with_waits(trace)
    found, verdict, lanes = bubbles(trace), overlap_verdict(trace), forward_lanes(trace)
    idle, runs = by_cause(found), [device_runs(trace, lane) for lane in lanes]
    total, whole = sum(idle.values()), sum(map(span, runs))
    served = whole - idle.get(ARRIVAL, 0)
    intervals = work_of(trace)
    work = {lane: length(busy) for lane, busy in intervals.items()}
    busiest = max(work, key=lambda lane: work[lane], default="")
    bound = work.get(busiest, 0)
    device = union(Slice(0, "", "", start, end) for busy in runs for start, end in busy)
    hosts = [busy for lane, busy in intervals.items() if is_host(lane)]
    hidden, worked = (sum(length(intersection(busy, device)) for busy in hosts),
                      sum(map(length, hosts)))  # fmt: skip
    figures = OverlapFindings(
        makespan_ns=trace.end,
        bubble_ns=total,
        idle_percent=100 * total / whole if whole else 0.0,
        busy_percent=100 * (whole - total) / served if served else 0.0,
        hidden_percent=100 * hidden / worked if worked else 0.0,
        unknown_percent=100 * idle.get("unknown", 0) / total if total else 0.0,
        causes=idle,
        phases={": ".join(filter(None, name)): ns for name, ns in by_phase(found).items()},
        critical=critical_path(trace),
        verdict=verdict,
        bound=Bound(bound, busiest, work, 100 * bound / trace.end if trace.end else 100.0),
        largest=largest_bubble(found),
        blocked=tuple(blocking_calls(trace)),
        lacks=lacks,
        devices=max(1, len(lanes)),
        steps=steps,
        whole_ns=whole,
    )
    return replace(figures, advice=advice_on(figures))


def critical_path(trace: Trace) -> dict[str, int]:
    """Return the path back from the last slice to the beginning, in nanoseconds by slice."""
    slices, ran = course_of(trace)
    last = max(ran, key=lambda number: (ran[number].end, ran[number].start), default=0)
    sums = Counter[str]()
    if last:
        sums[""] += trace.end - ran[last].end  # a thread that was blocked to the end
        for part in (Segment(ran[last].start, ran[last].end, last, 0), *path_to(ran, last, 0)):
            item = slices.get(part.slice)
            sums[f"{item.lane}: {item.name}" if item else ""] += part.end - part.start
    return {name: ns for name, ns in sums.most_common() if ns}


def blocking_calls(trace: Trace) -> list[BlockingCall]:
    """Return the calls in which threads of the host were blocked, the longest in all first."""
    found: dict[str, list[Slice]] = {}
    for item in filter(is_blocked, trace.slices):
        found.setdefault(call_of(item), []).append(item)
    calls = list[BlockingCall]()
    for call, items in found.items():
        longest = max(items, key=lambda item: item.duration)
        ns, where = sum(item.duration for item in items), str(longest.attrs.get("where", ""))
        names = {call, call.partition(" (")[0]}
        for item in items:
            for key in ("within", "around", "where"):
                names |= set(str(item.attrs.get(key, "")).split(", "))
        names |= {name.rpartition(": ")[2] for name in names}  # from file.py(3): forward
        calls.append(BlockingCall(call, ns, len(items), where, tuple(sorted(names - {""}))))
    return sorted(calls, key=lambda item: -item.ns)


# -- The next thing to do --------------------------------------------------------------------------

MANY_GAPS = 3  # in a step; with more of them the host is late within steps, not between them
UNEXPLAINED = "record what happens while the device idles, because nothing recorded explains it."
REMEDIES = {  # of a cause of idle time, if no blocking call is the reason
    ARRIVAL: "send more requests, because the device is idle while none is there.",
    KERNEL_WAIT: "launch the kernels as one graph, because most gaps are between single kernels.",
    OTHER: "look for the stream or the event that the device waits for, with "
    "`minisched view overlap FILE --part timing`.",
    LATENCY: UNEXPLAINED,
    UNKNOWN: UNEXPLAINED,
    COPY: "copy on a stream of its own, and wait for the copy after the next launch.",
    MASK: "build the mask while the forward pass runs, and sample afterwards.",
}


def advice_on(found: OverlapFindings) -> str:
    """Return the next thing to do, as a sentence that begins with a verb; empty: nothing ran."""
    verdict, largest = found.verdict, found.largest
    if not found.whole_ns:
        return ""
    if found.is_busy and verdict.word == "unknown":
        return "record three steps in a row, because the time between steps is not in this file."
    if found.is_busy:
        return "nothing on the host; only less work for the device makes this run faster."
    if largest is None:
        return ""
    if largest.cause == ARRIVAL:
        return REMEDIES[ARRIVAL]
    blocking = next(iter(verdict.blocking), "")
    call = largest.phase if largest.cause == BLOCKED else blocking
    is_late_within = len(verdict.dry) >= MANY_GAPS * verdict.steps
    is_starved = is_late_within and blocking in (NO_BLOCK, NO_CALL)
    if largest.cause == HOST_WAIT and is_starved:
        return (
            "launch the kernels of a step as one graph: the host is late with single launches, "
            f"{many(len(verdict.dry), 'time')} here."
        )
    if verdict.word in ("serial", "partly") and not is_in_the_way(call, found):
        return (
            "launch each step before the result of the previous one is processed; the device "
            "takes the new tokens from its own memory."
        )
    if is_in_the_way(call, found):
        where = next((item.where for item in found.blocked if item.call == call), "")
        place = f", in {where.partition(', from ')[0]}" if where else ""
        return (
            f"do not block the host in {shortened(call)}{place}: copy the value to pinned memory "
            "without blocking, and read it after the next launch."
        )
    if largest.cause in (HOST, HOST_WAIT):
        part = f", above all {shortened(largest.phase)}" if largest.phase else ""
        return f"make the host's work shorter{part}: the device waits for it."
    return REMEDIES.get(largest.cause, f"shorten {largest.cause}, which the device waits for.")


def is_in_the_way(call: str, found: OverlapFindings) -> bool:
    """Return whether a name is that of a recorded call, and not of the wait for a step's tokens."""
    if call in ("", NO_BLOCK, NO_CALL, TOKENS):
        return False
    return any(item.call == call for item in found.blocked)
