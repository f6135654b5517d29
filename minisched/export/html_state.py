"""What the page knows of a run beside its slices: panels, counters, source lines, and lives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..loops.design import LoopSource, source_of
from ..trace import Mark, Trace
from .counter_units import counted
from .names import Names
from .state import Panel, Stay
from .state.memory import pool
from .state.requests import arrivals
from .state.side import one_side


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
