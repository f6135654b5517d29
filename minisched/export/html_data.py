"""The runs as the comparison page reads them: short lists, and each text once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median
from typing import Any

from ..checks.overlap import step_intervals
from ..trace import Mark, Trace
from .lane import Lane
from .layout import View
from .palette import OTHER, PAINTS
from .window import steady_views, whole_run


class Names(dict[str, int]):
    """Numbers texts in the order in which they are first asked for."""

    def number(self, text: str) -> int:
        """The place of ``text`` in the page's list of names."""
        return self.setdefault(text, len(self))


def page_data(traces: Sequence[Trace]) -> str:
    """JSON that may stand inside a script element; ``compare_page.js:unpack`` reads it.

    ``few`` is the stretch of time that "a few steps" shows.
    """
    names = Names()
    few = steady_views(list(traces), 3)[0]
    data = {
        "runs": [_run(whole_run(trace), names) for trace in traces],
        "few": [few.start, few.end],
        "colours": {name: [p.fill, p.text] for name, p in {**PAINTS, "other": OTHER}.items()},
        "names": list(names),  # filled by the runs above
    }
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _run(view: View, names: Names) -> dict[str, Any]:
    return {
        "end": view.end,
        "stepTime": median(step_intervals(view.trace) or [max(1, view.end)]),
        "lanes": [_lane(view, lane, names) for lane in view.lanes],
        "edges": [
            [a.src.slice.id, a.dst.slice.id, names.number(a.kind), a.start, a.end]
            for a in view.arrows
        ],
        "marks": [[mark.time, _mark(mark)] for mark in view.trace.marks],
    }


def _lane(view: View, lane: Lane, names: Names) -> dict[str, Any]:
    number = names.number
    return {
        "key": lane.key,
        "title": lane.title,
        "slices": [
            [
                box.slice.id,
                number(box.slice.name),
                box.slice.start,
                box.slice.end,
                box.step,
                number(box.slice.mode),
                number(" ".join(box.slice.rids)),
            ]
            for box in view.on(lane)
        ],
        "bubbles": [
            [item.start, item.end, number(item.reason)]
            for item in view.bubbles
            if item.lane == lane
        ],
    }


def _mark(mark: Mark) -> str:
    return " ".join([mark.name, *(f"{name} {value}" for name, value in mark.attrs.items())])
