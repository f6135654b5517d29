"""The runs as the page reads them: short lists, and each text once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from ..checks.overlap import forwards, step_intervals
from ..loops.design import LoopSource, source_of
from ..trace import Mark, Trace
from ..trace.sides import one_side
from .layout import Arrow, Box, Lane, View, steady_views, whole_run
from .palette import OTHER, OWNERS, PAINTS
from .runs import MOST_NAMES, loops_shown
from .state import Panel, Stay, arrivals, pool
from .units import counted

# -- Texts by number, so that a page carries each of them once -------------------------------------


class Names(dict[str, int]):
    """Numbers texts in the order in which they are first asked for; 0 is the empty text."""

    def __init__(self) -> None:
        super().__init__({"": 0})
        self.groups: list[list[int]] = [[]]  # lists of texts, 0 is the empty one
        self._known: dict[tuple[str, ...], int] = {(): 0}

    def number(self, text: str) -> int:
        """The place of ``text`` in the page's list of names."""
        return self.setdefault(text, len(self))

    def group(self, texts: tuple[str, ...]) -> int:
        """The place of several texts in the page's list of groups."""
        if texts not in self._known:
            self._known[texts] = len(self.groups)
            self.groups.append([self.number(text) for text in texts])
        return self._known[texts]


# -- Which marks get a flag above the lanes, and in which colour: its legend and its drawing agree

FLAGS = {  # by mark: a colour of the page
    "wasted row": "bubble",
    "stale output": "bubble",
    "retraction": "bubble",
    "wait": "waited",
    "finish": "ink",
    "flush cache": "bubble",
}


# -- What the page calls its runs, and what they ran on: said once, or of each where they differ

CLOCKS = {"virtual": "simulated", "wall": "measured"}


def run_names(traces: Sequence[Trace]) -> list[str]:
    """The loops' names; those of equal name are numbered."""
    total, seen = Counter(trace.loop for trace in traces), Counter[str]()
    names = []
    for trace in traces:
        seen[trace.loop] += 1
        number = f" {seen[trace.loop]}" if total[trace.loop] > 1 else ""
        names.append(trace.loop + number)
    return names


def title_of(traces: Sequence[Trace]) -> str:
    """The runs by their names, or how many there are where names would fill the line."""
    return loops_shown(traces) if len(traces) > MOST_NAMES else " against ".join(run_names(traces))


def are_alike(traces: Sequence[Trace]) -> bool:
    """Whether all of them ran the same model on the same device and clock."""
    return len({setting(trace) for trace in traces}) == 1


def setting(trace: Trace) -> str:
    """What a run ran on: ``hash model on sim, simulated time``."""
    return f"{trace.what_ran}, {CLOCKS.get(trace.clock, trace.clock)} time"


def what_it_is(traces: Sequence[Trace]) -> str:
    """How many runs there are, and what they ran on if that is the same for all."""
    what = "One run" if len(traces) == 1 else f"{len(traces)} runs on one time axis"
    if are_alike(traces):
        return f"{what}: {setting(traces[0])}."
    clocks = {trace.clock for trace in traces}
    mixed = "; simulated and measured times are not to be compared" if len(clocks) > 1 else ""
    return f"{what}; what each ran on stands beside its name{mixed}."


# -- What the page knows of a run beside its slices: panels, counters, source lines, and lives -----


def sources(trace: Trace) -> dict[str, LoopSource]:
    """The source of each host lane whose lines the trace knows; none of a loop nobody has."""
    try:
        known = source_of(trace.loop.partition(":")[0])
    except ValueError:
        return {}
    return {lane: source for lane, source in known.items() if _lines_on(trace, lane)}


def source_lines(trace: Trace) -> list[dict[str, Any]]:
    """For each of ``sources``: [start, end, line] of what its host did, in order of time."""
    return [{"lane": lane, "at": _lines_on(trace, lane)} for lane in sources(trace)]


def _lines_on(trace: Trace, lane: str) -> list[list[int]]:
    return [
        [item.start, item.end, int(item.attrs["line"])]
        for item in trace.on(lane)
        if "line" in item.attrs
    ]


def counters(trace: Trace) -> dict[str, list[list[int | float]]]:
    """Each counter's [time, value] pairs, in its unit; of several at one time the last."""
    found: dict[str, dict[int, int | float]] = {}
    for item in trace.counters:
        found.setdefault(item.name, {})[item.time] = counted(item.name).value(item.value)
    return {name: [[time, value] for time, value in of.items()] for name, of in found.items()}


