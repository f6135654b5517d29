"""The verdict on overlap in a run and the causes of its idle time.

An engine can have overlap enabled and still run serially, because some call of the host blocks
until the device is done (vllm-omni #4442). Four facts decide: the number of steps launched ahead,
the idle share of the device's time, how often it ran dry, and the blocking call of the host then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter

from ..trace import Slice, Trace
from .causes import (
    ARRIVAL,
    BLOCKED,
    HOST_WAIT,
    KERNEL_WAIT,
    OTHER,
    WORK,
    Bubble,
    Launch,
    bubbles,
    by_cause,
    by_phase,
    device_gaps,
    is_good_part,
    launches,
)
from .course import Segment, course_of, path_to
from .history import many, milliseconds, side_of
from .overlap import (
    Interval,
    call_of,
    device_named,
    device_runs,
    forward_lane,
    forward_lanes,
    gaps,
    intersection,
    is_blocked,
    is_profiled,
    length,
    nobody_there,
    span,
    with_waits,
    work_of,
)

# -- Whether the host launches a step before the one before it has ended ---------------------------

MOST, FEW = 90, 10  # percent of steps launched ahead: overlapped from there, serial up to there
MOST_IDLE = 10  # percent of idle time; a device that idles more is not overlapped
LEAST = 2  # steps after another one: fewer show nothing about a loop
NO_BLOCK, NO_CALL = "no blocking call", "no recorded call"  # before a device ran dry
VERDICTS = {"overlapped": "Overlapped", "partly": "Partly overlapped", "serial": "Serial"}


@dataclass(frozen=True)
class OverlapVerdict:
    """``word`` is overlapped, partly, serial or unknown.

    It is about one device, where ``steps`` begin: ``lane``. ``ahead`` of ``pairs`` steps were
    launched before the one before had ended; ``late`` are the others. ``dry`` is when the device
    had nothing queued, in nanoseconds. ``blocking`` counts the calls in which the host was blocked
    then, the most frequent first. Steps and times after a moment without any request do not count;
    ``deserted`` is the number of such times.
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
    """Return the verdict on a trace, of this program or of a real engine."""
    lane, known = forward_lane(trace), launches(trace)
    absent = nobody_there(trace, side_of(lane)[0])

    def is_served(start: int, end: int) -> bool:
        """Return whether a request was there all the time from ``start`` to ``end``."""
        return start >= end or not intersection(absent, ((start, end),))

    steps: defaultdict[int, list[Slice]] = defaultdict(list)  # in the order in which they began
    for op in trace.on(lane):
        if op.step:
            steps[op.step].append(op)
    ahead = {  # of each step after another one: whether it was launched ahead
        after[0].step: known[after[0].id].time <= max(item.end for item in before)
        for before, after in pairwise(steps.values())
        if after[0].id in known and is_served(before[-1].end, after[0].start)
    }
    empty = [gap for gap in device_gaps(trace, lane, known) if gap.cause == HOST_WAIT]
    dry = [gap for gap in empty if is_served(gap.start, gap.end)]
    hosts = {host: trace.on(host) for host in {known[gap.op].lane for gap in dry}}
    calls, launchers, longest = Counter[str](), Counter[str](), 0
    for gap in dry:
        launch = known[gap.op]
        call, ns = before_launch(gap, launch, hosts[launch.lane])
        longest = max(longest, ns) if call == NO_CALL else longest
        calls[call] += 1
        launchers[launch.lane] += 1
    runs = device_runs(trace, lane)
    idle, gone = gaps(runs), intersection(gaps(runs), absent)
    served = span(runs) - length(gone)
    idle_percent = 100 * (length(idle) - length(gone)) / served if served else 0.0
    good, whole = sum(ahead.values()), span(runs)
    percent = 100 * good / len(ahead) if ahead else 0.0
    word = "overlapped" if percent >= MOST else "serial" if percent <= FEW else "partly"
    device, but = device_named(trace, lane), ""
    if word == "overlapped" and idle_percent > MOST_IDLE:
        word, but = "partly", f", but {device} idled for {idle_percent:.1f} % of the time"
    if len(ahead) < LEAST:
        word, where = "unknown", "no step is marked"
        where = f"{many(len(steps), 'step')} here" if steps else where
        sentence = (
            f"Unknown: {where}, and a verdict needs {LEAST + 1} in a row, "
            "launched by calls that are known."
        )
        sentence = sentence if known else "Unknown: the trace has no call that launched an op."
        sentence = sentence if trace.on(lane) else "Unknown: nothing ran on a device in this trace."
    else:
        dryness = ran_dry(calls, launchers, longest) if whole else "has only ops of no duration."
        sentence = (
            f"{VERDICTS[word]}: {'' if device == 'the device' else f'on {device}, '}{good} "
            f"of {len(ahead)} steps ({percent:.0f} %) were launched before the previous one had "
            f"ended{but}; {device} {dryness}"
        )
    return OverlapVerdict(
        word, lane, len(steps), len(ahead), good,
        late=tuple(step for step, is_ahead in ahead.items() if not is_ahead),
        dry=tuple((gap.start, gap.end) for gap in dry),
        dry_percent=100 * sum(gap.duration for gap in dry) / whole if whole else 0.0,
        deserted=len(empty) - len(dry), blocking=dict(calls.most_common()), sentence=sentence,
    )  # fmt: skip


