"""KV memory as a map over time: which page and which row of the request table is whose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...trace import Mark, Trace
from ...trace.sides import side_words
from ..state import Panel, Stay, memory, up_to
from ..state.memory import ZOMBIE
from ..svg import char_width
from ..units import ms, tick_step
from .axes import TimeAxis, ValueAxis, most, stacked, step_area
from .decode import count
from .marks import NothingToShow, many, named, number, short, word
from .page import SIGNS, Page, about_run, band, labels, path, rect, svg_text
from .puml_stays import stays_to_puml
from .steps import forwards_of, opening
from .text_page import GLYPHS, TextPage, columns_here

# -- A map of memory over time in which every page (or row) can be told apart ----------------------

HIGH, TALLEST = 18, 480  # pixels: of one page at most, and of the whole map


def draw_map(page: Page, panel: Panel, places: int, unit: str, x: TimeAxis) -> None:
    """One lane a page: a box while it is somebody's, with whose it is; free where there is none.

    Neighbours that go the same way share a box. ``places`` is how many lanes there are.
    """
    high = min(HIGH, TALLEST / max(1, places))
    top, bottom = page.top, page.top + high * places
    page.add(band(x.left, top, x.right - x.left, high * places), *x.grid(top, bottom))
    every = tick_step(places, 16) if high < 12 else 1
    for at in range(1, places + 1):
        if at == 1 or at % every == 0:
            y = top + (at - 0.5) * high + 4
            page.add(svg_text(x.left - 8, y, f"{unit} {at}", "small", "end"))
    for block in blocks_of(panel.stays):
        _draw_map(page, block, top + (block.first - 1) * high, block.size * high, x, unit)
    page.top = bottom


def _draw_map(
    page: Page, block: PlaceBlock, y: float, height: float, x: TimeAxis, unit: str
) -> None:
    stay = block.stay
    left, width = x.span(stay.start, stay.end)
    page.add(
        rect(stay.kind, left, y, width, height, about(block, unit), unit=unit, first=block.first,
             last=block.last, rid=stay.rid, start=stay.start, end=stay.end)
    )  # fmt: skip
    most = int((width - 4) / char_width(11))
    words = stay.label if len(stay.label) <= most else short(stay.label, most) if most > 3 else ""
    if height >= 11 and words:
        middle = left + width / 2, y + height / 2 + 4
        page.add(svg_text(*middle, words, f"small in-{stay.kind}", "middle"))


def about(block: PlaceBlock, unit: str) -> str:
    """A block in words."""
    ids = f"{unit} {block.first}" + f" to {block.last}" * (block.size > 1)
    return f"{ids}, {ms(block.stay.start)} to {ms(block.stay.end)} ms: {whose(block.stay)}"


def whose(stay: Stay) -> str:
    """In whose hands something is, in words."""
    if stay.rid:
        return f"{stay.label}, which {ZOMBIE}" if stay.kind == "wasted" else stay.rid
    return stay.about + f"; {stay.label} computed it" * bool(stay.label)


# -- Pages that go the same way together: neighbours with one owner, from one moment to another ----


@dataclass(frozen=True)
class PlaceBlock:
    """Places ``first`` to ``last`` (page or row ids) in the same hands for the same time."""

    first: int
    last: int
    stay: Stay  # of the first of them

    @property
    def size(self) -> int:
        """How many places."""
        return self.last - self.first + 1


def id_of(stay: Stay) -> int:
    """The id in ``page 7`` or ``row 7``."""
    return int(stay.place.split()[1])


def blocks_of(stays: Iterable[Stay]) -> list[PlaceBlock]:
    """All stays, each in exactly one block; in order of places, then of time."""
    found: list[PlaceBlock] = []
    ends: dict[tuple[object, ...], int] = {}  # what goes on below -> its place in ``found``
    for stay in sorted(stays, key=lambda stay: (id_of(stay), stay.start)):
        at, alike = id_of(stay), (stay.kind, stay.label, stay.start, stay.end)
        if (above := ends.pop((at - 1, *alike), None)) is None:
            found.append(PlaceBlock(at, at, stay))
            above = len(found) - 1
        else:
            found[above] = replace(found[above], last=at)
        ends[(at, *alike)] = above
    return found


def runs(numbers: Iterable[int]) -> str:
    """Ids as a reader likes them: ``3-5 8``."""
    parts: list[list[int]] = []
    for at in sorted(numbers):
        if parts and parts[-1][1] == at - 1:
            parts[-1][1] = at
        else:
            parts.append([at, at])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


# -- What a run did with its memory, read for every form in which it is shown ----------------------

MOST_STEPS, MOST_PAGES = 60, 120
NAMES = {
    "admitted": "a request's",
    "wasted": f"a zombie's: its request {ZOMBIE}",
    "protected": "cached, and a request uses it (the name: who computed it)",
    "evictable": "cached, and nobody uses it: evictable",
}


def shown_part(trace: Trace) -> tuple[Trace, str]:
    """What is shown of a run, and which part of it that is.

    So many steps that every page can be told apart; of very many pages all, as bands of them are
    averaged over time anyhow.

    Raises:
        NothingToShow: no step ran, or no page was ever given to anybody.
    """
    if is_large(panels(trace)[0]):
        return trace, many(len(forwards_of(trace)), "step")
    return opening(trace, MOST_STEPS)


def is_large(pages: Panel) -> bool:
    """Whether there are more pages than can be told apart."""
    return highest(pages) > MOST_PAGES


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


def highest(panel: Panel) -> int:
    """The highest id that was ever in use; the allocator hands out the lowest first."""
    return max((id_of(stay) for stay in panel.stays), default=0)


def pool_words(trace: Trace) -> str:
    """How much memory there is, as far as the trace says."""
    if (pool := memory.pool(trace)) is None:
        return "the size of the pool was not recorded"
    return (
        f"{many(pool.pages, 'page')} of {many(pool.page_size, 'token')}, "
        f"{many(pool.rows, 'row')} in the request table"
    )


def about_memory(trace: Trace) -> list[str]:
    """For the line under the title: whose memory it is of two, and how much there is."""
    return [*filter(None, [side_words(trace)]), pool_words(trace)]


def use_words(pages: Panel) -> str:
    """How full it was, and how much was used again."""
    owners: dict[str, list[Stay]] = defaultdict(list)
    for stay in pages.stays:
        if stay.kind == "admitted":
            owners[stay.place].append(stay)
    again = sum(len({stay.rid for stay in stays}) > 1 for stays in owners.values())
    full = max(value for _, value in count(pages.stays, *NAMES))
    return (
        f"At most {many(full, 'page')} in use at once; {again} of {len(pages.places)} went "
        f"from one request to another."
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


# -- A map of memory over time for more pages than there are pixels: bands of pages, by their share
#
# Nothing is picked out: a colour's height is the mean, over the band's pages and over a stretch of
# time, of how many were of that kind. What is lost is which page of the band it was.

BANDS, BAND_HEIGHT, GAP, COLUMN = 32, 12, 2, 4  # bands at most; pixels
KINDS = ("admitted", "wasted", "protected", "evictable")  # from the bottom of a band up
Shares = dict[str, list[float]]  # by kind: the share of each column, 0 to 1


def pages_a_band(places: int) -> int:
    """How many pages a band has."""
    return -(-places // BANDS)


def draw_bands(page: Page, panel: Panel, places: int, x: TimeAxis) -> str:
    """A band a stretch of pages; gives the sentence that says what was left out."""
    size, columns = pages_a_band(places), int((x.right - x.left) / COLUMN)
    shares = shares_of(panel.stays, places, size, columns, x.end)
    top = page.top
    for at, kinds in enumerate(shares):
        first, last = at * size + 1, min((at + 1) * size, places)
        y = top + at * (BAND_HEIGHT + GAP)
        page.add(band(x.left, y, x.right - x.left, BAND_HEIGHT))
        if at % 2 == 0:
            page.add(svg_text(x.left - 8, y + 10, f"{first} to {last}", "small", "end"))
        _draw(page, kinds, y, x, (first, last))
    page.top = top + len(shares) * (BAND_HEIGHT + GAP)
    page.add(*x.grid(top, page.top))
    return (
        f"{places} pages in bands of {size}: a colour's height is its share of the band, averaged "
        f"over {ms(x.end // max(1, columns))} ms."
    )


def shares_of(
    stays: tuple[Stay, ...], places: int, size: int, columns: int, end: int
) -> list[Shares]:
    """For each band and kind the mean share of its pages, column by column of the time to ``end``.

    Computed from all stays: a page that is a request's for half a column counts a half.
    """
    bands = -(-places // size)
    sums = [{kind: [0.0] * columns for kind in KINDS} for _ in range(bands)]
    spans: dict[tuple[int, str, int, int], int] = defaultdict(int)  # pages that go the same way
    for stay in stays:
        spans[(id_of(stay) - 1) // size, stay.kind, stay.start, stay.end] += 1
    width = max(1, end) / columns
    for (at, kind, start, until), pages in spans.items():
        part = pages / min(size, places - at * size)
        for column in range(int(start / width), min(columns, int(until / width) + 1)):
            inside = min(until, (column + 1) * width) - max(start, column * width)
            sums[at][kind][column] += part * max(0.0, inside) / width
    return sums


def _draw(page: Page, kinds: Shares, y: float, x: TimeAxis, pages: tuple[int, int]) -> None:
    """The kinds stacked, each an area between what is below it and itself."""
    columns = len(kinds[KINDS[0]])
    below = [0.0] * columns
    for kind in KINDS:
        if not any(kinds[kind]):
            continue
        above = [low + share for low, share in zip(below, kinds[kind], strict=True)]
        outline = _steps(above, y, x) + _steps(below, y, x, backwards=True) + "Z"
        about = f"pages {pages[0]} to {pages[1]}"
        mean = f"{sum(kinds[kind]) / columns:.4f}"
        page.add(path(f"box thin {kind}", "M" + outline[1:], about, band=pages[0], whose=kind,
                      share=mean))  # fmt: skip
        below = above


def _steps(shares: list[float], y: float, x: TimeAxis, backwards: bool = False) -> str:
    """The edge along the upper ends of columns, from one side to the other; runs are joined."""
    width = (x.right - x.left) / len(shares)
    at = [min(1.0, max(0.0, share)) for share in shares]
    order = range(len(at) - 1, -1, -1) if backwards else range(len(at))
    drawn, last = [], -1.0
    for column in order:
        height = y + BAND_HEIGHT * (1 - at[column])
        start = x.left + (column + backwards) * width
        if round(height, 1) != last:
            drawn.append(f"L{start:.1f} {height:.1f}" if last < 0 else f"H{start:.1f}V{height:.1f}")
            last = round(height, 1)
    return "".join(drawn) + f"H{x.left if backwards else x.right:.1f}"


# -- The map of KV memory as text for a terminal, and as PlantUML ----------------------------------

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


__all__ = ["puml", "text", "view"]
HEIGHT, APART = 56, 11  # pixels: the chart, between two signs
LEGEND = {
    **NAMES,
    "lane": "free",
    "flag-head": "retraction",
    "evict": "the prefix cache evicts so many pages",
}


def view(trace: Trace) -> str:
    """How many pages are whose, then the map of them; of very many pages, bands of them.

    Raises:
        NothingToShow: no step ran, or no page was ever given to anybody.
    """
    part, shown = shown_part(trace)
    pages, rows = panels(part)
    page = Page("page_allocator: whose memory is", about_run(part, shown, *about_memory(trace)))
    x, notes = TimeAxis(part.end), [use_words(pages)]
    _draw_counts(page, pages, x)
    _draw_flags(page, part, x)
    if is_large(pages):
        notes.append(draw_bands(page, pages, highest(pages), x))
    else:
        draw_map(page, pages, highest(pages), "page", x)
    page.top += 28
    page.heading("Rows of the request table", "a request has one for as long as it has memory")
    draw_map(page, rows, highest(rows), "row", x)
    page.add(*x.draw(page.top + 2))
    page.top += 28
    page.legend(LEGEND)
    page.notes(*notes)
    return page.finish()


def _draw_counts(page: Page, pages: Panel, x: TimeAxis) -> None:
    """Pages by whose they are, stacked."""
    page.heading("How many pages are in use", "one colour on top of the other")
    there = {stay.kind for stay in pages.stays}
    kinds = [kind for kind in KINDS if kind in there]
    series: list[tuple[int, int]] = []
    sums = [series := stacked(series, count(pages.stays, kind)) for kind in kinds]
    y = ValueAxis(max(1, most(*sums)), page.top + 16, page.top + 16 + HEIGHT)
    page.add(*y.draw("pages"), *x.grid(y.top, y.bottom))
    for kind, one in reversed([*zip(kinds, sums, strict=True)]):
        page.add(step_area(one, x, y, kind, f"{NAMES[kind]}, and what is below"))
    page.top = y.bottom + 34


def _draw_flags(page: Page, trace: Trace, x: TimeAxis) -> None:
    """The heading of the map; above it who was retracted, and when the cache gave up pages."""
    page.heading("Pages", "each in whose hands, from one moment to another")
    page.top += 16
    marks = [m for m in named(trace, "retraction") if m.attrs.get("side") != "prefill"]
    flags = [(x.x(mark.time), word(mark, "rid"), "flag-head") for mark in marks]
    flags += [(at, str(pages), "evict") for at, pages in _evictions(trace, x)]
    flags.sort()
    texts = labels([(at, f"-{words}" * (kind == "evict") or words) for at, words, kind in flags])
    for (at, words, kind), label in zip(flags, texts, strict=True):
        event = {"evicted" if kind == "evict" else "rid": words}
        about = f"{words} pages are evicted" if kind == "evict" else f"{words} is retracted"
        page.add(path(kind, f"M{at:.1f} {page.top:.1f}{SIGNS[kind]}", about, **event))
        page.add(svg_text(at + 9, page.top + 4, label, "small warn") if label else "")
    page.top += 9


def _evictions(trace: Trace, x: TimeAxis) -> list[tuple[float, int]]:
    """Where pages were evicted, and how many; those too close to be told apart are one."""
    found: list[tuple[float, int]] = []
    for time, pages in sorted(evictions(trace).items()):
        if found and x.x(time) - found[-1][0] < APART:
            found[-1] = (found[-1][0], found[-1][1] + pages)
        else:
            found.append((x.x(time), pages))
    return found
