"""The runs as the page reads them: short lists, and each text once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median
from typing import Any

from ..checks.overlap import forwards, step_intervals
from ..trace import Mark, Trace
from .html_flags import FLAGS
from .html_runs import run_names
from .html_state import counters, life, panel, pool_pages, source_lines, units
from .lane import Lane
from .layout import Arrow, Box, View
from .names import Names
from .palette import OTHER, OWNERS, PAINTS
from .state import Panel
from .window import steady_views, whole_run

NOTABLE = tuple(FLAGS)
"""Marks that get a flag on the lanes; the others are in the panels."""


def page_data(traces: Sequence[Trace], states: Sequence[Sequence[Panel]]) -> str:
    """JSON that may stand inside a script element; ``stepper_data.js:unpack`` reads it.

    ``few`` is the stretch of time that "a few steps" shows, ``now`` where the cursor begins, and
    ``groups`` are lists of requests, by the numbers of their names.
    """
    names = Names()
    few = min(steady_views(list(traces), 3), key=lambda view: view.start)
    data = {
        "runs": [
            {"loop": name, **_run(whole_run(trace), state, names)}
            for name, trace, state in zip(run_names(traces), traces, states, strict=True)
        ],
        "few": [few.start, few.end],
        "now": _beginning(traces, few),
        "colours": {name: [p.fill, p.text] for name, p in {**PAINTS, "other": OTHER}.items()},
        "flags": FLAGS,
        "owners": [[paint.fill, paint.text] for paint in OWNERS],
        "rids": [names.number(rid) for rid in _rids(traces)],  # in the order of their colours
        "groups": names.groups,
        "names": list(names),  # filled by the runs above
    }
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _beginning(traces: Sequence[Trace], few: View) -> int:
    """Where a stranger should look first: the host processes a step, from the middle of the few."""
    run = traces[min(1, len(traces) - 1)]
    found = [s for s in run.slices if s.name == "process" and s.duration and s.start > few.start]
    return (found[0].start + found[0].end) // 2 if found else few.start


def _rids(traces: Sequence[Trace]) -> list[str]:
    named = (rid for trace in traces for item in trace.slices for rid in item.rids)
    return list(dict.fromkeys(named))


def _run(view: View, state: Sequence[Panel], names: Names) -> dict[str, Any]:
    trace, led_to = view.trace, requests_led_to(view.boxes)
    return {
        "end": view.end,
        "stepTime": median(step_intervals(trace) or [max(1, view.end)]),
        "steps": sorted({item.start for item in forwards(trace)}),
        "lanes": [_lane(view, lane, led_to, names) for lane in view.lanes],
        "edges": [
            [a.src.slice.id, a.dst.slice.id, names.number(_kind(a)), a.start, a.end]
            for a in view.arrows
        ],
        "marks": [[mark.time, _mark(mark)] for mark in trace.marks if mark.name in NOTABLE],
        "panels": [panel(item, pool_pages(trace, item), names) for item in state],
        "counters": counters(trace),
        "units": units(trace),
        "sources": source_lines(trace),
        "life": [[time, names.number(rid), text] for time, rid, text in life(trace)],
    }


def requests_led_to(boxes: Sequence[Box]) -> dict[int, tuple[str, ...]]:
    """By the id of each schedule: whose step it led to, which its slice does not say."""
    prepared = {
        (box.slice.lane, box.step): box.slice.rids for box in boxes if box.slice.name == "prepare"
    }
    return {
        box.slice.id: prepared.get((box.slice.lane, box.step), ())
        for box in boxes
        if box.slice.name == "schedule" and box.step
    }


def _lane(
    view: View, lane: Lane, led_to: dict[int, tuple[str, ...]], names: Names
) -> dict[str, Any]:
    return {
        "key": lane.key,
        "title": lane.title,
        "slices": [
            _slice(box, led_to.get(box.slice.id, box.slice.rids), names) for box in view.on(lane)
        ],
        "bubbles": [
            [item.start, item.end, names.number(item.reason)]
            for item in view.bubbles
            if item.lane == lane
        ],
    }


def _slice(box: Box, rids: tuple[str, ...], names: Names) -> list[int]:
    item = box.slice
    numbers = names.number(item.name), item.start, item.end, box.step, names.number(item.mode)
    return [item.id, *numbers, names.group(rids)]


def _mark(mark: Mark) -> str:
    return " ".join([mark.name, *(f"{name} {value}" for name, value in mark.attrs.items())])


def _kind(arrow: Arrow) -> str:
    return "wrong" if arrow.wrong else arrow.kind
