"""The overlap in a run, read off the trace's intervals and never off wall time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import filterfalse, pairwise

from ..trace import Slice, Trace
from ..trace.events import is_copy, is_forward, is_host

# -- Intervals, in nanoseconds: of what ``union`` gives, none touches or overlaps another one ------

Interval = tuple[int, int]  # start and end


def union(slices: Iterable[Slice]) -> tuple[Interval, ...]:
    """Return the time covered by any of the slices, as disjoint intervals that never touch."""
    merged: list[Interval] = []
    for start, end in sorted((item.start, item.end) for item in slices if item.duration > 0):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return tuple(merged)


def gaps(busy: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """Return the time between intervals."""
    return tuple((before[1], after[0]) for before, after in pairwise(busy))


def intersection(a: tuple[Interval, ...], b: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """Return the time in both. Each comes from ``union``, so one pass over both is enough."""
    common, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            common.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(common)


def length(intervals: tuple[Interval, ...]) -> int:
    """Return the covered time, in nanoseconds."""
    return sum(end - start for start, end in intervals)


def within(busy: tuple[Interval, ...], start: int, end: int) -> int:
    """Return the covered time between two moments, in nanoseconds."""
    return length(intersection(busy, ((start, end),)))


def span(busy: tuple[Interval, ...]) -> int:
    """Return the nanoseconds from the first interval to the last; ``gaps`` are a share of it."""
    return busy[-1][1] - busy[0][0] if busy else 0


# -- The lanes of a run: work of its devices and host threads, and the time without requests -------

PRESENT = ("waiting", "running", "kv used")  # counters; while one is above 0, a request is there


def step_intervals(trace: Trace) -> list[int]:
    """Return the nanoseconds from each step's forward start to the next one's."""
    return [after.start - before.start for before, after in pairwise(forwards(trace))]


def forwards(trace: Trace) -> tuple[Slice, ...]:
    """Return the forward slice of each step, in order of time; on a pipeline, its first stage's."""
    return tuple(item for item in trace.on(forward_lane(trace)) if item.name == "forward")


def forward_lane(trace: Trace) -> str:
    """Return the lane on which a step begins; of several devices, the first by name."""
    return next(iter(forward_lanes(trace)), "forward")


def forward_lanes(trace: Trace) -> list[str]:
    """Return the lanes of forward passes, by name."""
    return sorted({item.lane for item in trace.slices if is_forward(item.lane)})


def is_blocked(item: Slice) -> bool:
    """Return whether a slice is a thread of the host that does nothing but wait."""
    return item.name == "wait" and is_host(item.lane)


TOKENS = "the wait for a step's tokens"


def call_of(item: Slice) -> str:
    """Return the call that blocked the host: ``cudaStreamSynchronize (aten::item)``.

    In our own traces it is a copy.
    """
    call = str(item.attrs.get("call", item.attrs.get("named", TOKENS)))
    within = item.attrs.get("within", "")
    return f"{call} ({within})" if within else call


def with_waits(trace: Trace) -> Trace:
    """Rename each slice of the host that is waiting to ``wait``; ``named`` keeps its own name.

    The program of a measured run decides that, whatever the slice's name: an act ``wait`` was done
    during the slice, and the slice ended soon after the awaited op. A slice that lasts more than
    twice as long as the wait is work that began with a wait.
    """
    if trace.clock != "wall":
        return trace
    slices = {item.id: item for item in trace.slices}
    launching = {act.during for act in trace.program if act.kind == "launch"}
    waiting = set[int]()
    for act in trace.program:
        item, op = slices.get(act.during), slices.get(act.op)
        if act.kind != "wait" or item is None or op is None or item.id in launching:
            continue
        if item.name == "wait" or not is_host(item.lane):
            continue
        if item.start < op.end <= item.end and 2 * (op.end - item.start) >= item.duration:
            waiting.add(item.id)
    if not waiting:
        return trace
    renamed = (
        replace(item, name="wait", attrs={**item.attrs, "named": item.name})
        if item.id in waiting
        else item
        for item in trace.slices
    )
    return replace(trace, slices=tuple(renamed))


