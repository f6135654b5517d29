"""The map of KV memory as text for a terminal, and as PlantUML."""

from __future__ import annotations

from ...trace import Mark, Trace
from ..state import Panel, Stay
from ..units import ms
from .marks import named, word
from .page import about_run
from .page_bands import KINDS, Shares, pages_a_band, shares_of
from .page_blocks import number as id_of
from .page_blocks import runs
from .page_story import (
    NAMES,
    about_memory,
    highest,
    is_large,
    panels,
    pool_words,
    shown_part,
    use_words,
)
from .puml_stays import stays_to_puml
from .stay_counts import count
from .text_page import GLYPHS, TextPage, columns_here
from .wording import short

MOST_LANES, MOST_EVENTS = 40, 40
EVENTS = {
    "page alloc": "gets",
    "page disown": "left to the cache",
    "page free": "free again",
    "retraction": "is retracted",
    "finish": "has ended",
}
CURVES = {"admitted": "requests'", "wasted": "zombies'", "protected": "cached, in use",
          "evictable": "evictable"}  # fmt: skip
Lanes = list[tuple[str, list[Stay]]]


def text(trace: Trace) -> str:
    """Pages and rows over time, and what happened to them, event by event.

    Raises:
        NothingToShow: no step ran, or no page was ever given to anybody.
    """
    part, shown = shown_part(trace)
    pages, rows = panels(part)
    about = about_run(part, shown, *about_memory(trace))
    page = TextPage("page_allocator: whose memory is", about, margin=20)
    page.heading("How many pages are in use")
    for kind, name in CURVES.items():
        page.curve(name, count(pages.stays, kind), part.end)
    lanes = lanes_of(pages, "page")
    if len(lanes) <= MOST_LANES and not is_large(pages):
        page.heading("Pages", "each in whose hands; neighbours that go the same way share a line")
        page.lanes(lanes, part.end)
    else:
        _write_bands(page, pages, part.end)
    page.heading("Rows of the request table")
    page.lanes(lanes_of(rows, "row")[:MOST_LANES], part.end)
    page.legend(NAMES)
    _write_events(page, part)
    page.heading(use_words(pages))
    return page.finish()


def puml(trace: Trace) -> str:
    """The rows as lanes, and the pages where they are few enough.

    Raises:
        NothingToShow: no step ran, or no page was ever given to anybody.
    """
    part, _ = shown_part(trace)
    pages, rows = panels(part)
    lanes = lanes_of(pages, "page")
    shown = [*lanes_of(rows, "row")[:MOST_LANES], *(lanes if len(lanes) <= MOST_LANES else [])]
    flags = [(mark.time, f"{word(mark, 'rid')} is retracted") for mark in _of(part, "retraction")]
    title = f"Whose memory is: {pool_words(trace)}"
    return stays_to_puml(title, shown, part.end, NAMES, flags)


def lanes_of(panel: Panel, unit: str) -> Lanes:
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
    return [
        (f"{unit} {first}" if first == last else f"{unit} {first}-{last}", stays)
        for first, last, stays in groups
    ]


def _way(stays: list[Stay]) -> list[tuple[str, str, int, int]]:
    return [(stay.kind, stay.label, stay.start, stay.end) for stay in stays]


def _write_bands(page: TextPage, pages: Panel, end: int) -> None:
    """Bands of pages; each cell says how full its band was on the average."""
    places = highest(pages)
    size, columns = pages_a_band(places), columns_here() - page.margin - 2
    page.heading("Pages", f"{places} pages in bands of {size}; a cell shows in whose hands most "
                 f"of them were, on the average over {ms(end // columns)} ms")  # fmt: skip
    for at, kinds in enumerate(shares_of(pages.stays, places, size, columns, end)):
        title = f"{at * size + 1}-{min((at + 1) * size, places)}"
        glyphs = "".join(_most(kinds, column) for column in range(columns))
        page.lines.append(f"{title:>{page.margin}} │{glyphs}".rstrip())


def _most(kinds: Shares, column: int) -> str:
    """The glyph of the kind with the greatest share, which may be free."""
    shares = {GLYPHS[kind]: kinds[kind][column] for kind in KINDS}
    shares[" "] = 1 - sum(shares.values())
    return max(shares, key=lambda glyph: shares[glyph])


def _write_events(page: TextPage, trace: Trace) -> None:
    """Who got which pages, who left them to the cache, and when they were free again."""
    marks = _of(trace, *EVENTS)
    note = f"the first {MOST_EVENTS} of {len(marks)}" * (len(marks) > MOST_EVENTS)
    page.heading("What happened", note)
    owner: dict[str, str] = {}
    rows: list[tuple[str, str, str, str]] = []
    for mark in marks[:MOST_EVENTS]:
        ids = word(mark, "pages").split() if mark.name.startswith("page ") else []
        if mark.name == "page alloc":
            owner |= dict.fromkeys(ids, word(mark, "rid"))
        whose = [owner.get(page_id, "") for page_id in ids] or [word(mark, "rid")]
        if mark.name == "page disown":
            owner |= dict.fromkeys(ids, "the cache")
        words = f" ({word(mark, 'reason')})" if mark.name in ("finish", "retraction") else ""
        who = short(", ".join(dict.fromkeys(whose)), 24)
        rows.append((ms(mark.time), who, EVENTS[mark.name] + words, runs(map(int, ids))))
    page.table(["ms", "whose", "", "pages"], rows)


def _of(trace: Trace, *names: str) -> list[Mark]:
    """Marks; of a pair of schedulers those of the side that decodes."""
    return [mark for mark in named(trace, *names) if mark.attrs.get("side") != "prefill"]
