"""Every bubble has a cause: what the op that ends it had been waiting for, moment by moment.

A device idles from the end of one op to the start of the next one on its lane. Going back from that
start along what came last (``critical_path.py``), the whole gap is taken up by slices of other
lanes; each piece of it is charged to one of them, and to a cause:

``host``         the host was at work: scheduling, preparing, launching, processing, telling clients
``token``        a token was on its way over the host: copied, and processed, before its step
``copy``         the host had blocked on a copy that brought the step no token
``mask``         the host built what a step may sample
``upload``       prompts were on their way to the device
``transfer``     KV was on its way from another device
``stage``        another device, or an earlier pipeline stage, had it first
``memory``       nobody could be admitted until memory, or a row, came back
``arrival``      nobody was there to be served
``message``      one of two schedulers slept until the other one said something
``latency``      launched, and begun less than 0.1 ms later than it could: the device's own delay
``unknown``      nothing recorded explains it

Where the loop said why an op had to wait (a mark ``wait``, see ``waits.py``: grammar, penalty,
prefill, speculation), the cause is that reason, whatever lay on the way.

A profiler's trace says when each kernel was launched, and on which streams a device works. There
the causes are ``host wait``, ``kernel wait`` and ``other``, as ``idle.py`` finds them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from ..trace import Mark, Slice, Trace
from ..trace.events import is_copy, is_forward, is_host
from .overlap import (
    HOST_WAIT,
    Blocked,
    Course,
    Interval,
    Launch,
    Ran,
    call_of,
    course_of,
    device_gaps,
    device_named,
    device_runs,
    forward_lane,
    gaps,
    in_time,
    intersection,
    is_blocked,
    is_profiled,
    launches,
    length,
    milliseconds,
    nobody_there,
    sentence,
    span,
    union,
)

# -- Why a device idled: for a wait that the trace names, for a request to come, or for the host
#
# A loop that lets an op of step N wait says so when it decides it, with a mark: ``recorder.mark(
# "wait", step=N, reason="grammar", op="sample")``. What that cost is read off the intervals.

HOST, ARRIVAL = "host", "arrival"  # the reasons of what no mark explains


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
    idle = idle_times(trace)
    lost = dict.fromkeys([*num_waits(trace), HOST, ARRIVAL], 0)
    for item in idle:
        lost[item.reason or HOST] += item.end - item.start
    for lane in {item.lane for item in idle}:
        unexplained = ((i.start, i.end) for i in idle if i.lane == lane and not i.reason)
        nobody = intersection(tuple(unexplained), nobody_there(trace, side_of(lane)))
        arrival = length(nobody) - length(intersection(nobody, receiving(trace, side_of(lane))))
        lost[ARRIVAL] += arrival
        lost[HOST] -= arrival
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
    lanes = sorted({item.lane for item in trace.slices if is_forward(item.lane)})
    return [idle for lane in lanes for idle in _idle_on(trace, lane)]


def _idle_on(trace: Trace, lane: str) -> Iterator[Idle]:
    late = starts_of_late_ops(trace, lane)
    cuts = sorted(late)
    for start, end in gaps(union(trace.on(lane))):
        for cut in cuts[bisect_right(cuts, start) : bisect_right(cuts, end)]:
            attrs = late[cut].attrs
            yield Idle(lane, start, cut, str(attrs["reason"]), int(attrs["step"]), str(attrs["op"]))
            start = cut  # an op that takes no time leaves the rest of the gap to the next one
        if start < end:
            yield Idle(lane, start, end)


def starts_of_late_ops(trace: Trace, lane: str) -> dict[int, Mark]:
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
        if key in starts and mark.attrs.get("side", "") == side_of(lane):
            late.setdefault(starts[key], mark)
    return late


def receiving(trace: Trace, side: str = "") -> tuple[Interval, ...]:
    """When a side's host took in messages; whoever comes is there, and counted only afterwards."""
    return union(
        item
        for item in trace.slices
        if item.name == "receive" and is_host(item.lane) and item.lane.startswith(side)
    )


def side_of(lane: str) -> str:
    """Whose device a forward lane is: ``prefill forward`` is the prefill side's."""
    return lane.removesuffix("forward").rstrip() if lane.endswith("forward") else ""


# -- When a device ran dry, in words: how often, for how long, and what the host did before --------

UNTOLD = "no blocking call"


