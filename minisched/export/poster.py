"""The poster: every design as one strip of host and device, on one scale, the fastest first.

A strip shows three settled periods. A period is the time from one step of a request to its next
one. It means the same in a loop, in a pipeline, and in a queue of half batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ..checks.overlap import forwards, measure
from ..devices.cost import MILLISECOND
from ..loops.design import LOOPS
from ..trace import Trace
from ..trace.events import is_host, lane_words
from .layout import DECODES, View, lane_side, make_view
from .runs import LEGEND, lanes_of
from .scene import LaneRow, Lanes, Part, Scene

PERIODS = 3


@dataclass(frozen=True)
class Strip:
    """One design's three periods, and its figures over the whole run."""

    view: View
    speedup: float
    busy: float  # percent
    more_steps: int  # steps more than the first run has

    @property
    def period(self) -> float:
        """Return the nanoseconds of one period."""
        return self.view.duration / PERIODS

    @property
    def name(self) -> str:
        """Return the loop, and the relay that carries its tokens."""
        loop, _, relay = self.view.trace.loop.partition(":")
        usual = LOOPS[loop].relays[0] if loop in LOOPS else ""
        return f"{loop} · {relay or usual}" if relay or usual else loop


def poster(traces: Sequence[Trace]) -> Scene:
    """Draw all runs of one workload, compared with the first.

    A run in which no request takes four consecutive steps is left out, and a note names it.

    Raises:
        ValueError: there is no trace.
    """
    if not traces:
        raise ValueError("a poster needs at least one trace, but got 0.")
    base = measure(traces[0])
    strips, left_out = list[Strip](), list[str]()
    for trace in traces:
        view, report = periods_of(trace), measure(trace)
        if view is None:
            left_out.append(trace.loop)
            continue
        factor = base.makespan_ns / report.makespan_ns if report.makespan_ns else 1.0
        more = report.steps - base.steps
        strips.append(Strip(view, factor, report.device_busy_percent, more))
    strips.sort(key=lambda strip: (-strip.speedup, strip.period))
    end = max((strip.view.duration for strip in strips), default=1)
    rows = [row for strip in strips for row in rows_of(strip, end)]
    title = "no run has settled steps"
    if strips:
        title = (
            f"{len(strips)} designs, one workload: {strips[0].view.trace.loop} is the quickest, "
            f"{strips[0].speedup:.2f} times as fast as {traces[0].loop}"
        )
    notes = [
        "After each name its relay (host: none). Below it: the time from one step of a request to "
        "its next one; the devices' busy share of the whole run; the speed-up; the difference in "
        "steps."
    ]
    if left_out:
        notes.append(f"Without settled steps, so not shown: {', '.join(left_out)}.")
    about = f"{traces[0].what_ran}; {PERIODS} settled periods of each, from the device's start on"
    part = Part("Host and devices", "one scale for all", [Lanes(rows, end)])
    return Scene(title, about, [part], LEGEND, notes)


def periods_of(trace: Trace) -> View | None:
    """Return three periods from the middle of the longest stretch with the same requests."""
    passes = [item for item in forwards(trace) if item.mode in DECODES]
    counts = Counter(rid for item in passes for rid in item.rids)
    most = max(counts, key=lambda name: (counts[name], name), default="")
    alike = groupby((item for item in passes if most in item.rids), lambda item: item.rids)
    stretch = max((list(items) for _, items in alike), key=len, default=[])
    if len(stretch) <= PERIODS:
        return None
    first = (len(stretch) - PERIODS - 1) // 2
    some = stretch[first : first + PERIODS + 1]
    return make_view(trace, some[0].start, some[-1].start, some[0].step, some[-2].step)


def rows_of(strip: Strip, end: int) -> list[LaneRow]:
    """Return the lanes of a strip: the host, and each device."""
    steps = "step" if abs(strip.more_steps) == 1 else "steps"
    more = f", {strip.more_steps:+d} {steps}" if strip.more_steps else ""
    kept = [
        (lane, row)
        for lane, row in zip(strip.view.lanes, lanes_of(strip.view, end).rows, strict=True)
        if is_host(lane) or any(item.kind == "forward" for item in row.spans)
    ]
    return [
        LaneRow(
            lane_words(lane) if len(kept) > 2 else lane_side(lane),
            row.spans,
            group=strip.name,
            group_note=f"{strip.period / MILLISECOND:.1f} ms, {strip.busy:.0f} %, "
            f"{strip.speedup:.2f}×{more}",
        )
        for lane, row in kept
    ]
