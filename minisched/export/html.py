"""The player: one page that plays, steps and drags through whole runs on one time axis.

The page needs no network. It contains ``stepper.html``, the other ``stepper*`` files of this
folder, and its runs as JSON in gzip. Its scripts build the rest. At each moment the page shows the
current source line of each loop, and the engine's state. It draws only visible slices, so ten
thousand of them stay smooth.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from statistics import median
from typing import Any

from ..checks.overlap import (
    OverlapReport,
    forwards,
    measure,
    speedup_over,
    step_intervals,
)
from ..loops.design import LoopSource, source_of
from ..trace import Mark, Trace
from ..trace.marks import in_file
from ..trace.sides import one_side
from .answer import FIRST, families, first_runs, opening, picture, verdict
from .layout import lane_title, make_view
from .looks import ARROWS, LOOKS, OWNERS, PHASES, flat
from .runs import MOST_NAMES, TIE, loops_shown
from .state import Panel, arrivals, panels, pool
from .svg_style import variables
from .units import busy, ms

STYLES = ("stepper.css", "stepper_panels.css")
SCRIPTS = (
    "stepper_data.js",  # the runs, their state by time, links to a moment
    "stepper_frames.js",  # the page's frames, still empty
    "stepper_draw.js",  # lanes, slices, arrows, flags, the axis
    "stepper_panels.js",  # lists, KV map, source, a request's life
    "stepper_save.js",  # what leaves the page: a link, an SVG, a file for Perfetto
    "stepper_page.js",  # the page's state and its changes; starts everything
)
PLACE = re.compile(r"\{\{(\w+)\}\}")
FLAGS = {  # marks that get a flag above the lanes, and its colour on the page
    "wasted row": "bubble",
    "stale output": "bubble",
    "retraction": "bubble",
    "wait": "waited",
    "finish": "ink",
    "flush cache": "bubble",
}


def to_html(traces: Sequence[Trace], title: str = "") -> str:
    """Return the page. The first run is the baseline that speed-ups refer to.

    Raises:
        ValueError: there is no trace, or a mark lacks an attribute.
    """
    if not traces:
        raise ValueError("a page needs at least 1 trace, but got 0.")
    settings = [f"{run.what_ran}, {run.clock_words}" for run in traces]
    what = "One run" if len(traces) == 1 else f"{len(traces)} runs on one time axis"
    is_one = len(set(settings)) == 1
    names = run_names(traces)
    named = loops_shown(traces) if len(traces) > MOST_NAMES else " against ".join(names)
    reports = [measure(trace) for trace in traces]
    works = [work_of(trace) for trace in traces]
    times = [
        report.makespan_ns * (work == works[0]) for report, work in zip(reports, works, strict=True)
    ]
    said_first = verdict(names, times, traces[0].clock)
    least = min((time for time in times[1:] if time), default=0)
    fastest = next((at for at, time in enumerate(times) if at and 0 < time <= TIE * least),
                   len(traces) - 1)  # fmt: skip
    abouts = [
        ("" if is_one else f"{words}: ") + about_of(report, reports[0], is_same=at > 0 and time > 0)
        for at, (words, report, time) in enumerate(zip(settings, reports, times, strict=True))
    ]
    packed = gzip.compress(json.dumps(page_data(traces, reports, names, abouts)).encode(), mtime=0)
    places = {
        "title": escape(title or named),
        "verdict": escape(said_first or title or named),
        "picture": picture(traces, fastest),
        "about": escape(f"{what}: {settings[0]}." if is_one else f"{what}."),
        "style": "\n".join([variables(), *map(part, STYLES)]),
        "data": base64.b64encode(packed).decode(),
        "scripts": "\n".join(
            f'<script type="text/plain" class="later">\n{part(name)}</script>' for name in SCRIPTS
        ),
    }
    return PLACE.sub(lambda found: places[found[1]], part("stepper.html"))


def about_of(report: OverlapReport, first: OverlapReport, *, is_same: bool) -> str:
    """Write a run's figures, with its speed-up over the first run if both did the same work."""
    figures = [busy(report), f"{ms(report.makespan_ns)} ms"]
    factor = speedup_over(first, report) if is_same else None
    return ", ".join([*figures, *([f"{factor:.2f}×"] if factor else [])])