def units(trace: Trace) -> dict[str, list[str]]:
    """What each counter is called on the page, and its unit where the name does not say it."""
    known = {item.name: counted(item.name) for item in trace.counters}
    return {
        name: [of.title, "" if of.title.endswith(of.unit) else of.unit]
        for name, of in known.items()
    }


def pool_pages(trace: Trace, shown: Panel) -> int:
    """How many pages the pool of a KV map's side has; 0 if the trace does not say.

    Raises:
        NothingToShow: a mark does not say how many.
    """
    sizes = pool(one_side(trace, shown.side)) if shown.name == "pages" else None
    return sizes.pages if sizes else 0


def panel(shown: Panel, pages: int, names: Names) -> dict[str, Any]:
    """A panel whose stays are lists of numbers; zeros at the end of one are left out.

    ``pages`` is how many there are in its side's pool.
    """
    at = {place: number for number, place in enumerate(shown.places)}
    return {
        "name": shown.name,
        "side": shown.side,
        "pages": pages,
        "places": list(shown.places),
        "stays": [_stay(stay, at, names) for stay in sorted(shown.stays, key=lambda s: s.start)],
    }


def _stay(stay: Stay, at: dict[str, int], names: Names) -> list[int]:
    group = names.group(stay.holders or ((stay.rid,) if stay.rid else ()))
    texts = [names.number(text) for text in (stay.kind, stay.label, stay.about, stay.parent)]
    numbers = [at[stay.place], stay.start, stay.end, group, *texts]
    while not numbers[-1]:
        numbers.pop()
    return numbers


def life(trace: Trace) -> list[tuple[int, str, str]]:
    """What happened to each request beside its steps: (time, request, words), in order of time."""
    found = [(at, rid, "arrives") for rid, times in arrivals(trace).items() for at in times]
    last: dict[str, str] = {}  # of each request, why it was last refused: it is said once
    for mark in trace.marks:
        if "rid" in mark.attrs and (words := _words(mark)):
            rid = str(mark.attrs["rid"])
            if mark.name != "refuse" or last.get(rid) != words:
                found.append((mark.time, rid, words))
            last[rid] = words
    return sorted(found, key=lambda item: item[0])


def _words(mark: Mark) -> str:
    """What a mark means to its request; nothing if that is told elsewhere."""
    said = dict(_sayings(mark.attrs))
    return said.get(mark.name, "")


def _sayings(of: dict[str, Any]) -> Iterator[tuple[str, str]]:
    hit, rest = of.get("hit_len", 0), of.get("extend_len", 0)
    chunk = ", the first of several chunks" if of.get("is_chunked") else ""
    yield "admit", f"admitted: {hit} tokens from the cache, {rest} to compute{chunk}"
    yield "refuse", f"has to wait: {of.get('reason') or of.get('result', '')}"
    outputs = f"{of.get('outputs', 0)} token{'s' * (of.get('outputs') != 1)}"
    yield "retraction", f"retracted ({of.get('reason', '')}) after {outputs}"
    if of.get("side") == "prefill":
        yield "finish", "the prefill side is done with it"
    else:
        yield "finish", f"finishes: {of.get('reason', '')}, {outputs}"
    yield "wasted row", f"its row in step {of.get('step', 0)} was wasted"
    yield "stale output", f"what step {of.get('step', 0)} gave it came too late"
    if of.get("side") == "decode":
        yield "row alloc", "pages are reserved for it on the decode side"
    yield "kv transfer", f"its KV moves to decode: {of.get('slots', 0)} KV slots"


NOTABLE = tuple(FLAGS)
"""Marks that get a flag on the lanes; the others are in the panels."""


def page_data(traces: Sequence[Trace], states: Sequence[Sequence[Panel]]) -> str:
    """JSON that may stand inside a script element; ``stepper_data.js:unpack`` reads it.

    ``few`` is the stretch of time that "a few steps" shows, ``now`` where the cursor begins, and
    ``groups`` are lists of requests, by the numbers of their names.
    """
    names = Names()
    few = steady_views([traces[min(1, len(traces) - 1)]], 3)[0]  # of the keys' run
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
