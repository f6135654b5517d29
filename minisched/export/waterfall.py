"""A waterfall: from one run's time to another's, by cause; the causes add up to the difference.

A device's time consists of its work, its waits, and the time before its first op and after its last
one. So the difference of two runs of one workload is a sum of differences, one for each cause. In a
run with several devices, each of them has its share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from ..checks import causes
from ..checks.causes import bubbles
from ..checks.history import side_of
from ..checks.overlap import forward_lanes, length, measure, streams_of, union
from ..trace import Trace
from ..trace.events import is_copy
from .scene import LaneItem, LaneRow, Lanes, Part, Scene
from .units import ms

NAMES = {  # a cause, and the work or the wait of the device
    "host": "waits for the host",
    "copy": "waits for the copy",
    "needs": "waits for what a step needs",
    "device": "waits for another device",
    "other": "waits for something else",
    "ends": "idles at both ends",
    "work": "computes for requests",
    "wasted": "computes a dropped token",
}
CAUSES = {  # of a bubble; without those that a loop names
    **dict.fromkeys((causes.HOST, causes.COPY, causes.HOST_WAIT, causes.BLOCKED), "host"),
    **dict.fromkeys((causes.STAGE, causes.TRANSFER), "device"),
    **dict.fromkeys(
        (causes.UPLOAD, causes.ARRIVAL, causes.LATENCY, causes.UNKNOWN, causes.KERNEL_WAIT,
         causes.OTHER), "other",
    ),
}  # fmt: skip
LEGEND = {
    "spent": "the whole run", "wins more": "less than in the run above", "loses": "more than there",
}  # fmt: skip


def spent(trace: Trace) -> dict[str, Fraction]:
    """Return the nanoseconds of a run by cause (``NAMES``): the mean of its devices.

    The sum is exactly the makespan. ``needs`` is a wait that the loop names (grammar, penalties,
    drafts). ``other`` is time without requests, or between a launch and its begin. ``wasted`` is
    the time of steps in which no row's request took its token.
    """
    lanes = forward_lanes(trace)
    if not lanes:
        return {"ends": Fraction(trace.end)} if trace.end else {}
    sums = Counter[str]()
    for item in bubbles(trace):
        cause = CAUSES.get(item.cause, "needs")
        sums["copy" if cause == "host" and is_copy(item.where) else cause] += item.duration
    wasted = {(mark.attrs.get("side", ""), mark.attrs["step"], mark.attrs["rid"])
              for mark in trace.marks if mark.name == "wasted row"}  # fmt: skip
    for lane in lanes:
        streams, side = streams_of(trace, lane), side_of(lane)[0]
        ops = [item for item in trace.slices if item.lane in streams]
        busy = union(ops)
        vain = union(item for item in ops if item.rids
                     and all((side, item.step, rid) in wasted for rid in item.rids))  # fmt: skip
        sums["wasted"] += length(vain)
        sums["work"] += length(busy) - length(vain)
        sums["ends"] += trace.end - (busy[-1][1] - busy[0][0] if busy else 0)
    return {name: Fraction(sums[name], len(lanes)) for name in NAMES if sums[name]}


def steps_between(first: Trace, other: Trace) -> dict[str, Fraction]:
    """Return the other run's extra nanoseconds by cause; the sum is the difference."""
    before, after = spent(first), spent(other)
    found = {name: after.get(name, Fraction()) - before.get(name, Fraction()) for name in NAMES}
    return {name: change for name, change in found.items() if change}


def waterfall(traces: Sequence[Trace]) -> Scene:
    """Draw the steps from the first run's makespan to that of each other one.

    Raises:
        ValueError: there are fewer than two runs.
    """
    if len(traces) < 2:
        raise ValueError(f"a waterfall leads from one run to another, but got {len(traces)}.")
    base, *others = traces
    drawn = [rows_of(base, trace) for trace in others]
    end = max(span.end for rows in drawn for row in rows for span in row.spans)
    parts = []
    for trace, rows in zip(others, drawn, strict=True):
        note = f"{base.end / trace.end:.2f}×, {measure(trace).steps} steps" if trace.end else ""
        parts.append(Part(f"{base.loop} to {trace.loop}", note, [Lanes(rows, max(1, end))]))
    about = f"{base.what_ran}; whole runs: what the device does, and what it waits for"
    return Scene(finding(base, min(others, key=lambda run: run.end)), about, parts, LEGEND)


def finding(base: Trace, trace: Trace) -> str:
    """Write the largest cause of the difference."""
    change = trace.end - base.end
    if not change:
        return f"{trace.loop} takes as long as {base.loop}"
    steps, sign = steps_between(base, trace), 1 if change > 0 else -1
    name, more = max(steps, key=lambda name: sign * steps[name]), "more" if change > 0 else "less"
    does, _, what = NAMES[name].partition(" ")
    most = f"{ms(abs(round(steps[name])))} ms {more}"
    took = f"{ms(abs(change))} ms {more}"
    return f"{trace.loop} takes {took} than {base.loop}: the device {does} {most} {what}"


def rows_of(base: Trace, trace: Trace) -> list[LaneRow]:
    """Return a row for the first run, for each cause in order, and for the other run."""
    level, rows = Fraction(base.end), [whole(base)]
    for name, change in steps_between(base, trace).items():
        start, end = sorted((round(level), round(level + change)))
        level += change
        said = f"{'+' if change > 0 else '−'}{ms(abs(round(change)))} ms"
        item = LaneItem(
            "loses" if change > 0 else "wins more", start, end, said,
            about=f"{NAMES[name]}: {said}", data={"cause": name},
        )  # fmt: skip
        fits = end - start > max(base.end, trace.end) / 8
        rows.append(LaneRow(NAMES[name], [item], tail="" if fits else said))
    return [*rows, whole(trace)]


def whole(trace: Trace) -> LaneRow:
    """Return a run's makespan as a row."""
    words = f"{ms(trace.end)} ms"
    return LaneRow(trace.loop, [LaneItem("spent", 0, trace.end, words, about=words)])
