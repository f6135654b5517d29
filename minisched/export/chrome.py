"""Chrome Trace Event JSON, for https://ui.perfetto.dev and chrome://tracing.

``X`` slices, ``M`` names, ``s``/``f`` flows, ``C`` counters, ``i`` instants. Times are
microseconds; three decimals keep the nanoseconds. What a wait cost is a ``b``/``e`` pair, in a row
of its own. All lanes are in one process, because Perfetto puts that process first in which most
happens; within one it goes by the thread's number (chrome://tracing by the sort index), so that
lanes are numbered from top to bottom. None may have the process's number, or it is called "main
thread".
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ..trace import Mark, Trace
from .layout import Lane, View, lane_of, make_view
from .units import counted

# -- Which marks a Chrome trace shows: the events, in a lane of their own, and no bookkeeping ------
#
# A run of 30 steps has a few dozen marks that a reader looks for (a wait, a retraction, a wasted
# row, an end) and many hundreds that say which page went where. Perfetto draws each as an arrowhead
# and stacks those of one moment, so that the second kind would bury everything else. They are all
# in the trace itself (``LOOP.json``), from which the views draw them.

EVENTS = Lane("thread_events", "Events", "host")
BOOKKEEPING = frozenset(
    {"kv pool", "row alloc", "row free", "row hold", "row let go", "page alloc",
     "page disown", "page free", "commit", "tokens", "match", "insert", "radix add",
     "radix split", "radix lock", "radix evict", "block add", "block lock", "block evict",
     "kv transfer", "host buffers", "row length",
     "budget", "admit", "queue order", "new token ratio", "grammar", "grammar mask",
     "grammar accept", "future map", "future slots", "token pool", "lazy tokens",
     "placeholder fill", "prev sampled", "ledger", "context"}
)  # fmt: skip


def events_of(marks: Iterable[Mark]) -> list[Mark]:
    """The marks to show; one that nobody has heard of is shown."""
    return [mark for mark in marks if mark.name not in BOOKKEEPING]


Event = dict[str, Any]
PID = 1


def to_chrome(trace: Trace) -> str:
    """A whole run as text, one event a line."""
    view = make_view(trace)
    tids = _tids(view)
    events = [*_names(view, tids), *_slices(view, tids), *_flows(view, tids), *_waits(view, tids)]
    events += _rest(view, tids)
    about = {"loop": trace.loop, "device": trace.device, "model": trace.model, "clock": trace.clock}
    about |= {"dtype": trace.dtype} if trace.dtype else {}
    lines = ",".join("\n" + json.dumps(event) for event in events)
    return (
        f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [{lines}\n]}}'
        "\n"
    )


def _tids(view: View) -> dict[Lane, int]:
    """A number for each lane, from top to bottom; events stand between host and device."""
    events = [EVENTS] if events_of(view.trace.marks) else []
    host = [lane for lane in view.lanes if lane.side == "host"]
    rest = [lane for lane in view.lanes if lane.side != "host"]
    return {lane: at for at, lane in enumerate([*host, *events, *rest], PID + 10)}


def _names(view: View, tids: dict[Lane, int]) -> list[Event]:
    """Names and order of the process and its lanes."""
    named = [("process", 0, f"{view.trace.loop} on {view.trace.device}", PID)]
    named += [("thread", tid, lane.title, tid) for lane, tid in tids.items()]
    events = []
    for what, tid, name, order in named:
        place = {"ph": "M", "pid": PID, "tid": tid, "ts": 0}
        events.append({**place, "name": f"{what}_name", "args": {"name": name}})
        events.append({**place, "name": f"{what}_sort_index", "args": {"sort_index": order}})
    return events


def _slices(view: View, tids: dict[Lane, int]) -> list[Event]:
    return [
        {
            "ph": "X",
            "name": item.label,
            "cat": item.name,
            **_place(item.lane, tids),
            "ts": _us(item.start),
            "dur": _us(item.duration),
            "args": {
                "id": item.id,
                "phase": item.name,
                "step": item.step,
                "mode": item.mode,
                "rids": list(item.rids),
                **item.attrs,
            },
        }
        for item in view.slices
    ]


def _flows(view: View, tids: dict[Lane, int]) -> list[Event]:
    """Each edge leaves one nanosecond before its source ends, so that it binds to that slice."""
    events: list[Event] = []
    for index, arrow in enumerate(view.arrows, 1):
        leaves = max(arrow.src.start, arrow.start - 1)
        flow = {"name": arrow.kind, "cat": "edge", "id": index}
        ids = {"src": arrow.src.id, "dst": arrow.dst.id}
        src, dst = _place(arrow.src.lane, tids), _place(arrow.dst.lane, tids)
        events.append({"ph": "s", **flow, **src, "ts": _us(leaves), "args": ids})
        events.append({"ph": "f", "bp": "e", **flow, **dst, "ts": _us(arrow.end), "args": ids})
    return events


def _waits(view: View, tids: dict[Lane, int]) -> list[Event]:
    """The stretches in which a device idled because of a wait, a row for each reason."""
    return [
        {"ph": phase, "cat": "waits for", "id": bubble.cause, "name": f"waits for {bubble.cause}",
         **_place(bubble.lane, tids), "ts": _us(time)}
        for bubble in view.bubbles if bubble.cause
        for phase, time in (("b", bubble.start), ("e", bubble.end))
    ]  # fmt: skip


def _rest(view: View, tids: dict[Lane, int]) -> list[Event]:
    """Counters with their units, and the marks that are events."""
    counters = [
        {"ph": "C", "name": of.title, "pid": PID, "ts": _us(c.time),
         "args": {of.unit or "number": of.value(c.value)}}
        for c in view.trace.counters
        for of in [counted(c.name)]
    ]  # fmt: skip
    marks = [
        {"ph": "i", "s": "t", "name": mark.name, "pid": PID, "tid": tids[EVENTS],
         "ts": _us(mark.time), "args": mark.attrs}
        for mark in events_of(view.trace.marks)
    ]  # fmt: skip
    return counters + marks


def _place(lane: str, tids: dict[Lane, int]) -> dict[str, int]:
    return {"pid": PID, "tid": tids[lane_of(lane)]}


def _us(nanoseconds: int) -> float:
    """Microseconds; whole ones without a decimal point."""
    whole, rest = divmod(nanoseconds, 1000)
    return nanoseconds / 1000 if rest else whole