def device_named(trace: Trace, lane: str) -> str:
    """Return a forward lane's name for a sentence: ``the device``.

    Of several it is ``the decode device`` or ``stage 0``, and in a profiler's trace ``device 0``.
    """
    if len(forward_lanes(trace)) < 2:
        return "the device"
    if lane.startswith("device "):
        return lane.removesuffix(" forward")
    return f"the {lane.removesuffix('forward')}device" if lane.endswith("forward") else lane


def is_profiled(trace: Trace) -> bool:
    """Return whether a profiler recorded a run: kernels and copies on all streams of a device."""
    return any("kernel" in item.attrs for item in trace.slices)


def streams_of(trace: Trace, lane: str) -> set[str]:
    """Return the lanes on which the device of a forward lane works: in our own runs, that lane."""
    if not is_profiled(trace):
        return {lane}
    device = lane.removesuffix("forward")  # empty: there is only one
    every = {item.lane for item in trace.slices if not is_host(item.lane)}
    return {name for name in every if name.startswith(device)}


def device_runs(trace: Trace, lane: str) -> tuple[Interval, ...]:
    """Return when the device of a forward lane ran anything."""
    lanes = streams_of(trace, lane)
    return union(item for item in trace.slices if item.lane in lanes)


def device_busy(trace: Trace) -> tuple[Interval, ...]:
    """Return when any forward stream ran something."""
    return union(item for item in trace.slices if is_forward(item.lane))


def host_busy(trace: Trace) -> tuple[Interval, ...]:
    """Return when any host thread worked; a wait is no work."""
    return union(it for it in trace.slices if is_host(it.lane) and not is_blocked(it))


def work_of(trace: Trace) -> dict[str, tuple[Interval, ...]]:
    """Return when each lane worked; a wait is no work."""
    lanes = sorted({item.lane for item in trace.slices})
    return {lane: union(filterfalse(is_blocked, trace.on(lane))) for lane in lanes}


def nobody_there(trace: Trace, side: str = "") -> tuple[Interval, ...]:
    """Return when no request waited, ran or held memory, by the counters of a side."""
    values = dict.fromkeys([f"{side} {name}".strip() for name in PRESENT], 0)
    found: list[Interval] = []
    since: int | None = None
    for counter in trace.counters:
        if counter.name in values:
            values[counter.name] = counter.value
            if since is not None and since < counter.time:
                found.append((since, counter.time))
            since = None if any(values.values()) else counter.time
    if since is not None and since < trace.end:
        found.append((since, trace.end))
    return tuple(found)


# -- The report: the use of time in one run, and the best that was possible ------------------------


@dataclass(frozen=True)
class OverlapReport:
    """The use of time in one run; all times in nanoseconds.

    ``device_busy_ns`` is the time in which the forward stream ran an op. ``host_busy_ns`` leaves
    out the slices in which the host only waited. ``host_hidden_ns`` is the part of it during which
    the device was busy: work that cost no time. A bubble lies between the first and the last op of
    the forward stream: a wait for the host, or for a request to arrive. ``unserved_ns`` is the time
    in which neither host nor device worked, because no request was there.

    In a profiler's trace all streams of a device stand for the forward stream. With several devices
    or host threads, the times of all are added up. Then ``bubbles`` are the moments at which no
    device worked.
    """

    loop: str
    steps: int
    tokens: int
    makespan_ns: int
    device_busy_ns: int
    copy_busy_ns: int
    host_busy_ns: int
    host_hidden_ns: int
    bubble_ns: int
    wasted_rows: int
    bubbles: tuple[Interval, ...]
    devices: int = 1
    unserved_ns: int = 0

    @property
    def longest_ns(self) -> int:
        """Return the busy time of host, device or copies, whichever is the longest."""
        return max(self.host_busy_ns, self.device_busy_ns, self.copy_busy_ns)

    @property
    def device_busy_percent(self) -> float:
        """Return the forward stream's busy share of the makespan; of several, the mean."""
        whole = self.makespan_ns * self.devices
        return 100 * self.device_busy_ns / whole if whole else 0.0

    @property
    def host_hidden_percent(self) -> float:
        """Return the share of the host's work that ran while the device was busy."""
        return 100 * self.host_hidden_ns / self.host_busy_ns if self.host_busy_ns else 0.0


