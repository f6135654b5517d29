"""Chrome Trace Event JSON, for https://ui.perfetto.dev and chrome://tracing.

``X`` slices, ``M`` names, ``s``/``f`` flows, ``C`` counters, ``i`` instants. Times are
microseconds; three decimals keep the nanoseconds. The cost of a wait is a ``b``/``e`` pair, in a
row of its own.

All lanes are in one process, because Perfetto lists the process with the most events first. Within
a process, Perfetto sorts by thread number and chrome://tracing by sort index, so lanes are numbered
from top to bottom. No lane has the process's number, because Perfetto calls that thread "main
thread".
"""

from __future__ import annotations

import json
from typing import Any

from ..trace import Trace
from ..trace.events import is_host
from ..trace.marks import in_file
from .layout import lane_title, make_view
from .units import counted

# A run of 30 steps has a few dozen marks that a reader looks for (a wait, a retraction, a wasted
# row, an end), and many hundreds about single pages. The former have a lane of their own. Perfetto
# stacks an arrowhead for each mark of one moment, so the latter would hide everything else. The
# trace itself (``LOOP.json``) contains all of them. A mark of unknown name is shown.
EVENTS = "Events (host)"
BOOKKEEPING = frozenset(
    {"kv pool", "row alloc", "row free", "row hold", "row let go", "page alloc",
     "page disown", "page free", "commit", "tokens", "match", "insert", "radix add",
     "radix split", "radix lock", "radix evict", "block add", "block lock", "block evict",
     "kv transfer", "host buffers", "row length",
     "budget", "admit", "queue order", "new token ratio", "grammar", "grammar mask",
     "grammar accept", "future map", "future slots", "token pool", "lazy tokens",
     "placeholder fill", "prev sampled", "request state", "ledger", "context"}
)  # fmt: skip
Event = dict[str, Any]
PID = 1


def to_chrome(trace: Trace) -> str:
    """Return a whole run as text, with one event a line."""
    view = make_view(trace)
    marks = [mark for mark in trace.marks if mark.name not in BOOKKEEPING]
    lanes = [lane for lane in view.lanes if is_host(lane)]
    lanes += [EVENTS] * bool(marks)  # between host and device
    lanes += [lane for lane in view.lanes if not is_host(lane)]
    tids = {lane: tid for tid, lane in enumerate(lanes, PID + 10)}

    def place(lane: str, time: int) -> Event:
        """Return the fields that place an event on its lane."""
        return {"pid": PID, "tid": tids[lane], "ts": _us(time)}

    events: list[Event] = []
    named = [("process", 0, f"{trace.loop} on {trace.device}", PID)]
    for what, tid, name, order in [
        *named, *(("thread", tid, lane if lane == EVENTS else lane_title(lane), tid)
                  for lane, tid in tids.items())
    ]:  # fmt: skip
        head = {"ph": "M", "pid": PID, "tid": tid, "ts": 0}
        events.append({**head, "name": f"{what}_name", "args": {"name": name}})
        events.append({**head, "name": f"{what}_sort_index", "args": {"sort_index": order}})
    for item in view.slices:
        args = {"id": item.id, "phase": item.name, "step": item.step, "mode": item.mode,
                "rids": list(item.rids), **item.attrs}  # fmt: skip
        events.append({"ph": "X", "name": item.label, "cat": item.name,
                       **place(item.lane, item.start), "dur": _us(item.duration),
                       "args": args})  # fmt: skip
    for number, arrow in enumerate(view.arrows, 1):
        # the flow starts a nanosecond before its source ends, to bind to that slice
        leaves = max(arrow.src.start, arrow.start - 1)
        flow = {"name": arrow.kind, "cat": "edge", "id": number,
                "args": {"src": arrow.src.id, "dst": arrow.dst.id}}  # fmt: skip
        events.append({"ph": "s", **flow, **place(arrow.src.lane, leaves)})
        events.append({"ph": "f", "bp": "e", **flow, **place(arrow.dst.lane, arrow.end)})
    for idle in (idle for idle in view.bubbles if idle.cause):  # a row for each cause
        wait = {"cat": "waits for", "id": idle.cause, "name": f"waits for {idle.cause}"}
        events.append({"ph": "b", **wait, **place(idle.lane, idle.start)})
        events.append({"ph": "e", **wait, **place(idle.lane, idle.end)})
    for counter in trace.counters:
        of = counted(counter.name)
        events.append({"ph": "C", "name": of.title, "pid": PID, "ts": _us(counter.time),
                       "args": {of.unit or "number": of.value(counter.value)}})  # fmt: skip
    for mark in marks:
        events.append({"ph": "i", "s": "t", "name": mark.name, **place(EVENTS, mark.time),
                       "args": in_file(mark)})  # fmt: skip
    about = {"loop": trace.loop, "device": trace.device, "model": trace.model, "clock": trace.clock}
    about |= {"dtype": trace.dtype} if trace.dtype else {}
    about |= {} if trace.apart is None else {"apart": str(trace.apart)}
    lines = ",".join("\n" + json.dumps(event) for event in events)
    return (
        f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [{lines}\n]}}'
        "\n"
    )


def _us(nanoseconds: int) -> float:
    """Return microseconds; whole ones without a decimal point."""
    whole, rest = divmod(nanoseconds, 1000)
    return nanoseconds / 1000 if rest else whole
