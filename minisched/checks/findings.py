"""Does it really overlap? The verdict on a run, what its idle time was for, and the remedy.

An engine can have overlap enabled and still run serially, because some call of the host blocks
until the device is done (vllm-omni #4442). Three things tell: how many steps were launched ahead,
how often the device ran dry, and in which call the host was blocked when it did.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any

from ..trace import Slice, Trace
from ..trace.events import is_host
from .causes import (
    ARRIVAL,
    HOST_WAIT,
    KERNEL_WAIT,
    OTHER,
    SHORT,
    Blocked,
    Bubble,
    Gap,
    Launch,
    bubbles,
    by_cause,
    by_phase,
    call_of,
    device_gaps,
    ended_gaps,
    forward_lanes,
    launches,
    side_of,
)
from .history import counted, milliseconds
from .overlap import (
    Interval,
    device_named,
    device_runs,
    forward_lane,
    intersection,
    is_profiled,
    length,
    measure,
    nobody_there,
    span,
)
from .what_if import (
    WAIT,
    Bound,
    Change,
    Course,
    bound,
    course_of,
    critical_path,
    free,
    in_time,
    launch_ahead,
    makespan,
    sample_at_once,
    shares,
)

# -- Whether the host launches a step before the one before it has ended ---------------------------

MOST, FEW = 90, 10  # percent of steps launched ahead: overlapped from there, serial up to there
LEAST = 2  # steps after another one: fewer say nothing about how a loop works
UNTOLD = "no blocking call"


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
    steps: defaultdict[int, list[Slice]] = defaultdict(list)  # in the order in which they began
    for op in ops:
        if op.step:
            steps[op.step].append(op)
    absent = nobody_there(trace, side_of(lane))

    def is_deserted(start: int, end: int) -> bool:
        return start < end and bool(intersection(absent, ((start, end),)))

    pairs = [
        (max(item.end for item in before), after[0])
        for before, after in pairwise(steps.values())
        if after[0].id in known and not is_deserted(before[-1].end, after[0].start)
    ]
    late = tuple(op.step for end, op in pairs if known[op.id].time > end)
    empty = list(_dry_gaps(trace, lane, known))
    spells = [(gap, launch) for gap, launch in empty if not is_deserted(*gap)]
    dry = tuple(gap for gap, _ in spells)
    blocked = Blocked(trace)
    calls: Counter[str] = Counter()
    for gap, launch in spells:
        item = blocked.before(launch, gap[0])
        calls[call_of(item) if item else UNTOLD] += 1
    whole = span(device_runs(trace, lane))
    ahead, device = len(pairs) - len(late), device_named(trace, lane)
    found = OverlapVerdict(
        _word(len(pairs), ahead), lane, len(pairs), ahead, late, dry, len(empty) - len(spells),
        100 * length(dry) / whole if whole else 0.0, dict(calls.most_common()), "", len(steps),
    )  # fmt: skip
    if not ops:
        said = "Unknown: nothing ran on a device in this trace."
    elif not known:
        said = "Unknown: the trace does not say which call of the host launched what."
    elif len(pairs) < LEAST:
        few = (
            f"{counted(len(steps), 'step')} here" if steps else "nothing tells where a step begins"
        )
        said = (
            f"Unknown: {few}, and it takes {LEAST + 1} in a row, launched by calls that are known, "
            "to say how a loop works."
        )
    else:
        launchers = Counter(launch.lane for _, launch in spells).most_common(1)
        launcher = launchers[0][0] if launchers else ""
        said = f"{_ahead_words(found, device)}; {_dry_words(found, device, launcher)}."
    return replace(found, sentence=said)


def _word(pairs: int, ahead: int) -> str:
    if pairs < LEAST:
        return "unknown"
    percent = 100 * ahead / pairs
    return "overlapped" if percent >= MOST else "serial" if percent <= FEW else "partly"


def _dry_gaps(
    trace: Trace, lane: str, known: Mapping[int, Launch]
) -> Iterator[tuple[Interval, Launch]]:
    """The gaps of a device in which what ends them was launched, as far as launches are known.

    In a profiler's trace such a gap is that until the launch.
    """
    if is_profiled(trace):
        for gap in device_gaps(trace, lane, known):
            if gap.launch is not None and gap.cause == HOST_WAIT:
                yield (gap.start, gap.end), gap.launch
        return
    for start, end, op in ended_gaps(trace.on(lane)):
        if (launch := known.get(op.id)) and launch.time > start:
            yield (start, end), launch


def _ahead_words(found: OverlapVerdict, device: str) -> str:
    verbs = {"overlapped": "Overlapped", "partly": "Partly overlapped", "serial": "Serial"}
    where = "" if device == "the device" else f"on {device}, "
    share = f"{found.ahead} of {found.pairs} steps ({found.ahead_percent:.0f} %)"
    return f"{verbs[found.word]}: {where}{share} were launched before the one before had ended"


def _dry_words(found: OverlapVerdict, device: str, launcher: str) -> str:
    """``the device ran dry once, for 7.2 ms (3.3 % of the time); ...``, without a full stop.

    ``launcher`` is the lane that launched what came after.
    """
    dry, once = found.dry, len(found.dry) == 1
    left = f"{_times(found.deserted)} when nobody was left to be served"
    if not dry:
        return f"{device} ran dry only {left}" if found.deserted else f"{device} never ran dry"
    typical = milliseconds(int(median(end - start for start, end in dry)))
    said = f"{device} ran dry {_times(len(dry))}, for {typical}{'' if once else ' at the median'}"
    said += f" ({found.dry_percent:.1f} % of the time{'' if once else ' in all'})"
    said += f", besides {left}" if found.deserted else ""
    call, count = next(iter(found.blocking.items()))
    who = "the host" if launcher == "host" else f"the {launcher}, which launches,"
    when = f"before {count} of them" if count < len(dry) else "before each of them"
    when = "just before," if once else when
    if call == UNTOLD:
        return f"{said}; {when} no call had blocked {who}".rstrip(",")
    return f"{said}; {when} {who} was blocked in {call}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# -- What would remove the largest bubble, and what the run would have taken then: replayed --------

AHEAD = (
    "launch each step before the one before it is processed, and keep its tokens on the device "
    "(overlap)"
)
BY_HOST = ("host", "host wait", "token", "copy", "prefill")  # an earlier launch hides these
BY_PHASE = (*BY_HOST, "mask", "grammar", "penalty", "upload", "transfer", "speculation")


@dataclass(frozen=True)
class Removal:
    """A change, and the makespan with it, in nanoseconds; the batches stay as they were."""

    change: str
    ns: int
    was_ns: int


@dataclass(frozen=True)
class Largest:
    """The cause that took most, the phase in it that did, and changes to it, the best first."""

    cause: str
    phase: str
    ns: int
    percent: float  # of the bubbles
    removals: tuple[Removal, ...]

    @property
    def sentence(self) -> str:
        """``Most idle time has the cause host (25 ms, 69 %), above all schedule; ...``"""
        start = f"Most idle time has the cause {self.cause} "
        start += f"({milliseconds(self.ns)}, {self.percent:.0f} %)"
        start += f", above all {self.phase}" if self.phase else ""
        if self.cause == ARRIVAL:
            why = "what idled had no request to serve, and only more of them would fill that time"
            return f"{start}: {why}."
        if not self.removals:
            return f"{start}; replaying cannot tell what removing this would save."
        best = self.removals[0]
        return (
            f"{start}; {best.change}, and the run takes {milliseconds(best.ns)} "
            f"instead of {milliseconds(best.was_ns)}."
        )


def largest_bubble(
    trace: Trace, found: Iterable[Bubble], course: Course, verdict: OverlapVerdict
) -> Largest | None:
    """The largest cause and its remedies; None where no device idled.

    A remedy that another order gives comes before one that makes work free, where it gains at
    least as much.
    """
    found = list(found)
    if not found:
        return None
    causes = by_cause(found)
    cause = next(iter(causes))
    phase = next(phase for (of, phase) in by_phase(found) if of == cause)
    changes: list[tuple[str, Change]] = []
    if cause in BY_HOST or (cause == "unknown" and verdict.late):  # late, whatever it did
        changes.append((AHEAD, launch_ahead))
    if cause in ("grammar", "penalty"):
        changes.append((f"sample without waiting for the {cause}", sample_at_once(trace, cause)))
    if cause in BY_PHASE and phase:
        changes.append((f"let {phase} take no time", free(phase)))
    was = max((item.end for item in course.ran.values()), default=0)
    tried = [
        Removal(name, makespan(lanes), was)
        for name, change in changes
        if (lanes := change(course)) is not None
    ]
    better = sorted((item for item in tried if item.ns < was), key=lambda item: item.ns)
    percent = 100 * causes[cause] / sum(causes.values())
    return Largest(cause, phase, causes[cause], percent, tuple(better))


# -- In a profiler's trace, how a device idled in words: the definition, and the longest gaps ------

MOST_GAPS = 3  # in sentences
MEANINGS = {
    HOST_WAIT: "host wait is until what ends the gap has been launched",
    KERNEL_WAIT: "kernel wait is less than 0.03 ms from one op to the next, launched before",
    OTHER: "other is longer, and launched before",
}
MOST_LETTERS = 48  # of a name in a sentence
LESS = re.compile(r"<[^<>]*>|\(anonymous namespace\)::|\[clone [^\]]*\]")


def idle_words(trace: Trace) -> Iterator[str]:
    """When each device idled and what for, the definition first; then the longest gaps."""
    known, lanes = launches(trace), forward_lanes(trace)
    found = [(lane, gap) for lane in lanes for gap in device_gaps(trace, lane, known)]
    whole = sum(span(device_runs(trace, lane)) for lane in lanes)
    if not whole:
        return
    causes, counts = Counter[str](), Counter[str]()
    alike: defaultdict[tuple[str, str, str], list[Gap]] = defaultdict(list)
    for lane, gap in found:
        causes[gap.cause] += gap.duration
        counts[gap.cause] += 1
        if gap.cause != KERNEL_WAIT:
            alike[lane, gap.cause, kernel_named(gap.op)].append(gap)
    idle = causes.total()
    parts = ", ".join(
        f"{cause} {milliseconds(ns)} in {counted(counts[cause], 'gap')}"
        for cause, ns in causes.most_common()
    )
    of = "" if len(lanes) == 1 else f" of {len(lanes)} devices, added up"
    yield (
        "Idle is a device while neither a kernel nor a copy runs on any of its streams, from its "
        f"first to its last: {milliseconds(idle)} of {milliseconds(whole)}{of} "
        f"({100 * idle / whole:.1f} %){': ' + parts if parts else ''}."
    )
    if means := "; ".join(MEANINGS[cause] for cause in MEANINGS if cause in causes):
        yield f"{means[0].upper()}{means[1:]}."
    for (lane, *_), gaps in sorted(alike.items(), key=lambda item: -_total(item[1]))[:MOST_GAPS]:
        if _total(gaps) >= SHORT:
            yield gap_words(trace, gaps, lane)


def _total(gaps: Iterable[Gap]) -> int:
    return sum(gap.duration for gap in gaps)


def gap_words(trace: Trace, found: list[Gap], lane: str) -> str:
    """Gaps before ops of one name: how long, before what, and why the longest of them was.

    ``lane`` is the forward lane of their device.
    """
    device, gap = device_named(trace, lane), max(found, key=lambda item: item.duration)
    where = "" if device == "the device" else f" on {device}"
    up_to = f", up to {milliseconds(gap.duration)},"
    many = f" in {counted(len(found), 'gap')}{up_to}" if found[1:] else ""
    start = f"{milliseconds(_total(found))}{many}{where} before {kernel_named(gap.op)}"
    start += f" ({gap.cause}): "
    if gap.launch is None:
        return f"{start}the trace does not say when that was launched."
    if gap.cause == HOST_WAIT:  # what the launching thread did for most of it
        did: Counter[str] = Counter()
        for item in trace.on(gap.launch.lane):
            did[_doing(item)] += max(0, min(item.end, gap.end) - max(item.start, gap.start))
        [(most, ns)] = did.most_common(1) or [("", 0)]
        was = most if ns else "was at something that was not recorded"
        return f"{start}the host {was} before it launched that."
    early = milliseconds(gap.op.start - gap.launch.since)
    return (
        f"{start}launched {early} before it began. The trace does not hold what it waited for: "
        "an event, another process, or an earlier step that was cut off."
    )


def _doing(item: Slice) -> str:
    if item.name == WAIT:
        return f"was blocked in {call_of(item)}"
    if item.name == "launch":
        return f"was launching other things ({item.attrs.get('call', 'launch')})"
    within = item.attrs.get("within", "")
    is_named = item.name != "work" and not item.name.endswith("…")  # more than that it is a step
    if within and not is_named:
        return f"was busy in {within}"
    return f"was busy with {item.name}" if item.name != "work" else "did work that nothing names"


def blocked_words(trace: Trace) -> Iterator[str]:
    """In which call the host was blocked most."""
    waits = [item for item in trace.slices if item.name == WAIT and is_host(item.lane)]
    blocked: Counter[str] = Counter()
    for item in waits:
        blocked[call_of(item)] += item.duration
    if (total := blocked.total()) >= SHORT:
        call, ns = blocked.most_common(1)[0]
        most = "" if len(blocked) == 1 else f", {milliseconds(ns)} of it"
        threads = len({item.lane for item in waits})
        who = "The host was" if threads == 1 else f"{threads} threads of the host, added up, were"
        yield f"{who} blocked for {milliseconds(total)}{most} in {call}."


def kernel_named(op: Slice) -> str:
    """What an op is called: its kernel, without return type, templates and arguments, if long."""
    name, before = str(op.attrs.get("kernel", op.name)), ""
    while len(name) > MOST_LETTERS and before != name:
        before, name = name, LESS.sub("", name)
    if len(name) > MOST_LETTERS:
        name = name.split("(")[0].strip().rpartition(" ")[2].rpartition("::")[2] or name
    return shortened(name)


def shortened(name: str) -> str:
    """A name that fits into a sentence, perhaps with an ellipsis in its middle."""
    tail = MOST_LETTERS // 3
    if len(name) <= MOST_LETTERS:
        return name
    return f"{name[: MOST_LETTERS - tail - 1]}…{name[-tail:]}"


def with_short_names(
    sentences: Iterable[str], names: Sequence[str], untouched: str
) -> Iterator[str]:
    """The sentences with such names made short, and behind them what each of these stands for.

    One sentence stays as it is: it tells of such names.
    """
    whole = sorted((name for name in names if len(name) > MOST_LETTERS), key=len, reverse=True)
    told: dict[str, None] = {}
    for sentence in sentences:
        for name in whole if sentence != untouched else ():
            if name in sentence:
                sentence = sentence.replace(name, shortened(name))
                told[name] = None
        yield sentence
    if told:
        yield "; ".join(f"{shortened(name)} is {name}" for name in told) + "."


# -- All of it: verdict, bubbles, critical path, bound, and the remedy -----------------------------


@dataclass(frozen=True)
class OverlapFindings:
    """What the overlap check says of one trace; times in nanoseconds.

    ``causes`` and ``phases`` (``host: schedule``) together make up ``bubble_ns`` each, the most
    first. ``critical`` is the critical path by lane and name (``host: process``; empty: nothing
    ran), together the makespan. ``largest`` is None where no device idled. ``lacks`` are
    sentences on what the file does not carry, and ``steps`` is one on what was taken for a step
    where the file has no numbers for them. ``profiled`` are sentences on idle time in a profiler's
    trace. ``sentences`` is all of it to be read, in order. ``names``, those in the trace, are left
    out of ``to_json``: there can be thousands.
    """

    makespan_ns: int
    bubble_ns: int
    idle_percent: float  # of the time from a device's first op to its last, over all devices
    causes: dict[str, int]
    phases: dict[str, int]
    critical: dict[str, int]
    verdict: OverlapVerdict
    bound: Bound
    largest: Largest | None
    lacks: tuple[str, ...] = ()
    devices: int = 1
    steps: str = ""
    profiled: tuple[str, ...] = ()
    names: tuple[str, ...] = field(default=(), repr=False)

    @property
    def unknown_percent(self) -> float:
        """The share of idle time that nothing recorded explains."""
        return 100 * self.causes.get("unknown", 0) / self.bubble_ns if self.bubble_ns else 0.0

    @property
    def sentences(self) -> tuple[str, ...]:
        """The findings in sentences, the verdict first; names that are too long for one, last."""
        return tuple(with_short_names(_sentences(self), self.names, self.steps))

    def to_json(self) -> dict[str, Any]:
        """Everything but the names, as JSON can hold it."""
        data = asdict(replace(self, names=()))  # copied deeply
        del data["names"]
        data["bound"]["percent"] = self.bound.percent
        data["unknown_percent"] = self.unknown_percent
        data["sentences"] = list(self.sentences)
        return data


def report(trace: Trace, lacks: tuple[str, ...] = (), steps: str = "") -> OverlapFindings:
    """The findings on a trace; ``lacks`` and ``steps`` as ``foreign.py`` gives them."""
    course = course_of(trace)
    found, verdict, lanes = bubbles(trace, course), overlap_verdict(trace), forward_lanes(trace)
    idle, whole = measure(trace).bubble_ns, sum(span(device_runs(trace, lane)) for lane in lanes)
    profiled: list[str] = []
    if is_profiled(trace):
        profiled += idle_words(trace)
        profiled += blocked_words(trace) if verdict.word == "unknown" else ()
    names: dict[str, None] = {}  # of phases and operators
    for item in trace.slices:
        names |= {item.name: None, str(item.attrs.get("within", "")): None}

    def joined(sums: Mapping[tuple[str, str], int]) -> dict[str, int]:
        return {": ".join(filter(None, name)): ns for name, ns in sums.items()}

    return OverlapFindings(
        makespan_ns=trace.end,
        bubble_ns=idle,
        idle_percent=100 * idle / whole if whole else 0.0,
        causes=by_cause(found),
        phases=joined(by_phase(found)),
        critical=joined(shares(course, critical_path(course))),
        verdict=verdict,
        bound=bound(trace, course),
        largest=largest_bubble(trace, found, course, verdict),
        lacks=lacks,
        devices=max(1, len(lanes)),
        steps=steps,
        profiled=tuple(profiled),
        names=tuple(names),
    )


def _sentences(found: OverlapFindings) -> Iterator[str]:
    yield from found.lacks
    yield found.verdict.sentence
    if found.steps and not found.verdict.steps:
        yield found.steps  # how to mark one
    yield from found.profiled
    if found.steps and found.verdict.steps:
        yield found.steps
    one = found.devices == 1
    whose = "Between its first op and its last, the device"
    if not one:
        whose = f"Each between its first op and its last, the {found.devices} devices"
    if found.profiled:
        if found.verdict.word == "unknown":
            return  # of a few steps, no more is known than where the time went
    elif found.causes:
        parts = ", ".join(f"{cause} {milliseconds(ns)}" for cause, ns in found.causes.items())
        of = "of that time" if one else "of their time, added up"
        share = f"{milliseconds(found.bubble_ns)} ({found.idle_percent:.1f} % {of})"
        yield f"{whose} idled for {share}: {parts}."
    elif found.verdict.word != "unknown":
        yield f"{whose} never idled."
    if found.causes.get("unknown"):
        yield f"Nothing recorded explains {found.unknown_percent:.1f} % of the idle time."
    if found.largest is not None and not (found.profiled and found.largest.cause != HOST_WAIT):
        yield found.largest.sentence
    if found.critical:
        nothing = "nothing recorded" if found.profiled else "nothing ran"
        named = ", ".join(
            f"{name or nothing} {milliseconds(ns)}" for name, ns in list(found.critical.items())[:3]
        )
        yield f"The critical path takes {milliseconds(found.makespan_ns)}; most of it is {named}."
    if best := found.bound.ns:
        lane = found.bound.lane
        why = "each token needs the one before it, and the first one its request"
        why = f"that much work is on lane {lane}" if lane else why
        run = f"reached {found.bound.percent:.0f} % of that speed"
        if found.profiled:  # no second percentage: the recording begins before the device does
            run = f"took {milliseconds(found.bound.makespan_ns)}"
        yield (
            "As long as each piece of work takes what it took, these batches cannot take less than "
            f"{milliseconds(best)}, because {why}; this run {run}."
        )
