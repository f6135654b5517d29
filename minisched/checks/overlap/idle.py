"""When a GPU idles in a profiler's trace, and what for: one definition for every sentence on it.

It idles, between the first thing it runs and the last, while neither a kernel nor a copy runs on
any of its streams. Each such gap is charged to what the op that ends it had waited for, as Holistic
Trace Analysis does (``get_temporal_breakdown``, ``get_idle_time_breakdown``), by its names:

- ``host wait``: its launch began only after the gap had begun: the host was late;
- ``kernel wait``: it had been launched before, and the gap lasts less than 0.03 ms: the device
  takes that long from one op to the next;
- ``other``: it had been launched before and waited longer: for another stream, or for work of
  which the trace says nothing.

On one stream the figures are that tool's to the nanosecond, if it doesn't round; rounding to whole
microseconds, as it does unless told otherwise, makes each of its gaps longer by up to 2. Over all
streams there is one thing more to know: what was launched in a gap and begins long after its launch
was late only until then. The rest of such a gap is ``other``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import NamedTuple

from ...trace import Slice, Trace
from ...trace.events import is_forward, is_host
from .bubble_words import kernel_named, milliseconds
from .course import WAIT, in_time
from .launches import Launch, call_of, launches
from .overlap import device_named, device_runs, gaps, intersection, length, span, streams_of, union

HOST_WAIT, KERNEL_WAIT, OTHER = "host wait", "kernel wait", "other"
SHORT = 30_000  # nanoseconds of a kernel wait at most; that tool's own default
MOST_NAMED = 3  # gaps in sentences


class Gap(NamedTuple):
    """A piece of idle time in nanoseconds, its cause, and the op that ends the gap it is of.

    ``since`` is when that op's launch began, if that is known.
    """

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
    """Where none of some ops runs, from the first of them to the last, in order of time.

    ``ops`` are those of a device, or of one of its streams.
    """
    ops = in_time(item for item in ops if item.duration)
    first: dict[int, Slice] = {}
    for op in ops:
        first.setdefault(op.start, op)
    found = []
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


def device_gaps(trace: Trace, lane: str, known: Mapping[int, Launch] | None = None) -> list[Gap]:
    """When the device of a forward lane idled; ``known`` are the launches, if they are there."""
    known = launches(trace) if known is None else known
    lanes = streams_of(trace, lane)
    return idle_gaps((item for item in trace.slices if item.lane in lanes), known)


def idle_words(trace: Trace) -> Iterator[str]:
    """When each device idled and what for, the definition first; then the longest gaps."""
    known = launches(trace)
    lanes = sorted({item.lane for item in trace.slices if is_forward(item.lane)})
    whole, causes, counts = 0, Counter[str](), Counter[str]()
    alike: defaultdict[tuple[str, str, str], list[Gap]] = defaultdict(list)
    for lane in lanes:
        found = device_gaps(trace, lane, known)
        whole += span(device_runs(trace, lane))
        for gap in found:
            causes[gap.cause] += gap.duration
            counts[gap.cause] += 1
            if gap.cause != KERNEL_WAIT:
                alike[lane, gap.cause, kernel_named(gap.op)].append(gap)
    idle = causes.total()
    if not whole:
        return
    parts = ", ".join(
        f"{cause} {milliseconds(ns)} in {counted(counts[cause])}"
        for cause, ns in causes.most_common()
    )
    of = "" if len(lanes) == 1 else f" of {len(lanes)} devices, added up"
    yield (
        "Idle is a device while neither a kernel nor a copy runs on any of its streams, from its "
        f"first to its last: {milliseconds(idle)} of {milliseconds(whole)}{of} "
        f"({100 * idle / whole:.1f} %){': ' + parts if parts else ''}."
    )
    yield from _meanings(causes)
    said: list[str] = []
    for (lane, *_), found in sorted(alike.items(), key=lambda item: -_total(item[1])):
        if _total(found) < SHORT or not MOST_NAMED - len(said):
            break
        said.append(gap_words(trace, found, lane))
        if len(found) == 1 and found[0].cause == OTHER and 2 * _total(found) > idle:
            rest, left = idle - _total(found), whole - _total(found)
            said[-1] += f" Without it: {milliseconds(rest)} of {milliseconds(left)} idle"
            said[-1] += f" ({100 * rest / left:.1f} %)."
    yield from said


def _total(found: list[Gap]) -> int:
    return sum(gap.duration for gap in found)


def _meanings(causes: Mapping[str, int]) -> Iterator[str]:
    said = {
        HOST_WAIT: "host wait is until what ends the gap has been launched",
        KERNEL_WAIT: "kernel wait is less than 0.03 ms from one op to the next, launched before",
        OTHER: "other is longer, and launched before",
    }
    if parts := [said[cause] for cause in said if cause in causes]:
        text = "; ".join(parts)
        yield f"{text[0].upper()}{text[1:]}."


def gap_words(trace: Trace, found: list[Gap], lane: str) -> str:
    """Gaps before ops of one name: how long, before what, and why the longest of them was.

    ``lane`` is the forward lane of their device.
    """
    device = device_named(trace, lane)
    where = "" if device == "the device" else f" on {device}"
    gap = max(found, key=lambda item: item.duration)
    many = f" in {counted(len(found))}, up to {milliseconds(gap.duration)}," if found[1:] else ""
    start = (
        f"{milliseconds(_total(found))}{many}{where} before {kernel_named(gap.op)} ({gap.cause}): "
    )
    if gap.launch is None:
        return f"{start}the trace does not say when that was launched."
    if gap.cause == HOST_WAIT:
        return f"{start}the host {_host_was(trace, gap)} before it launched that."
    if gap.launch.over > gap.start and gap.launch.over - gap.launch.since >= SHORT:
        return f"{start}the host was still in {gap.launch.call}, which launched that."
    early = milliseconds(gap.op.start - gap.launch.since)
    is_first = all(item.start >= gap.op.start for item in trace.on(lane))
    cut = "an earlier step that was cut off, " if is_first else ""
    return (
        f"{start}launched {early} before it began. The trace does not hold what it waited for: "
        f"{cut}an event, or another process."
    )


def _host_was(trace: Trace, gap: Gap) -> str:
    """What the launching thread did for most of a host wait."""
    assert gap.launch is not None
    did: Counter[str] = Counter()
    for item in trace.on(gap.launch.lane):
        ns = length(intersection(((item.start, item.end),), ((gap.start, gap.end),)))
        did[_doing(item)] += ns
    if not did or not (top := did.most_common(1)[0])[1]:
        return "was at something that was not recorded"
    return top[0]


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


def host_words(trace: Trace) -> Iterator[str]:
    """How far the host was ahead of the device, and in which call it was blocked."""
    known = launches(trace)
    pairs = [(op, known[op.id]) for op in trace.slices if is_forward(op.lane) and op.id in known]
    said = [_lead_words(pairs)] if pairs else []
    waits = [item for item in trace.slices if item.name == WAIT and is_host(item.lane)]
    blocked: Counter[str] = Counter()
    for item in waits:
        blocked[call_of(item)] += item.duration
    if (total := blocked.total()) >= SHORT:
        call, ns = blocked.most_common(1)[0]
        most = "" if len(blocked) == 1 else f", {milliseconds(ns)} of it"
        threads = len({item.lane for item in waits})
        who = "The host was" if threads == 1 else f"{threads} threads of the host, added up, were"
        said.append(f"{who} blocked for {milliseconds(total)}{most} in {call}.")
    if said:
        yield " ".join(said)


def _lead_words(pairs: list[tuple[Slice, Launch]]) -> str:
    begins = min(op.start for op, _ in pairs)
    last = max(launch.since for _, launch in pairs)
    if last < begins:
        return f"The host had launched all of it {milliseconds(begins - last)} before it began."
    lead = int(median(op.start - launch.since for op, launch in pairs))
    return f"At the median, an op was launched {milliseconds(lead)} before it began."


def counted(gaps: int) -> str:
    """``1 gap``, ``2 gaps``."""
    return "1 gap" if gaps == 1 else f"{gaps} gaps"
