"""The poster: every design as one strip of host and device, on one scale, the quickest first.

A strip shows three settled periods. A period is the time from one step of a request to its next
one, so that it means the same in a loop, in a pipeline, and in a queue of half batches.
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
    more_steps: int  # than the first of the runs

    @property
    def period(self) -> float:
        """Nanoseconds."""
        return self.view.duration / PERIODS

    @property
    def looks(self) -> object:
        """What is seen of it, but for the steps' numbers and how busy its devices are."""
        boxes = sorted(
            (*self.view.clip(item.start, item.end), item.name, item.lane)
            for item in self.view.slices
            if item.duration
        )
        return tuple(boxes), f"{self.speedup:.2f}", self.more_steps

    @property
    def name(self) -> str:
        """The loop, and the relay that carries its tokens."""
        loop, _, relay = self.view.trace.loop.partition(":")
        usual = LOOPS[loop].relays[0] if loop in LOOPS else ""
        return f"{loop} · {relay or usual}" if relay or usual else loop


def poster(traces: Sequence[Trace], is_slide: bool = False) -> Scene:
    """All runs of one workload; the first is what they are compared with.

    Runs in which no request takes four steps that follow one another are left out, and named. On a
    slide, which has less room, those share a strip that are drawn alike.

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
    drawn: dict[object, list[Strip]] = {}
    for strip in strips:
        drawn.setdefault(strip.looks if is_slide else strip.name, []).append(strip)
    rows = [row for alike in drawn.values() for row in rows_of(alike, end, is_slide)]
    title = "no run has settled steps"
    if strips:
        title = (
            f"{len(strips)} designs, one workload: {strips[0].view.trace.loop} is the quickest, "
            f"{strips[0].speedup:.2f} times as fast as {traces[0].loop}"
        )
    notes = [
        "Below each name, and behind it the relay (host: none): the time from one step of a "
        "request to its next one; how busy the devices were over the whole run; the speed-up; the "
        "steps more or less."
    ]
    shared = [", ".join(strip.view.trace.loop for strip in alike)
              for alike in drawn.values() if len(alike) > 1]  # fmt: skip
    if shared:
        notes.append(f"Alike in these periods: {'; '.join(shared)}.")
    if left_out:
        notes.append(f"Without settled steps, so not shown: {', '.join(left_out)}.")
    about = f"{traces[0].what_ran}; {PERIODS} settled periods of each, from the device's start on"
    part = Part("Host and devices", "one scale for all", [Lanes(rows, end)])
    return Scene(title, about, [part], LEGEND, notes)


def periods_of(trace: Trace) -> View | None:
    """Three periods from the middle of the longest stretch with the same requests, or None."""
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


def rows_of(alike: Sequence[Strip], end: int, is_slide: bool) -> list[LaneRow]:
    """The host, and each device, of those that share a strip; on a slide no second thread."""
    strip, others = alike[0], len(alike) - 1
    steps = "step" if abs(strip.more_steps) == 1 else "steps"
    more = f", {strip.more_steps:+d} {steps}" if strip.more_steps else ""
    busy = " to ".join(dict.fromkeys(
        f"{choose(one.busy for one in alike):.0f}" for choose in (min, max)))  # fmt: skip
    kept = [
        (lane, row)
        for lane, row in zip(strip.view.lanes, lanes_of(strip.view, end).rows, strict=True)
        if not (is_slide and lane.endswith(" thread"))
        and (is_host(lane) or any(item.kind == "forward" for item in row.spans))
    ]
    return [
        LaneRow(
            lane_words(lane) if len(kept) > 2 else lane_side(lane),
            row.spans,
            group=f"{strip.view.trace.loop} + {others} alike" if others else strip.name,
            group_note=f"{strip.period / MILLISECOND:.1f} ms, {busy} %, {strip.speedup:.2f}×{more}",
        )
        for lane, row in kept
    ]
