"""A view's page in a terminal: title, parts, lanes over time, tables, and a legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap

from ..state import Stay
from ..units import MILLISECOND, tick_step

COLUMNS = 100
GLYPHS = {  # looks (``look.py``), each with a sign of its own
    "prompt": "█",
    "decode": "▓",
    "again": "▒",
    "wasted": "╳",
    "protected": "█",
    "evictable": "░",
    "evicted": "╳",
    "promised": "▒",
    "stored": "█",
    "stale": "·",
    "left": "░",
    "spent": "█",
    "queued": "─",
    "admitted": "█",
}


@dataclass
class TextPage:
    """Collects lines from top to bottom; nothing is wider than ``COLUMNS``."""

    title: str
    about: str
    lines: list[str] = field(default_factory=list)

    def heading(self, words: str, note: str = "") -> None:
        """The title of a part, with a note behind it."""
        self.lines += ["", f"{words} ({note})" if note else words]

    def write(self, *lines: str) -> None:
        """Lines as they are, the longer ones broken."""
        for line in lines:
            self.lines += wrap(line, COLUMNS, subsequent_indent="    ") or [""]

    def lanes(self, rows: Sequence[tuple[str, Sequence[Stay]]], end: int) -> None:
        """One line a row, over time from 0 to ``end``.

        A stay is its glyph, with its label where that fits. A cell shows what began last in its
        stretch of time, so nothing short is lost.
        """
        margin = max((len(title) for title, _ in rows), default=0) + 3
        cells = COLUMNS - margin
        for title, stays in rows:
            drawn = [" "] * cells
            for stay in sorted(stays, key=lambda stay: stay.start):
                _draw(drawn, stay, max(1, end))
            self.lines.append(f"{title:>{margin - 2}} │{''.join(drawn)}".rstrip())
        self.lines += _axis(max(1, end), cells, margin)

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Columns as wide as what is in them, numbers to the right."""
        cells = [[str(cell) for cell in row] for row in (heads, *rows)]
        widths = [max(len(row[at]) for row in cells) for at in range(len(heads))]
        for row, values in zip(cells, (heads, *rows), strict=True):
            texts = (
                f"{cell:>{width}}" if isinstance(value, int | float) else f"{cell:<{width}}"
                for cell, width, value in zip(row, widths, values, strict=True)
            )
            self.lines.append("  ".join(texts).rstrip()[:COLUMNS])

    def legend(self, names: Mapping[str, str]) -> None:
        """What the glyphs of some looks mean."""
        signs = [f"{GLYPHS[name]}\N{NO-BREAK SPACE}{words}" for name, words in names.items()]
        self.lines += ["", *wrap("   ".join(signs), COLUMNS)]

    def finish(self) -> str:
        """The whole text."""
        text = "\n".join([self.title, *wrap(self.about, COLUMNS), *self.lines, ""])
        return text.replace("\N{NO-BREAK SPACE}", " ")


def _draw(drawn: list[str], stay: Stay, longest: int) -> None:
    cells = len(drawn)
    first = min(stay.start * cells // longest, cells - 1)
    last = max(first + 1, min(-(-stay.end * cells // longest), cells))
    drawn[first:last] = GLYPHS[stay.kind] * (last - first)
    if stay.label and len(stay.label) + 2 <= last - first:
        at = (first + last - len(stay.label)) // 2
        drawn[at : at + len(stay.label)] = stay.label


def _axis(longest: int, cells: int, margin: int) -> list[str]:
    marks, numbers = ["─"] * cells, [" "] * cells
    for at in range(0, longest + 1, tick_step(longest)):
        cell, text = min(at * cells // longest, cells - 1), f"{at / MILLISECOND:g}"
        marks[cell] = "┴"
        if cell + len(text) <= cells:
            numbers[cell : cell + len(text)] = text
    return [
        " " * (margin - 1) + "└" + "".join(marks),
        f"{'ms':>{margin - 2}}  " + "".join(numbers).rstrip(),
    ]
