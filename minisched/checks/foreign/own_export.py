"""Reads back what ``export/chrome.py`` writes: slices, edges, counters and events of one run.

A program (what each lane did in its own order) is not in that format, so races can't be looked for.
"""

from __future__ import annotations

from typing import Any

from ...trace import Counter, Edge, Mark, Slice, Trace

HEADER = ("loop", "device", "model", "clock")
KNOWN = ("id", "phase", "step", "mode", "rids")
COUNTERS = {"next future slot": "future slots"}  # titles that are not the counter's name


def is_own(data: dict[str, Any]) -> bool:
    """Whether a Chrome trace is this program's."""
    about = data.get("otherData")
    return isinstance(about, dict) and set(HEADER) <= about.keys()


def own_trace(data: dict[str, Any]) -> Trace:
    """The trace in one.

    Raises:
        KeyError, TypeError, ValueError: an event is not as it was written.
    """
    about, events = data["otherData"], data["traceEvents"]
    lanes = {
        event["tid"]: lane_named(event["args"]["name"])
        for event in events
        if event.get("name") == "thread_name"
    }
    slices, edges, counters, marks = [], set(), [], []
    for event in events:
        if event["ph"] == "X":
            slices.append(_slice(event, lanes[event["tid"]]))
        elif event["ph"] == "s":
            ends = int(event["args"]["src"]), int(event["args"]["dst"])
            edges.add(Edge(*ends, str(event["name"])))
        elif event["ph"] == "C":
            counters.append(_counter(event))
        elif event["ph"] == "i":
            marks.append(_mark(event))
    slices.sort(key=lambda item: (item.start, item.end, item.id))
    ids = {item.id for item in slices}
    if lost := [edge for edge in edges if not {edge.src, edge.dst} <= ids]:
        raise ValueError(f"{lost[0]} names a slice that is not there")
    loop, device, model, clock = (str(about[name]) for name in HEADER)
    return Trace(
        loop, device, model, clock,
        tuple(slices), tuple(sorted(edges)), tuple(counters), tuple(marks),
        dtype=str(about.get("dtype", "")),
    )  # fmt: skip


def lane_named(title: str) -> str:
    """The lane that a picture calls so: ``Forward stream (device)`` is ``forward``."""
    name, _, side = title.rpartition(" (")
    if side == "host)" and name in ("Scheduler", "Process"):
        return "host"
    return name.lower().removesuffix(" stream")


def _slice(event: dict[str, Any], lane: str) -> Slice:
    args, start = event["args"], _ns(event["ts"])
    attrs = {key: value for key, value in args.items() if key not in KNOWN}
    # a schedule is shown with the step that it led to, but has none of its own
    step = 0 if args["phase"] == "schedule" else int(args["step"])
    rids = tuple(map(str, args["rids"]))
    duration = max(0, _ns(event["dur"]))
    return Slice(int(args["id"]), lane, str(args["phase"]), start, start + duration, step,
                 str(args["mode"]), rids, attrs)  # fmt: skip


def _mark(event: dict[str, Any]) -> Mark:
    attrs = dict(event["args"])
    if event["name"] == "wait":
        attrs["step"] = int(attrs["step"])  # what reads marks of this name relies on it
    return Mark(str(event["name"]), _ns(event["ts"]), attrs)


def _counter(event: dict[str, Any]) -> Counter:
    ((unit, value),) = event["args"].items()
    recorded = round(value * 1000) if unit == "ratio" else round(value)
    name = str(event["name"])
    return Counter(COUNTERS.get(name, name), _ns(event["ts"]), recorded)


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)