def dry_words(
    device: str, dry: tuple[Interval, ...], percent: float, launcher: str,
    blocking: dict[str, int], deserted: int, queued: int,
) -> str:  # fmt: skip
    """``the device ran dry once, for 7.2 ms (3.3 % of the time); ...``, without a full stop.

    ``launcher`` is the lane that launched what came after. ``deserted`` is how many spells more
    there were in which nobody was left to be served, and ``queued`` how many gaps end with
    something that had been launched before them.
    """
    if not dry:
        only = f"ran dry only where nobody was left to be served ({_times(deserted)})"
        said = f"{device} {only if deserted else 'never ran dry'}"
        others = "its other gaps" if deserted else "its gaps"
        return said + (f", as what ended {others} had been launched before them" if queued else "")
    typical = milliseconds(int(median(end - start for start, end in dry)))
    said = f"{device} ran dry {_times(len(dry))}, for {typical}"
    said += f" ({percent:.1f} %" if len(dry) == 1 else f" at the median ({percent:.1f} %"
    said += " of the time)" if len(dry) == 1 else " of the time in all)"
    if deserted:
        said += f", besides {_times(deserted)} when nobody was left to be served"
    return f"{said}; {_before(len(dry), launcher, blocking)}"


def _before(spells: int, launcher: str, blocking: dict[str, int]) -> str:
    call, count = next(iter(blocking.items()))
    which = f"before {count} of them" if count < spells else "before each of them"
    who = "the host" if launcher == "host" else f"the {launcher}, which launches,"
    when = "just before," if spells == 1 else which
    if call == UNTOLD:
        return f"{when} no call had blocked {who}".rstrip(",")
    return f"{when} {who} was blocked in {call}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# -- Which cause a piece of a bubble has: read from slices, edges, counters and marks --------------

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


# -- The critical path: from the end of a run back to its beginning, always along what came last
#
# Whatever lies on it took its time out of the makespan; whatever does not, was hidden behind it.


class Segment(NamedTuple):
    """A part of a path, in nanoseconds; ``slice`` 0: nothing that was recorded ran then.

    ``before`` is the slice that started at its end, and had waited for it; 0 at the very end.
    """

    start: int
    end: int
    slice: int
    before: int

    @property
    def duration(self) -> int:
        """Nanoseconds."""
        return self.end - self.start


def critical_path(trace: Trace, course: Course | None = None) -> list[Segment]:
    """The path of a whole run, the earliest segment first; together exactly its makespan.

    ``course`` is that of the trace, if it is there already.
    """
    course = course or course_of(trace)
    return list(reversed(list(whole_path(course, course.ran))))


def whole_path(course: Course, ran: Mapping[int, Ran]) -> Iterator[Segment]:
    """The path that ends with the run, the newest segment first."""
    last = max(ran, key=lambda number: (ran[number].end, ran[number].start), default=0)
    end = ran[last].end if last else 0
    if end < course.end:
        yield Segment(end, course.end, 0, 0)  # a thread that was blocked to the end
    if last:
        yield Segment(ran[last].start, end, last, 0)
        yield from path_to(ran, last)


def path_to(ran: Mapping[int, Ran], number: int, since: int = 0) -> Iterator[Segment]:
    """What a slice waited for, back to the moment ``since``, the newest segment first.

    The segments make up the whole time from there to its start. One may have no length: what
    takes no time can hold up others too.
    """
    at = ran[number].start
    while at > since:
        now = ran[number]
        ready = max(now.ready, since)
        if ready < at:
            yield Segment(ready, at, 0, number)
            at = ready
        if not now.after:
            if at > since:
                yield Segment(since, at, 0, number)
            return
        start = max(since, min(at, ran[now.after].start))
        yield Segment(start, at, now.after, number)
        at, number = start, now.after


def shares(trace: Trace, path: list[Segment]) -> dict[tuple[str, str], int]:
    """Nanoseconds of a path by lane and name, the longest first; ``("", "")``: nothing ran."""
    names = {item.id: (item.lane, item.name) for item in trace.slices}
    sums: Counter[tuple[str, str]] = Counter()
    for segment in path:
        sums[names.get(segment.slice, ("", ""))] += segment.duration
    return {name: ns for name, ns in sums.most_common() if ns}


# -- What a workload could take at best, with the batches it ran in: and how near a run came to it


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


# -- Does it really overlap? Whether the host launches a step before the one before it has ended
#
# An engine can have overlap enabled and still run serially, because some call of the host blocks
# until the device is done (vllm-omni #4442). Three things tell: how many steps were launched ahead,
# how often the device ran dry, and in which call the host was blocked when it did.

MOST, FEW = 90, 10  # percent of steps launched ahead: overlapped from there, serial up to there
LEAST = 2  # steps after another one: fewer say nothing about how a loop works


