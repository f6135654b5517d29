"""Does it really overlap? The verdict on a run, what its idle time was for, and the remedy.

An engine can have overlap enabled and still run serially, because some call of the host blocks
until the device is done (vllm-omni #4442). Three things tell: how many steps were launched ahead,
how often the device ran dry, and in which call the host was blocked when it did.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter

from ..trace import Slice, Trace
from .causes import (
    ARRIVAL,
    HOST_WAIT,
    KERNEL_WAIT,
    OTHER,
    Bubble,
    bubbles,
    by_cause,
    by_phase,
    device_gaps,
    launches,
)
from .history import many, milliseconds, side_of
from .overlap import (
    Interval,
    device_named,
    device_runs,
    forward_lane,
    forward_lanes,
    intersection,
    is_blocked,
    is_profiled,
    length,
    nobody_there,
    span,
    work_of,
)
from .what_if import Segment, course_of, free, launch_ahead, makespan, path_to

# -- Whether the host launches a step before the one before it has ended ---------------------------

MOST, FEW = 90, 10  # percent of steps launched ahead: overlapped from there, serial up to there
LEAST = 2  # steps after another one: fewer say nothing about how a loop works
UNTOLD = "no blocking call"
VERDICTS = {"overlapped": "Overlapped", "partly": "Partly overlapped", "serial": "Serial"}


@dataclass(frozen=True)
class OverlapVerdict:
    """``word`` is overlapped, partly, serial or unknown.

    It is about one device, where ``steps`` begin: ``lane``. ``ahead`` of ``pairs`` steps were
    launched before the one before had ended; ``late`` are the others. ``dry`` is when the device
    had nothing queued, in nanoseconds, and ``blocking`` after which call of the host, and how often
    it was so, the most frequent first. Steps and times behind a moment at which nobody was there to
    be served do not count; ``deserted`` says how many such times there were.
    """

    word: str
    lane: str
    steps: int
    pairs: int
    ahead: int
    late: tuple[int, ...]
    dry: tuple[Interval, ...]
    dry_percent: float  # of the time from the device's first op to its last
    deserted: int
    blocking: dict[str, int]
    sentence: str


def overlap_verdict(trace: Trace) -> OverlapVerdict:
    """The verdict on a trace, of this program or of a real engine."""
    lane, known = forward_lane(trace), launches(trace)
    absent = nobody_there(trace, side_of(lane)[0])

    def is_served(start: int, end: int) -> bool:
        return start >= end or not intersection(absent, ((start, end),))

    steps: defaultdict[int, list[Slice]] = defaultdict(list)  # in the order in which they began
    for op in trace.on(lane):
        if op.step:
            steps[op.step].append(op)
    ahead = {  # whether it was launched so, of each step behind another one
        after[0].step: known[after[0].id].time <= max(item.end for item in before)
        for before, after in pairwise(steps.values())
        if after[0].id in known and is_served(before[-1].end, after[0].start)
    }
    blocked: defaultdict[str, list[Slice]] = defaultdict(list)
    for item in filter(is_blocked, trace.slices):
        blocked[item.lane].append(item)
    calls, launchers = Counter[str](), Counter[str]()
    empty = [gap for gap in device_gaps(trace, lane, known) if gap.cause == HOST_WAIT]
    dry = [gap for gap in empty if is_served(gap.start, gap.end)]
    for gap in dry:
        launch = known[gap.op]
        waits = blocked[launch.lane]
        newest = waits[: bisect_right(waits, launch.time, key=attrgetter("end"))][-1:]
        calls[call_of(newest[0]) if newest and newest[0].end >= gap.start else UNTOLD] += 1
        launchers[launch.lane] += 1
    good, whole = sum(ahead.values()), span(device_runs(trace, lane))
    percent = 100 * good / len(ahead) if ahead else 0.0
    word = "overlapped" if percent >= MOST else "serial" if percent <= FEW else "partly"
    device = device_named(trace, lane)
    if len(ahead) < LEAST:
        word, where = "unknown", "nothing tells where a step begins"
        where = f"{many(len(steps), 'step')} here" if steps else where
        said = (
            f"Unknown: {where}, and it takes {LEAST + 1} in a row, launched by calls that are "
            "known, to say how a loop works."
        )
        said = said if known else "Unknown: the trace does not say which call launched what."
        said = said if trace.on(lane) else "Unknown: nothing ran on a device in this trace."
    else:
        said = (
            f"{VERDICTS[word]}: {'' if device == 'the device' else f'on {device}, '}{good} "
            f"of {len(ahead)} steps ({percent:.0f} %) were launched before the one before had "
            f"ended; {device} {ran_dry(calls, launchers)}"
        )
    return OverlapVerdict(
        word, lane, len(steps), len(ahead), good,
        late=tuple(step for step, is_ahead in ahead.items() if not is_ahead),
        dry=tuple((gap.start, gap.end) for gap in dry),
        dry_percent=100 * sum(gap.duration for gap in dry) / whole if whole else 0.0,
        deserted=len(empty) - len(dry), blocking=dict(calls.most_common()), sentence=said,
    )  # fmt: skip


def ran_dry(calls: Counter[str], launchers: Counter[str]) -> str:
    """How often a device did, and what had blocked the thread that launches."""
    if not calls:
        return "never ran dry."
    [(call, count)], [(launcher, _)] = calls.most_common(1), launchers.most_common(1)
    who, dry = "the host" if launcher == "host" else f"the {launcher}", calls.total()
    how = f"{who} had just been blocked in {call}"
    how = how if call != UNTOLD else f"no call had blocked {who}"
    each = "each time" if count == dry else f"{count} times"
    return f"ran dry once; {how}." if dry == 1 else f"ran dry {dry} times; {each} {how}."


def call_of(item: Slice) -> str:
    """What blocked the host: ``cudaStreamSynchronize (aten::item)``; in our traces, a copy."""
    call = str(item.attrs.get("call", "the wait for a step's tokens"))
    within = item.attrs.get("within", "")
    return f"{call} ({within})" if within else call


# -- What took most of the idle time, and what the run would have taken without it: replayed -------

AHEAD = (
    "launch each step before the one before it is processed, and keep its tokens on the device "
    "(overlap)"
)
BY_HOST = ("host", "copy", "prefill", "unknown")  # an earlier launch hides these
BY_PHASE = (*BY_HOST, "mask", "grammar", "penalty", "upload", "transfer", "speculation")


@dataclass(frozen=True)
class Removal:
    """A change, and the makespan with it, in nanoseconds; the batches stay as they were."""

    change: str
    ns: int
    was_ns: int


@dataclass(frozen=True)
class Largest:
    """The cause that took most, the phase in it that did, and changes to it, the best first.

    In a profiler's trace it is the wait for the host: nothing is known of the other causes.
    """

    cause: str
    phase: str
    ns: int
    percent: float  # of the bubbles
    removals: tuple[Removal, ...]

    @property
    def sentence(self) -> str:
        """``Of the idle time, host took 25 ms (69.4 %), above all schedule; ...``"""
        start = f"Of the idle time, {self.cause} took {milliseconds(self.ns)} "
        start += f"({self.percent:.1f} %)"
        start += f", above all {shortened(self.phase)}" if self.phase else ""
        if self.cause == ARRIVAL:
            why = "what idled had no request to serve, and only more of them would fill that time"
            return f"{start}: {why}."
        if not self.removals:
            return f"{start}."
        best = self.removals[0]
        return (
            f"{start}; {best.change}, and the run takes {milliseconds(best.ns)} "
            f"instead of {milliseconds(best.was_ns)}."
        )


def largest_bubble(
    trace: Trace, found: Sequence[Bubble], verdict: OverlapVerdict
) -> Largest | None:
    """The largest cause and its remedies; None where no device idled.

    A remedy that another order gives comes before one that makes work free, where it gains at least
    as much. What a profiler saw is not played again: it does not say what waits for what.
    """
    causes = by_cause(found)
    if not causes:
        return None
    cause = HOST_WAIT if HOST_WAIT in causes else next(iter(causes))
    phase = next(phase for (of, phase) in by_phase(found) if of == cause)
    better: list[Removal] = []
    if not is_profiled(trace):
        course = course_of(trace)
        was, changed = makespan(course.lanes), {}
        if verdict.word in ("serial", "partly") and cause in BY_HOST:
            changed[AHEAD] = launch_ahead(course)
        if cause in BY_PHASE and phase:
            changed[f"let {phase} take no time"] = free(course, phase)
        tried = [Removal(name, makespan(new), was) for name, new in changed.items() if new]
        better = sorted((item for item in tried if item.ns < was), key=lambda item: item.ns)
    percent = 100 * causes[cause] / sum(causes.values())
    return Largest(cause, phase, causes[cause], percent, tuple(better))


# -- All of it: verdict, bubbles, bound, and the remedy --------------------------------------------

MEANINGS = {  # of a profiler's trace
    HOST_WAIT: "host wait is until what ends the gap has been launched",
    KERNEL_WAIT: "kernel wait is less than 0.03 ms from one op to the next, launched before",
    OTHER: "other is longer, and launched before: for another stream, or for what is not recorded",
}
MOST_LETTERS = 60  # of a name in a sentence


def shortened(name: str) -> str:
    """A name that fits into a sentence, perhaps with an ellipsis at its end."""
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"


@dataclass(frozen=True)
class Bound:
    """No order of the same work takes less than ``ns``, as ``lane`` works as long as that.

    ``lanes`` says for how long each one works, and ``percent`` how near the makespan is.
    """

    ns: int
    lane: str
    lanes: dict[str, int]
    percent: float


@dataclass(frozen=True)
class OverlapFindings:
    """What the overlap check says of one trace; times in nanoseconds.

    ``causes`` and ``phases`` (``host: schedule``) together make up ``bubble_ns`` each, the most
    first. ``critical`` is the critical path by lane and name, together the makespan (empty:
    nothing that was recorded ran then). ``largest`` is None where no device idled. ``lacks`` and
    ``steps`` are sentences on what a profiler's file does not tell, and what its steps are.
    ``sentences`` is all of it to be read, the verdict first.
    """

    makespan_ns: int
    bubble_ns: int
    idle_percent: float  # of the time from a device's first op to its last, over all devices
    unknown_percent: float  # of idle time
    causes: dict[str, int]
    phases: dict[str, int]
    critical: dict[str, int]
    verdict: OverlapVerdict
    bound: Bound
    largest: Largest | None
    lacks: tuple[str, ...]
    devices: int
    steps: str
    sentences: tuple[str, ...] = ()


def report(trace: Trace, lacks: tuple[str, ...] = (), steps: str = "") -> OverlapFindings:
    """The findings on a trace; ``lacks`` and ``steps`` as ``foreign.py`` gives them."""
    found, verdict, lanes = bubbles(trace), overlap_verdict(trace), forward_lanes(trace)
    idle, whole = by_cause(found), sum(span(device_runs(trace, lane)) for lane in lanes)
    total = sum(idle.values())
    work = {lane: length(busy) for lane, busy in work_of(trace).items()}
    busiest = max(work, key=lambda lane: work[lane], default="")
    bound = work.get(busiest, 0)
    figures = OverlapFindings(
        makespan_ns=trace.end,
        bubble_ns=total,
        idle_percent=100 * total / whole if whole else 0.0,
        unknown_percent=100 * idle.get("unknown", 0) / total if total else 0.0,
        causes=idle,
        phases={": ".join(filter(None, name)): ns for name, ns in by_phase(found).items()},
        critical=critical_path(trace),
        verdict=verdict,
        bound=Bound(bound, busiest, work, 100 * bound / trace.end if trace.end else 100.0),
        largest=largest_bubble(trace, found, verdict),
        lacks=lacks,
        devices=max(1, len(lanes)),
        steps=steps,
    )
    said = [*lacks, verdict.sentence, *filter(None, [steps]), *_sentences(trace, figures)]
    return replace(figures, sentences=tuple(said))


def critical_path(trace: Trace) -> dict[str, int]:
    """What the last thing that ran had waited for, back to the beginning, in nanoseconds."""
    slices, _, ran = course_of(trace)
    last = max(ran, key=lambda number: (ran[number].end, ran[number].start), default=0)
    sums = Counter[str]()
    if last:
        sums[""] += trace.end - ran[last].end  # a thread that was blocked to the end
        for part in (Segment(ran[last].start, ran[last].end, last, 0), *path_to(ran, last, 0)):
            item = slices.get(part.slice)
            sums[f"{item.lane}: {item.name}" if item else ""] += part.end - part.start
    return {name: ns for name, ns in sums.most_common() if ns}


def _sentences(trace: Trace, found: OverlapFindings) -> Iterator[str]:
    """How much of the time a device idled, and what for; and the bound."""
    one, known = found.devices == 1, found.verdict.word != "unknown"
    whose = "Between its first op and its last, the device"
    if not one:
        whose = f"Each between its first op and its last, the {found.devices} devices"
    if found.causes:
        parts = ", ".join(f"{cause} {milliseconds(ns)}" for cause, ns in found.causes.items())
        of = "of that time" if one else "of their time, added up"
        share = f"{milliseconds(found.bubble_ns)} ({found.idle_percent:.1f} % {of})"
        yield f"{whose} idled for {share}: {parts}."
    elif known:
        yield f"{whose} never idled."
    if is_profiled(trace):
        if means := "; ".join(MEANINGS[cause] for cause in MEANINGS if cause in found.causes):
            yield f"{means[0].upper()}{means[1:]}."
        yield from _blocked_words(trace)
    if found.unknown_percent:
        yield f"Nothing recorded explains {found.unknown_percent:.1f} % of the idle time."
    if found.largest is not None and found.largest.cause not in (KERNEL_WAIT, OTHER):
        yield found.largest.sentence
    if known and (bound := found.bound).ns:
        yield (
            "As long as each piece of work takes what it took, these batches cannot take less than "
            f"{milliseconds(bound.ns)}, because that much work is on lane {bound.lane}; "
            f"this run took {milliseconds(found.makespan_ns)}."
        )


def _blocked_words(trace: Trace) -> Iterator[str]:
    """In which call the host was blocked most."""
    blocked, threads = Counter[str](), set[str]()
    for item in filter(is_blocked, trace.slices):
        blocked[call_of(item)] += item.duration
        threads.add(item.lane)
    if total := blocked.total():
        [(call, ns)] = blocked.most_common(1)
        most = "" if len(blocked) == 1 else f", {milliseconds(ns)} of it"
        several = f"{len(threads)} threads of the host, added up, were"
        who = "The host was" if len(threads) == 1 else several
        yield f"{who} blocked for {milliseconds(total)}{most} in {shortened(call)}."
