"""What the page knows of its runs: lanes as they are drawn, panels, counters, requests' lives.

Plain JSON, packed once with gzip: ``stepper.html`` unpacks it before the scripts begin, and
``stepper_data.js`` puts in what follows from it.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from ..checks.overlap import forwards, step_intervals
from ..loops.design import LoopSource, source_of
from ..trace import Mark, Slice, Trace
from ..trace.sides import one_side
from .layout import Lane, View, lane_of, make_view, steady_views
from .looks import LOOKS, OWNERS, PHASES, flat
from .state import Panel, Stay, arrivals, pool
from .units import counted

FLAGS = {  # marks that get a flag above the lanes, and its colour on the page
    "wasted row": "bubble",
    "stale output": "bubble",
    "retraction": "bubble",
    "wait": "waited",
    "finish": "ink",
    "flush cache": "bubble",
}
SAID = {  # by mark, of one of two schedulers by ``side mark``: what it means to its request
    "admit": "admitted: {hit_len} tokens from the cache, {extend_len} to compute",
    "refuse": "has to wait: {reason}",
    "retraction": "retracted ({reason}), tokens so far: {outputs}",
    "prefill finish": "the prefill side is done with it",
    "finish": "finishes: {reason}, tokens: {outputs}",
    "wasted row": "its row in step {step} was wasted",
    "stale output": "what step {step} gave it came too late",
    "decode row alloc": "pages are reserved for it on the decode side",
    "kv transfer": "its KV moves to decode: {slots} KV slots",
}


def page_data(traces: Sequence[Trace], states: Sequence[Sequence[Panel]]) -> str:
    """Everything, as base64 of gzipped JSON.

    ``few`` is the stretch of time that "a few steps" shows, ``now`` where the cursor begins.
    """
    run = traces[min(1, len(traces) - 1)]  # the one that keys go through
    few = steady_views([run], 3)[0]
    rids = (rid for trace in traces for item in trace.slices for rid in item.rids)
    data = {
        "runs": [
            {"loop": name, **run_data(make_view(trace), state)}
            for name, trace, state in zip(run_names(traces), traces, states, strict=True)
        ],
        "few": [few.start, few.end],
        "now": beginning(run, few),
        "colours": {name: [flat(name), LOOKS[name].text] for name in (*PHASES, "other")},
        "flags": FLAGS,
        "owners": OWNERS,
        "rids": list(dict.fromkeys(rids)),  # in the order of their colours
    }
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0)
    return base64.b64encode(packed).decode()


def run_names(traces: Sequence[Trace]) -> list[str]:
    """The loops' names; those of equal name are numbered."""
    total, seen = Counter(trace.loop for trace in traces), Counter[str]()
    names = []
    for trace in traces:
        seen[trace.loop] += 1
        names.append(trace.loop + f" {seen[trace.loop]}" * (total[trace.loop] > 1))
    return names


def beginning(run: Trace, few: View) -> int:
    """Where a stranger should look first: the host processes a step, from the middle of the few."""
    found = [s for s in run.slices if s.name == "process" and s.duration and s.start > few.start]
    return (found[0].start + found[0].end) // 2 if found else few.start


def run_data(view: View, state: Sequence[Panel]) -> dict[str, Any]:
    """One run; times are nanoseconds."""
    trace = view.trace
    return {
        "end": view.end,
        "stepTime": median(step_intervals(trace) or [max(1, view.end)]),
        "steps": sorted({item.start for item in forwards(trace)}),
        "lanes": [lane_data(view, lane) for lane in view.lanes],
        "edges": [
            {"src": arrow.src.id, "dst": arrow.dst.id, "start": arrow.start,
             "end": arrow.end, "kind": "wrong" if arrow.wrong else arrow.kind}
            for arrow in view.arrows
        ],
        "marks": [
            {"time": mark.time, "name": mark.name, "attrs": mark.attrs}
            for mark in trace.marks
            if mark.name in FLAGS
        ],
        "panels": [panel_data(trace, panel) for panel in state],
        "counters": counters(trace),
        "life": life(trace),
    }  # fmt: skip


