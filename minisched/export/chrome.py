"""Chrome Trace Event JSON, for https://ui.perfetto.dev and chrome://tracing.

``X`` slices, ``M`` names, ``s``/``f`` flows, ``C`` counters, ``i`` instants. Times are
microseconds; three decimals keep the nanoseconds. A thread id must differ from its process id, or
the lane is called "main thread". What a wait cost is a ``b``/``e`` pair, in a row of its own.
"""

from __future__ import annotations

import json
from typing import Any

from ..trace import Trace
from .lane import Lane
from .layout import View
from .window import whole_run

Event = dict[str, Any]
PIDS = {"host": 1, "device": 2}


def to_chrome(trace: Trace) -> str:
    """A whole run as text, one event a line."""
    view = whole_run(trace)
    tids = {lane: 10 * PIDS[lane.side] + at for at, lane in enumerate(view.lanes, 1)}
    events = [*_names(view, tids), *_slices(view, tids), *_flows(view, tids), *_waits(view, tids)]
    events += _rest(view, tids)
    about = {"loop": trace.loop, "device": trace.device, "model": trace.model, "clock": trace.clock}
    lines = ",".join("\n" + json.dumps(event) for event in events)
    return (
        f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [{lines}\n]}}'
        "\n"
    )


def _names(view: View, tids: dict[Lane, int]) -> list[Event]:
    """Names and order of processes and lanes."""
    titles = {"host": "host", "device": f"device ({view.trace.device})"}
    named = [("process", pid, 0, titles[side], pid) for side, pid in PIDS.items()]
    named += [("thread", PIDS[lane.side], tid, lane.name, tid) for lane, tid in tids.items()]
    events = []
    for what, pid, tid, name, order in named:
        place = {"ph": "M", "pid": pid, "tid": tid, "ts": 0}
        events.append({**place, "name": f"{what}_name", "args": {"name": name}})
        events.append({**place, "name": f"{what}_sort_index", "args": {"sort_index": order}})
    return events


def _slices(view: View, tids: dict[Lane, int]) -> list[Event]:
    return [
        {
            "ph": "X",
            "name": box.label,
            "cat": box.slice.name,
            **_place(box.lane, tids),
            "ts": _us(box.slice.start),
            "dur": _us(box.slice.duration),
            "args": {
                "id": box.slice.id,
                "phase": box.slice.name,
                "step": box.step,
                "mode": box.slice.mode,
                "rids": list(box.slice.rids),
                **box.slice.attrs,
            },
        }
        for box in view.boxes
    ]


def _flows(view: View, tids: dict[Lane, int]) -> list[Event]:
    """Each edge leaves one nanosecond before its source ends, so that it binds to that slice."""
    events: list[Event] = []
    for index, arrow in enumerate(view.arrows, 1):
        leaves = max(arrow.src.slice.start, arrow.start - 1)
        flow = {"name": arrow.kind, "cat": "edge", "id": index}
        ids = {"src": arrow.src.slice.id, "dst": arrow.dst.slice.id}
        src, dst = _place(arrow.src.lane, tids), _place(arrow.dst.lane, tids)
        events.append({"ph": "s", **flow, **src, "ts": _us(leaves), "args": ids})
        events.append({"ph": "f", "bp": "e", **flow, **dst, "ts": _us(arrow.end), "args": ids})
    return events


def _waits(view: View, tids: dict[Lane, int]) -> list[Event]:
    """The stretches in which a device idled because of a wait, a row for each reason."""
    return [
        {"ph": phase, "cat": "waits for", "id": bubble.reason, "name": f"waits for {bubble.reason}",
         **_place(bubble.lane, tids), "ts": _us(time)}
        for bubble in view.bubbles if bubble.reason
        for phase, time in (("b", bubble.start), ("e", bubble.end))
    ]  # fmt: skip


def _rest(view: View, tids: dict[Lane, int]) -> list[Event]:
    """Counters, and marks on the first host lane."""
    counters = [
        {"ph": "C", "name": c.name, "pid": 1, "ts": _us(c.time), "args": {"value": c.value}}
        for c in view.trace.counters
    ]
    marks = [
        {
            "ph": "i",
            "s": "t",
            "name": mark.name,
            **_place(view.lanes[0], tids),
            "ts": _us(mark.time),
            "args": mark.attrs,
        }
        for mark in view.trace.marks
    ]
    return counters + marks


def _place(lane: Lane, tids: dict[Lane, int]) -> dict[str, int]:
    return {"pid": PIDS[lane.side], "tid": tids[lane]}


def _us(nanoseconds: int) -> float:
    """Microseconds; whole ones without a decimal point."""
    whole, rest = divmod(nanoseconds, 1000)
    return nanoseconds / 1000 if rest else whole