def part(name: str) -> str:
    """Return one of the files of this folder as text."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def run_names(traces: Sequence[Trace]) -> list[str]:
    """Return the loops' names; equal names are numbered."""
    total, seen = Counter(trace.loop for trace in traces), Counter[str]()
    names = []
    for trace in traces:
        seen[trace.loop] += 1
        names.append(trace.loop + f" {seen[trace.loop]}" * (total[trace.loop] > 1))
    return names


# -- The data of the page --------------------------------------------------------------------------


def page_data(
    traces: Sequence[Trace],
    reports: Sequence[OverlapReport],
    names: Sequence[str],
    abouts: Sequence[str],
) -> dict[str, Any]:
    """Return all data as JSON; ``abouts`` describe the runs.

    ``few`` is the interval that "a few steps" shows. ``now`` is the first place of the cursor: the
    host processes a step, from the middle of the few. ``groups`` are the runs in families, and
    ``first`` the runs that are shown first.
    """
    run = traces[min(1, len(traces) - 1)]  # the run that keys step through
    start, end = opening(traces)
    begins = (
        (item.start + item.end) // 2
        for item in run.slices
        if item.name == "process" and item.duration and item.start > start
    )
    rids = (rid for trace in traces for item in trace.slices for rid in item.rids)
    everything = list(range(len(traces)))
    groups = families(traces, reports) if len(traces) > FIRST else [("", everything)]
    return {
        "runs": [
            {"loop": name, "about": about, **run_data(trace)}
            for name, about, trace in zip(names, abouts, traces, strict=True)
        ],
        "few": [start, end],
        "now": next(begins, start),
        "groups": groups,
        "first": first_runs(groups, len(traces)),
        "colours": {name: [flat(name), LOOKS[name].text] for name in (*PHASES, "other")},
        "arrows": ARROWS,
        "flags": FLAGS,
        "owners": OWNERS,
        "rids": list(dict.fromkeys(rids)),  # in the order of their colours
    }  # fmt: skip


def run_data(trace: Trace) -> dict[str, Any]:
    """Return one run; times are nanoseconds, and a ``line`` counts from its loop's ``def``."""
    view = make_view(trace)
    lanes: dict[str, dict[str, Any]] = {
        lane: {"key": lane, "title": lane_title(lane), "slices": [], "bubbles": []}
        for lane in view.lanes
    }
    for item in view.slices:
        line = {"line": item.attrs["line"]} if "line" in item.attrs else {}
        lanes[item.lane]["slices"].append(
            {"id": item.id, "lane": item.lane, "phase": item.name, "start": item.start,
             "end": item.end, "step": item.step, "mode": item.mode, "rids": item.rids, **line}
        )  # fmt: skip
    for idle in view.bubbles:
        lanes[idle.lane]["bubbles"].append(
            {"start": idle.start, "end": idle.end, "reason": idle.cause}
        )
    return {
        "end": view.end,
        "stepTime": median(step_intervals(trace) or [max(1, view.end)]),
        "steps": sorted({item.start for item in forwards(trace)}),
        "lanes": list(lanes.values()),
        "edges": [
            {"src": arrow.src.id, "dst": arrow.dst.id, "start": arrow.start,
             "end": arrow.end, "kind": "wrong" if arrow.wrong else arrow.kind}
            for arrow in view.arrows
        ],
        "marks": [
            {"time": mark.time, "name": mark.name, "attrs": in_file(mark)}
            for mark in trace.marks
            if mark.name in FLAGS
        ],
        "panels": [panel_data(trace, panel) for panel in panels(trace)],
        "life": life(trace),
        "listings": listings(trace),
    }  # fmt: skip