def lane_data(view: View, lane: Lane) -> dict[str, Any]:
    """A lane, what is on it, and where it idles."""
    return {
        "key": lane.key,
        "title": lane.title,
        "slices": [slice_data(item) for item in view.on(lane)],
        "bubbles": [
            {"start": item.start, "end": item.end, "reason": item.cause}
            for item in view.bubbles
            if lane_of(item.lane) == lane
        ],
    }


def slice_data(item: Slice) -> dict[str, Any]:
    """A slice; ``line`` is the one of its loop's source that it was recorded at."""
    found = {
        "id": item.id, "lane": item.lane, "phase": item.name, "start": item.start,
        "end": item.end, "step": item.step, "mode": item.mode, "rids": item.rids,
    }  # fmt: skip
    return found | ({"line": item.attrs["line"]} if "line" in item.attrs else {})


def panel_data(trace: Trace, panel: Panel) -> dict[str, Any]:
    """A part of the engine's state; ``pages`` is the size of its side's pool, 0 if unknown.

    Raises:
        NothingToShow: a mark does not say how many pages there are.
    """
    sizes = pool(one_side(trace, panel.side)) if panel.name == "pages" else None
    return {
        "name": panel.name,
        "side": panel.side,
        "pages": sizes.pages if sizes else 0,
        "places": panel.places,
        "stays": [stay_data(stay) for stay in sorted(panel.stays, key=lambda stay: stay.start)],
    }


def stay_data(stay: Stay) -> dict[str, Any]:
    """What was where; ``rids`` are those whose it is."""
    names = ("place", "start", "end", "kind", "label", "about", "parent")
    rids = stay.holders or ((stay.rid,) if stay.rid else ())
    return {name: getattr(stay, name) for name in names} | {"rids": rids}


def counters(trace: Trace) -> dict[str, dict[str, Any]]:
    """Each counter's title, its unit, and [time, value] pairs; of several at one time the last."""
    found: dict[str, dict[int, int | float]] = defaultdict(dict)
    for item in trace.counters:
        found[item.name][item.time] = counted(item.name).value(item.value)
    return {
        name: {
            "title": (of := counted(name)).title,
            "unit": "" if of.title.endswith(of.unit) else of.unit,
            "points": list(points.items()),
        }
        for name, points in found.items()
    }


def life(trace: Trace) -> list[dict[str, Any]]:
    """What happened to each request beside its steps, in order of time."""
    found = [(at, rid, "arrives") for rid, times in arrivals(trace).items() for at in times]
    last: dict[str, str] = {}  # of each request, why it was last refused: it is said once
    for mark in trace.marks:
        if words := words_of(mark):
            rid = str(mark.attrs["rid"])
            if mark.name != "refuse" or last.get(rid) != words:
                found.append((mark.time, rid, words))
            last[rid] = words
    told = sorted(found, key=lambda item: item[0])
    return [{"time": time, "rid": rid, "text": text} for time, rid, text in told]


def words_of(mark: Mark) -> str:
    """What a mark means to its request; nothing if that is told elsewhere."""
    known: dict[str, Any] = {"reason": mark.attrs.get("result", ""), **mark.attrs}
    said = SAID.get(f"{mark.attrs.get('side', '')} {mark.name}") or SAID.get(mark.name, "")
    return said.format_map(defaultdict(int, known)) if "rid" in mark.attrs else ""


def sources(trace: Trace) -> dict[str, LoopSource]:
    """The source of each host lane whose lines the trace knows; none of a loop nobody has."""
    try:
        known = source_of(trace.loop.partition(":")[0])
    except ValueError:
        return {}
    lanes = {item.lane for item in trace.slices if "line" in item.attrs}
    return {lane: source for lane, source in known.items() if lane in lanes}
