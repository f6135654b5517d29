"""Why a device idled: for a wait that the trace names, for a request to come, or for the host.

A loop that lets an op of step N wait says so when it decides it, with a mark: ``recorder.mark(
"wait", step=N, reason="grammar", op="sample")``. What that cost is read off the intervals.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ...trace import Mark, Trace
from ...trace.events import is_forward, is_host
from .overlap import Interval, gaps, intersection, length, nobody_there, union

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
