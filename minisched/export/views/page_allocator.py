"""KV memory as a map over time: the owner of each page and of each row of the request table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ...checks.history import many
from ...trace import Trace
from ...trace.sides import shown_side, side_words
from ..scene import Curve, LaneItem, LaneRow, Lanes, Part, Scene, Series, about_run
from ..state import ZOMBIE, Stay, count, panels_of, pool, up_to
from .marks import NothingToShow, named, number, numbers
from .steps import opening, retraction_flags

MOST_STEPS, MOST_LANES = 60, 48
LEGEND = {
    "admitted": "a request's",
    "wasted": f"a zombie's: its request {ZOMBIE}",
    "protected": "cached, and a request uses it (the name: the request that computed it)",
    "evictable": "cached, and no request uses it: evictable",
    "evict": "the prefix cache evicts this many pages",
}
NAMES = {"admitted": "requests'", "wasted": "zombies'", "protected": "cached, in use",
         "evictable": "evictable"}  # fmt: skip


def scene(trace: Trace) -> Scene:
    """Draw the pages by kind over time, and the map of pages and rows."""
    part, shown = opening(trace, MOST_STEPS)
    panels, own = panels_of(part), shown_side(part)
    pages, table = (up_to(panels[name].stays, part.end) for name in ("pages", "rows"))
    if not pages:
        raise NothingToShow("the trace has no page alloc mark, so no page was allocated.")
    retracted = [
        replace(flag, label=f"{flag.label} is retracted") for flag in retraction_flags(own)
    ]
    flags = sorted([*retracted, *eviction_flags(own)], key=lambda flag: flag.start)
    series = [Series(name, kind, values) for kind, name in NAMES.items()
              if (values := count(pages, kind))]  # fmt: skip
    has = pool(trace)
    size = f"the pool has {many(has.pages, 'page')}" if has else ""
    if has:
        series.append(Series(size, "line limit", [(0, has.pages)]))
    curve = Curve(series, part.end, "pages", flags=flags)
    parts = [Part("How many pages are in use", "one colour on top of the other", [curve])]
    lanes, notes = lanes_of(pages), list[str]()
    if len(lanes) <= MOST_LANES:
        note = "the owner of each; neighbours with the same owners share a lane"
        parts.append(Part("Pages", note, [Lanes(lanes, part.end)]))
    else:
        notes.append(f"{len(lanes)} lanes of pages are too many to show; the rows below show the "
                     "owners of memory.")  # fmt: skip
    note, rows = "a request has one for as long as it has memory", lanes_of(table)[:MOST_LANES]
    parts.append(Part("Rows of the request table", note, [Lanes(rows, part.end)]))
    sizes = "the size of the pool was not recorded"
    if has:
        sizes = (f"{many(has.pages, 'page')} of {many(has.page_size, 'token')}, "
                 f"{many(has.rows, 'row')} in the request table")  # fmt: skip
    full, signs = max(value for _, value in count(pages, *NAMES)), Counter(at.kind for at in flags)
    made_room = " and ".join(
        many(signs[kind], name)
        for kind, name in (("flag-head", "retraction"), ("evict", "eviction"))
        if signs[kind]
    )
    title = f"At most {many(full, 'page')} are in use" + f"; {made_room} make room" * bool(
        made_room
    )
    legend = {**LEGEND, "line limit": size}
    return Scene(title, about_run(part, shown, side_words(trace), sizes), parts, legend, notes)


def eviction_flags(trace: Trace) -> list[LaneItem]:
    """Return the times when the prefix cache evicted pages, and their numbers."""
    found: Counter[int] = Counter()
    for mark in named(trace, "radix evict", "block evict"):
        found[mark.time] += (number(mark, "pages") if mark.name == "radix evict"
                             else len(numbers(mark, "pages")))  # fmt: skip
    return [LaneItem("evict", time, time, f"-{pages}", data={"evicted": pages})
            for time, pages in found.items()]  # fmt: skip


def lanes_of(stays: Sequence[Stay]) -> list[LaneRow]:
    """Return a lane for each page or row; neighbours with the same stays share one."""
    by_id: dict[int, list[Stay]] = defaultdict(list)
    for stay in stays:
        by_id[int(stay.place.split()[1])].append(stay)
    groups: list[tuple[int, int, object]] = []  # the first id, the last, and their stays
    for at in sorted(by_id):
        way = [(stay.kind, stay.label, stay.start, stay.end) for stay in by_id[at]]
        is_same = bool(groups) and groups[-1][1:] == (at - 1, way)
        groups.append((groups.pop()[0] if is_same else at, at, way))
    rows = []
    for first, last, _ in groups:
        unit = by_id[first][0].place.split()[0]
        ids = f"{unit} {first}" if first == last else f"{unit} {first}-{last}"
        rows.append(LaneRow(ids, [
            LaneItem(
                stay.kind, stay.start, stay.end, stay.label,
                data={"unit": unit, "first": first, "last": last, "rid": stay.rid,
                      "start": stay.start, "end": stay.end},
            )
            for stay in by_id[first]
        ]))  # fmt: skip
    return rows