@dataclass(frozen=True)
class OverlapVerdict:
    """``word`` is overlapped, partly, serial or unknown; times in nanoseconds.

    It is about one device, where steps begin: ``lane``. ``ahead`` of ``pairs`` steps were launched
    before the one before had ended, and ``late`` are the other steps. ``dry`` are the spells in
    which the device had nothing queued, as far as launches are known; ``blocking`` says how many
    of them came after which call, the most frequent first. Spells in which nobody was there to be
    served, at any moment, are not among them but ``deserted``.
    """

    word: str
    lane: str
    pairs: int
    ahead: int
    late: tuple[int, ...]
    dry: tuple[Interval, ...]
    deserted: int
    dry_percent: float  # of the time from the device's first op to its last
    blocking: dict[str, int]
    sentence: str
    steps: int = 0

    @property
    def ahead_percent(self) -> float:
        """The share of steps that were launched ahead."""
        return 100 * self.ahead / self.pairs if self.pairs else 0.0


def overlap_verdict(trace: Trace) -> OverlapVerdict:
    """The verdict on a trace, of this program or of a real engine."""
    lane = forward_lane(trace)
    ops, known = in_time(trace.on(lane)), launches(trace)
    steps = _steps(ops)
    absent = nobody_there(trace, side_of(lane))
    pairs = [
        (max(item.end for item in before), after[0])
        for before, after in pairwise(steps)
        if after[0].id in known and not _during(absent, before[-1].end, after[0].start)
    ]
    late = tuple(op.step for end, op in pairs if known[op.id].time > end)
    ended = _gaps_ended_by(trace, lane, known)
    empty = [(gap, launch) for gap, launch, is_dry in ended if is_dry]
    spells = [(gap, launch) for gap, launch in empty if not _during(absent, *gap)]
    dry = tuple(gap for gap, _ in spells)
    blocked = Blocked(trace)
    calls = Counter(_call(blocked, launch, gap[0]) for gap, launch in spells)
    by = Counter(launch.lane for _, launch in spells)
    launcher = next(iter(by.most_common(1)), ("", 0))[0]
    whole = span(device_runs(trace, lane))
    percent = 100 * sum(end - start for start, end in dry) / whole if whole else 0.0
    blocking, ahead = dict(calls.most_common()), len(pairs) - len(late)
    word, deserted = _word(len(pairs), ahead), len(empty) - len(spells)
    device = device_named(trace, lane)
    late_ns = sum(end - start for start, end in dry) if is_profiled(trace) else None
    said = _untold(len(steps), late, len(pairs), bool(ops), bool(known), late_ns) or (
        f"{_ahead_words(word, device, len(pairs), ahead)}; "
        f"{dry_words(device, dry, percent, launcher, blocking, deserted, len(ended) - len(empty))}."
    )
    return OverlapVerdict(
        word, lane, len(pairs), ahead, late, dry, deserted, percent, blocking, said, len(steps)
    )


def _steps(ops: list[Slice]) -> list[list[Slice]]:
    """The ops of each step, in the order in which steps began."""
    steps: dict[int, list[Slice]] = {}
    for op in ops:
        if op.step:
            steps.setdefault(op.step, []).append(op)
    return list(steps.values())


def _gaps_ended_by(
    trace: Trace, lane: str, known: dict[int, Launch]
) -> list[tuple[Interval, Launch, bool]]:
    """The gaps of a device, the launch of the op after each, and whether it came in that gap.

    Gaps that end with what nobody knows the launch of are left out. In a profiler's trace, a gap in
    which the launch came is that until then (``idle.py``).
    """
    if is_profiled(trace):
        return [
            ((gap.start, gap.end), gap.launch, gap.cause == HOST_WAIT)
            for gap in device_gaps(trace, lane, known)
            if gap.launch is not None
        ]
    ops = in_time(trace.on(lane))
    first: dict[int, Slice] = {}
    for op in ops:
        first.setdefault(op.start, op)
    found = [(gap, known.get(first[gap[1]].id)) for gap in gaps(union(ops))]
    return [(gap, launch, launch.time > gap[0]) for gap, launch in found if launch is not None]


def _during(absent: tuple[Interval, ...], start: int, end: int) -> bool:
    """Whether nobody was there at some moment between two."""
    return bool(intersection(absent, ((start, end),))) if start < end else False


def _call(blocked: Blocked, launch: Launch, since: int) -> str:
    item = blocked.before(launch, since)
    return call_of(item) if item else UNTOLD


def _word(pairs: int, ahead: int) -> str:
    if pairs < LEAST:
        return "unknown"
    percent = 100 * ahead / pairs
    return "overlapped" if percent >= MOST else "serial" if percent <= FEW else "partly"


