"""KV memory as a map over time: which page and which row of the request table is whose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from ...trace import Mark, Trace
from ...trace.sides import side_words
from ..scene import Curve, LaneItem, LaneRow, Lanes, Part, Scene, Series, TextTable, about_run
from ..state import Panel, Stay, memory, up_to
from ..state.memory import ZOMBIE
from ..units import ms
from .decode import count
from .marks import NothingToShow, many, named, number, short, word
from .steps import opening, retraction_flags

# -- What a run did with its memory, read for every form in which it is shown ----------------------

NAMES = {
    "admitted": "a request's",
    "wasted": f"a zombie's: its request {ZOMBIE}",
    "protected": "cached, and a request uses it (the name: who computed it)",
    "evictable": "cached, and nobody uses it: evictable",
}


def panels(trace: Trace) -> tuple[Panel, Panel]:
    """Pages and rows, up to the end of the run; of a pair of schedulers on the decode side.

    Raises:
        NothingToShow: no page was ever given to anybody.
    """
    pages = memory.pages(trace)
    if not pages.stays:
        raise NothingToShow("the trace has no page alloc mark, so no page was ever given away.")
    rows = memory.rows(trace)
    return (
        replace(pages, stays=tuple(up_to(pages.stays, trace.end))),
        replace(rows, stays=tuple(up_to(rows.stays, trace.end))),
    )


def use_words(pages: Panel) -> str:
    """How full it was, and how much was used again."""
    owners: dict[str, list[Stay]] = defaultdict(list)
    for stay in pages.stays:
        if stay.kind == "admitted":
            owners[stay.place].append(stay)
    again = sum(len({stay.rid for stay in stays}) > 1 for stays in owners.values())
    full = max(value for _, value in count(pages.stays, *NAMES))
    return (
        f"at most {many(full, 'page')} in use at once, {again} of {len(pages.places)} go from one "
        "request to another"
    )


def evictions(trace: Trace) -> dict[int, int]:
    """By moment, how many pages the prefix cache gave up."""
    found: dict[int, int] = defaultdict(int)
    for mark in named(trace, "radix evict", "block evict"):
        if mark.attrs.get("side") != "prefill":
            is_tree = mark.name == "radix evict"
            found[mark.time] += (
                number(mark, "pages") if is_tree else len(word(mark, "pages").split())
            )
    return dict(found)


# -- The map: a lane a page, as far as pages can be told apart, and a lane a row -------------------

MOST_STEPS, MOST_LANES, MOST_EVENTS = 60, 48, 40
LEGEND = {
    **NAMES,
    "flag-head": "retraction",
    "evict": "the prefix cache evicts so many pages",
}
CURVES = {"admitted": "requests'", "wasted": "zombies'", "protected": "cached, in use",
          "evictable": "evictable"}  # fmt: skip
EVENTS = {
    "page alloc": "gets",
    "page disown": "left to the cache",
    "page free": "free again",
    "retraction": "is retracted",
    "finish": "has ended",
}


def scene(trace: Trace) -> Scene:
    """How many pages are whose, the map of them and of the rows, and what happened to them.

    Raises:
        NothingToShow: no step ran, or no page was ever given to anybody.
    """
    part, shown = opening(trace, MOST_STEPS)
    pages, table = panels(part)
    flags = retraction_flags(part, [word(m, "rid") for m in _of(part, "retraction")], "")
    flags += [
        LaneItem("evict", time, time, f"-{number}",
                 about=f"{many(number, 'page')} {'is' if number == 1 else 'are'} evicted",
                 data={"evicted": number})
        for time, number in evictions(part).items()
    ]  # fmt: skip
    flags.sort(key=lambda flag: flag.start)
    series = [Series(name, kind, values) for kind, name in CURVES.items()
              if (values := count(pages.stays, kind))]  # fmt: skip
    map_, rows = rows_of(pages, "page"), rows_of(table, "row")
    parts = [Part("How many pages are in use", "one colour on top of the other",
                  [Curve(series, part.end, "pages", flags=flags)])]  # fmt: skip
    notes = []
    if len(map_) <= MOST_LANES:
        note = "each in whose hands; neighbours that go the same way share a lane"
        parts.append(Part("Pages", note, [Lanes(map_, part.end)]))
    else:
        notes.append(f"{len(map_)} lanes of pages are too many to be told apart; the rows below "
                     "say who has memory.")  # fmt: skip
    note = "a request has one for as long as it has memory"
    parts.append(Part("Rows of the request table", note, [Lanes(rows[:MOST_LANES], part.end)]))
    marks = _of(part, *EVENTS)
    note = f"the first {MOST_EVENTS} of {len(marks)}" * (len(marks) > MOST_EVENTS)
    parts.append(Part("What happened", note, [events_of(marks[:MOST_EVENTS])]))
    memory_ = "the size of the pool was not recorded"
    if pool := memory.pool(trace):
        memory_ = (f"{many(pool.pages, 'page')} of {many(pool.page_size, 'token')}, "
                   f"{many(pool.rows, 'row')} in the request table")  # fmt: skip
    about = about_run(part, shown, *filter(None, [side_words(trace), memory_]))
    return Scene(f"page_allocator: {use_words(pages)}", about, parts, LEGEND, notes)


def rows_of(panel: Panel, unit: str) -> list[LaneRow]:
    """A lane for each page or row, or for several that go the same way."""
    rows = []
    for first, last, stays in lanes_of(panel):
        ids = f"{unit} {first}" if first == last else f"{unit} {first}-{last}"
        items = [
            LaneItem(
                stay.kind, stay.start, stay.end, stay.label, "",
                f"{ids}, {ms(stay.start)} to {ms(stay.end)} ms: {whose(stay)}",
                {"unit": unit, "first": first, "last": last, "rid": stay.rid,
                 "start": stay.start, "end": stay.end},
            )
            for stay in stays
        ]  # fmt: skip
        rows.append(LaneRow(ids, items))
    return rows


def events_of(marks: list[Mark]) -> TextTable:
    """Who got which pages, who left them to the cache, and when they were free again."""
    owner: dict[str, str] = {}
    rows: list[tuple[str, str, str, str]] = []
    for mark in marks:
        ids = word(mark, "pages").split() if mark.name.startswith("page ") else []
        if mark.name == "page alloc":
            owner |= dict.fromkeys(ids, word(mark, "rid"))
        whose_ = [owner.get(page_id, "") for page_id in ids] or [word(mark, "rid")]
        if mark.name == "page disown":
            owner |= dict.fromkeys(ids, "the cache")
        words = f" ({word(mark, 'reason')})" if mark.name in ("finish", "retraction") else ""
        who = short(", ".join(dict.fromkeys(whose_)), 24)
        rows.append((ms(mark.time), who, EVENTS[mark.name] + words, runs(map(int, ids))))
    return TextTable(("ms", "whose", "", "pages"), rows)


def whose(stay: Stay) -> str:
    """In whose hands something is, in words."""
    if stay.rid:
        return f"{stay.label}, which {ZOMBIE}" if stay.kind == "wasted" else stay.rid
    return stay.about + f"; {stay.label} computed it" * bool(stay.label)


def runs(numbers: Iterable[int]) -> str:
    """Ids as a reader likes them: ``3-5 8``."""
    parts: list[list[int]] = []
    for at in sorted(numbers):
        if parts and parts[-1][1] == at - 1:
            parts[-1][1] = at
        else:
            parts.append([at, at])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def id_of(stay: Stay) -> int:
    """The id in ``page 7`` or ``row 7``."""
    return int(stay.place.split()[1])


def lanes_of(panel: Panel) -> list[tuple[int, int, list[Stay]]]:
    """A lane for each page or row; neighbours that go the same way throughout share one."""
    by_id: dict[int, list[Stay]] = {}
    for stay in panel.stays:
        by_id.setdefault(id_of(stay), []).append(stay)
    groups: list[tuple[int, int, list[Stay]]] = []
    for at in sorted(by_id):
        if groups and groups[-1][1] == at - 1 and _way(groups[-1][2]) == _way(by_id[at]):
            groups[-1] = (groups[-1][0], at, groups[-1][2])
        else:
            groups.append((at, at, by_id[at]))
    return groups


def _way(stays: list[Stay]) -> list[tuple[str, str, int, int]]:
    return [(stay.kind, stay.label, stay.start, stay.end) for stay in stays]


def _of(trace: Trace, *names: str) -> list[Mark]:
    """Marks; of a pair of schedulers those of the side that decodes."""
    return [mark for mark in named(trace, *names) if mark.attrs.get("side") != "prefill"]