def before_launch(gap: Bubble, launch: Launch, items: Sequence[Slice]) -> tuple[str, int]:
    """Return why a launch was late: the blocking call, or that no call was made; and how long.

    ``items`` are all slices of the launching thread. A call, or a stretch without one, counts if it
    reached into the gap and lasted at least half as long. The longest is the answer.
    """
    times = Counter[str]()
    at = launch.since
    for item in reversed(items[: bisect_left(items, at, key=attrgetter("start"))]):
        if at > gap.start:
            times[NO_CALL] = max(times[NO_CALL], at - item.end)
        if item.end < gap.start:
            break
        if is_blocked(item):
            times[call_of(item)] += item.duration
        at = item.start
    call, ns = max(times.items(), key=lambda item: item[1], default=("", 0))
    return (call, ns) if ns and is_good_part(ns, gap.duration) else (NO_BLOCK, 0)


def ran_dry(calls: Counter[str], launchers: Counter[str], longest: int) -> str:
    """Return how often a device ran dry, and the most frequent reason.

    ``longest`` is the longest stretch in which the launching thread made no call, in nanoseconds.
    """
    if not calls:
        return "never ran dry."
    [(call, count)], [(launcher, _)] = calls.most_common(1), launchers.most_common(1)
    thread, dry = "the host" if launcher == "host" else f"the {launcher}", calls.total()
    how = f"{thread} had just been blocked in {call}"
    how = f"no call had blocked {thread}" if call == NO_BLOCK else how
    up_to = "" if count == 1 else "up to "
    quiet = f"{thread} had made no recorded call for {up_to}{milliseconds(longest)}"
    how = quiet if call == NO_CALL else how
    each = "each time" if count == dry else f"{count} times"
    return f"ran dry once; {how}." if dry == 1 else f"ran dry {dry} times; {each} {how}."


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


# -- All of it: verdict, bubbles and bound ---------------------------------------------------------

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
class OverlapFindings:
    """The findings of the overlap check on one trace; times in nanoseconds.

    ``causes`` and ``phases`` (``host: schedule``) together make up ``bubble_ns`` each, the most
    first. ``critical`` is the critical path by lane and name, together the makespan (empty:
    nothing that was recorded ran then). ``largest`` is None where no device idled. ``lacks`` are
    sentences on missing parts of a profiler's file, and ``steps`` is one on what its steps are.
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
    """Return the findings on a trace; ``lacks`` and ``steps`` as ``foreign.py`` gives them."""
    trace = with_waits(trace)
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
        largest=largest_bubble(found),
        lacks=lacks,
        devices=max(1, len(lanes)),
        steps=steps,
    )
    said = [*lacks, verdict.sentence, *filter(None, [steps]), *_sentences(trace, figures)]
    return replace(figures, sentences=tuple(said))


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


def _sentences(trace: Trace, found: OverlapFindings) -> Iterator[str]:
    """Yield the idle time of the devices with its causes, and the bound."""
    one, known = found.devices == 1, found.verdict.word != "unknown"
    subject = "Between its first op and its last, the device"
    if not one:
        subject = f"Each between its first op and its last, the {found.devices} devices"
    if found.causes:
        parts = ", ".join(f"{cause} {milliseconds(ns)}" for cause, ns in found.causes.items())
        of = "of that time" if one else "of their time, added up"
        share = f"{milliseconds(found.bubble_ns)} ({found.idle_percent:.1f} % {of})"
        yield f"{subject} idled for {share}: {parts}."
    elif known:
        yield f"{subject} never idled."
    if is_profiled(trace):
        if means := "; ".join(MEANINGS[cause] for cause in MEANINGS if cause in found.causes):
            yield f"{means[0].upper()}{means[1:]}."
        yield from _blocked_words(trace)
    if found.unknown_percent:
        yield f"Nothing recorded explains {found.unknown_percent:.1f} % of the idle time."
    largest = found.largest
    if largest and (largest.cause != KERNEL_WAIT or found.idle_percent > MOST_IDLE):
        yield largest.sentence
    if known and (bound := found.bound).ns:
        yield (
            f"These batches cannot take less than {milliseconds(bound.ns)} unless their work gets "
            f"faster, because lane {bound.lane} has that much work; "
            f"this run took {milliseconds(found.makespan_ns)}."
        )


def _blocked_words(trace: Trace) -> Iterator[str]:
    """Yield the call in which the host was blocked most."""
    blocked, threads = Counter[str](), set[str]()
    for item in filter(is_blocked, trace.slices):
        blocked[call_of(item)] += item.duration
        threads.add(item.lane)
    if total := blocked.total():
        [(call, ns)] = blocked.most_common(1)
        most = "" if len(blocked) == 1 else f", {milliseconds(ns)} of it"
        several = f"{len(threads)} threads of the host, added up, were"
        subject = "The host was" if len(threads) == 1 else several
        yield f"{subject} blocked for {milliseconds(total)}{most} in {shortened(call)}."