def _untold(
    steps: int, late: tuple[int, ...], pairs: int, has_ops: bool, has_launches: bool,
    waited: int | None,
) -> str:  # fmt: skip
    """Why nothing can be said about how a loop works; empty where something can.

    ``waited`` is for how long the device waited for the host in it all, where that is known.
    """
    if not has_ops:
        return "Unknown: nothing ran on a device in this trace."
    if not has_launches:
        return "Unknown: the trace does not say which call of the host launched what."
    if pairs >= LEAST:
        return ""
    enough = f"it takes {LEAST + 1} of them to say how a loop works"
    if not steps:
        return (
            "Unknown: nothing tells where a step begins, and whether one is launched before the "
            f"one before has ended can be said only of steps; {enough}."
        )
    in_it = ""
    if waited is not None:
        in_it = f" In all, the device waited {milliseconds(waited)} for the host."
        in_it = in_it if waited else " In all, the device never waited for the host."
    if steps == 1:
        return f"Only one step was recorded, so none that could overlap with it; {enough}.{in_it}"
    if steps == 2 and pairs:
        when = "only after" if late else "before"
        return f"Of two steps the second was launched {when} the first had ended; {enough}.{in_it}"
    return (
        f"Unknown: {steps} steps were recorded, but fewer than {LEAST + 1} of them in a row with "
        f"launches that are known and somebody there; {enough}."
    )


def _ahead_words(word: str, device: str, pairs: int, ahead: int) -> str:
    verb = {"overlapped": "Overlapped", "partly": "Partly overlapped", "serial": "Serial"}[word]
    where = "" if device == "the device" else f"on {device}, "
    share = f"{ahead} of {pairs} steps ({100 * ahead / pairs:.0f} %)"
    return f"{verb}: {where}{share} were launched before the one before had ended"


@dataclass(frozen=True)
class Bubble:
    """A piece of time in which a device idled, in nanoseconds, and why.

    ``phase`` is what ran meanwhile (``process``, ``copy``), on ``where``; empty: nothing did.
    ``waited_for`` are the ids of those slices, and ``op`` is the one that could not start before.
    ``step`` is the op's.
    """

    lane: str
    start: int
    end: int
    cause: str
    phase: str
    where: str
    step: int
    op: int
    waited_for: tuple[int, ...]
    sentence: str

    @property
    def duration(self) -> int:
        """Nanoseconds."""
        return self.end - self.start


def bubbles(trace: Trace, course: Course | None = None) -> list[Bubble]:
    """Every bubble of a run in order of time; together exactly ``bubble_ns`` of ``overlap.py``.

    ``course`` is that of the trace, if it is there already.
    """
    course = course or course_of(trace)
    if is_profiled(trace):
        return sorted(
            _of_profiled(trace, course), key=lambda item: (item.start, item.lane, item.end)
        )
    causes = Causes(trace, course)
    found = [bubble for idle in idle_times(trace) for bubble in _cut(course, causes, idle)]
    return sorted(found, key=lambda item: (item.start, item.lane, item.end))


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


def _of_profiled(trace: Trace, course: Course) -> Iterator[Bubble]:
    """The bubbles of a profiler's trace; what the host did in a ``host wait`` is its phase."""
    known = launches(trace)
    for lane in sorted({item.lane for item in trace.slices if is_forward(item.lane)}):
        for gap in device_gaps(trace, lane, known):
            whole = [Segment(gap.start, gap.end, 0, 0)]
            path = whole
            if gap.cause == HOST_WAIT and gap.op.id in course.ran:
                path = list(path_to(course.ran, gap.op.id, gap.start)) or whole
            for segment in path:
                end, item = min(segment.end, gap.end), course.slices.get(segment.slice)
                item = item if item is not None and is_host(item.lane) else None
                if segment.start < end:
                    yield Bubble(
                        lane, segment.start, end, gap.cause,
                        phase=item.name if item else "",
                        where=item.lane if item else "",
                        step=gap.op.step,
                        op=gap.op.id,
                        waited_for=(item.id,) if item else (),
                        sentence=sentence(lane, end - segment.start, gap.cause, item, gap.op),
                    )  # fmt: skip


def _cut(course: Course, causes: Causes, idle: Idle) -> Iterator[Bubble]:
    """The pieces of one gap, the newest first."""
    op = course.first_at(idle.lane, idle.end)
    waiting = course.slices.get(op)
    nothing = [Segment(idle.start, idle.end, 0, 0)]  # known: its program waits in a circle
    path = path_to(course.ran, op, idle.start) if op in course.ran else nothing
    for start, end, cause, number in causes.of(idle, op, path):
        item = course.slices.get(number)
        if start < end:
            yield Bubble(
                idle.lane, start, end, cause,
                phase=item.name if item else "",
                where=item.lane if item else "",
                step=waiting.step if waiting else 0,
                op=op,
                waited_for=(number,) if number else (),
                sentence=sentence(idle.lane, end - start, cause, item, waiting),
            )  # fmt: skip