def panel_data(trace: Trace, panel: Panel) -> dict[str, Any]:
    """Return a part of the engine's state: its stays, and their requests.

    ``pages`` is the size of its side's pool, 0 if unknown.

    Raises:
        NothingToShow: a mark lacks the number of pages.
    """
    sizes = pool(one_side(trace, panel.side)) if panel.name == "pages" else None
    names = ("place", "start", "end", "kind", "label", "about", "parent")
    return {
        "name": panel.name,
        "side": panel.side,
        "pages": sizes.pages if sizes else 0,
        "places": panel.places,
        "stays": [
            {**{name: getattr(stay, name) for name in names},
             "rids": stay.holders or ((stay.rid,) if stay.rid else ())}
            for stay in sorted(panel.stays, key=lambda stay: stay.start)
        ],
    }  # fmt: skip


def listings(trace: Trace) -> dict[str, dict[str, Any]]:
    """Return the source of each host lane with recorded lines.

    The trace of an own loop contains its source. An unknown loop has none.
    """
    known = own_source(trace)
    try:
        known = known or source_of(trace.loop.partition(":")[0])
    except ValueError:
        return {}
    lanes = {item.lane for item in trace.slices if "line" in item.attrs}
    return {
        lane: {"where": f"{source.path}:{source.name}".lstrip(":"), "first": source.first_line,
               "lines": source.lines}
        for lane, source in known.items()
        if lane in lanes
    }  # fmt: skip


SOURCE = ("loop", "path", "first_line", "text")  # of a mark ``loop source``


def own_source(trace: Trace) -> dict[str, LoopSource]:
    """Return the source that the trace of an own loop contains, by lane."""
    for mark in trace.marks:
        if mark.name == "loop source" and mark.attrs["text"]:
            name, path, first, text = (mark.attrs[key] for key in SOURCE)
            lines = tuple(str(text).split("\n"))
            return {"host": LoopSource(str(name), str(path), int(first), lines)}
    return {}


# -- A request's life: its events outside of its steps ---------------------------------------------

SAID = {  # by mark (of a pair of schedulers by ``side mark``): its meaning for the request
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


def life(trace: Trace) -> list[dict[str, Any]]:
    """Return the events of each request, by time; of refusals for one reason only the first."""
    found = [(at, rid, "arrives") for rid, times in arrivals(trace).items() for at in times]
    last: dict[str, str] = {}  # the reason of each request's last refusal
    for mark in trace.marks:
        if words := words_of(mark):
            rid = str(mark.attrs["rid"])
            if mark.name != "refuse" or last.get(rid) != words:
                found.append((mark.time, rid, words))
            last[rid] = words
    told = sorted(found, key=lambda item: item[0])
    return [{"time": time, "rid": rid, "text": text} for time, rid, text in told]


def words_of(mark: Mark) -> str:
    """Return a mark's meaning for its request; empty if another row of the page shows it."""
    known: dict[str, Any] = {"reason": mark.attrs.get("result", ""), **mark.attrs}
    said = SAID.get(f"{mark.attrs.get('side', '')} {mark.name}") or SAID.get(mark.name, "")
    return said.format_map(defaultdict(int, known)) if "rid" in mark.attrs else ""


def work_of(trace: Trace) -> tuple[str, set[str], list[tuple[str, int]]]:
    """Return the clock, the served requests, and each one's number of tokens, if recorded."""
    outputs = [
        (str(mark.attrs.get("rid", "")), int(mark.attrs.get("outputs", 0)))
        for mark in trace.marks
        if mark.name == "finish" and mark.attrs.get("side") != "prefill"
    ]
    return trace.clock, {rid for item in trace.slices for rid in item.rids}, sorted(outputs)