def measure(trace: Trace, tokens: int = 0) -> OverlapReport:
    """Return the report on one run; ``tokens`` it delivered, which a trace does not contain."""
    work, first = work_of(trace), forward_lane(trace)
    hosts = [busy for lane, busy in work.items() if is_host(lane)]
    devices = [device_runs(trace, lane) for lane in forward_lanes(trace)]
    device, nobody = device_busy(trace), nobody_there(trace)
    worked = union(filterfalse(is_blocked, trace.slices))
    steps = {(item.lane, item.step) for item in trace.slices
             if item.name == "forward" and is_forward(item.lane)
             and (item.lane == first or not item.lane.startswith("stage "))}  # fmt: skip
    return OverlapReport(
        loop=trace.loop,
        steps=len(steps),
        tokens=tokens,
        makespan_ns=trace.end,
        device_busy_ns=sum(map(length, devices)),
        copy_busy_ns=sum(length(busy) for lane, busy in work.items() if is_copy(lane)),
        host_busy_ns=sum(map(length, hosts)),
        host_hidden_ns=sum(length(intersection(host, device)) for host in hosts),
        bubble_ns=sum(length(gaps(busy)) for busy in devices),
        wasted_rows=sum(mark.name == "wasted row" for mark in trace.marks),
        bubbles=gaps(device),
        devices=max(1, len(devices)),
        unserved_ns=length(nobody) - length(intersection(nobody, worked)),
    )


def ideal_speedup(serial: OverlapReport) -> float:
    """Return the speed-up if everything were hidden by the longest: M / (idle + max(H, D, C)).

    M is the serial run's makespan. H, D and C are the whole working times of its host, device and
    copies, and idle is the time without requests. A loop that does the same work can't take less:
    each of the three does one thing at a time. One that does less (fewer steps), or does it on
    several devices, can. On a wall clock two runs of the same work differ, and any may seem to;
    ``versus_ideal`` returns a sentence on that.
    """
    least = serial.unserved_ns + serial.longest_ns
    return serial.makespan_ns / least if least else 1.0


def speedup_over(serial: OverlapReport, report: OverlapReport) -> float | None:
    """Return the speed-up of a run over the serial one; None if either took no time."""
    if not serial.makespan_ns or not report.makespan_ns:
        return None
    return serial.makespan_ns / report.makespan_ns


def versus_ideal(serial: OverlapReport, report: OverlapReport, clock: str) -> str:
    """Compare a speed-up with its ceiling: ``1.70 x; hiding everything would give 1.75 x``.

    A run above the ceiling gets the reason. On a ``wall`` clock that is noise. On a ``virtual`` one
    the run did less work than the serial one, or ran on more devices.
    """
    speedup, ceiling = speedup_over(serial, report), f"{ideal_speedup(serial):.2f} x"
    if speedup is None:
        return "no time passed, so nothing was faster"
    if not beats_ideal(serial, report):
        return f"{speedup:.2f} x; hiding everything would give {ceiling}"
    above = f"{speedup:.2f} x, more than the {ceiling} that hiding everything could give"
    if clock == "wall":
        return f"{above}, so it is noise: single runs of the same work differ, repeat them"
    return f"{above}: it has less work to do, or more places to do it in"


def beats_ideal(serial: OverlapReport, report: OverlapReport) -> bool:
    """Return whether a run took less time than the serial one's longest part."""
    return 0 < report.makespan_ns < serial.unserved_ns + serial.longest_ns
