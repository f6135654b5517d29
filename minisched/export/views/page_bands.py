"""A map of memory over time for more pages than there are pixels: bands of pages, by their share.

Nothing is picked out: a colour's height is the mean, over the band's pages and over a stretch of
time, of how many were of that kind. What is lost is which page of the band it was.
"""

from __future__ import annotations

from collections import defaultdict

from ..state import Panel, Stay
from ..units import ms
from .axes import TimeAxis
from .page import Page
from .page_blocks import number
from .shapes import band, path, text

BANDS, HEIGHT, GAP, COLUMN = 32, 12, 2, 4  # bands at most; pixels
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
        y = top + at * (HEIGHT + GAP)
        page.add(band(x.left, y, x.right - x.left, HEIGHT))
        if at % 2 == 0:
            page.add(text(x.left - 8, y + 10, f"{first} to {last}", "small", "end"))
        _draw(page, kinds, y, x, (first, last))
    page.top = top + len(shares) * (HEIGHT + GAP)
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
        spans[(number(stay) - 1) // size, stay.kind, stay.start, stay.end] += 1
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
        height = y + HEIGHT * (1 - at[column])
        start = x.left + (column + backwards) * width
        if round(height, 1) != last:
            drawn.append(f"L{start:.1f} {height:.1f}" if last < 0 else f"H{start:.1f}V{height:.1f}")
            last = round(height, 1)
    return "".join(drawn) + f"H{x.left if backwards else x.right:.1f}"
