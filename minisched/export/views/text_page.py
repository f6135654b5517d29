"""A view's page in a terminal: title, parts, lanes over time, curves, tables, and a legend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from textwrap import wrap

from ..state import Stay
from ..text import draw_axis

COLUMNS, LEAST = 100, 40  # usual; below that a drawing says nothing
_columns = ContextVar("columns", default=COLUMNS)
GLYPHS = {  # looks (``look.py``), each with a sign of its own
    "prompt": "█",
    "decode": "▓",
    "again": "▒",
    "wasted": "╳",
    "protected": "▓",
    "evictable": "░",
    "evicted": "╳",
    "promised": "▒",
    "stored": "█",
    "stale": "·",
    "left": "░",
    "spent": "█",
    "queued": "─",
    "admitted": "█",
    "sending": "▒",
    "popped": "░",
    "read": "◆",
    "limit": "┃",
    "flag-head": "▼",
    # phases and ops
    "prepare": "▒",
    "upload": "↑",
    "forward": "▓",
    "sample": "█",
    "copy": "↓",
    "ready": "─",
    "wait": "·",
    "process": "░",
    "mask": "▒",
}
HEIGHTS = " ▁▂▃▄▅▆▇█"


def columns_here() -> int:
    """How wide a page is drawn."""
    return _columns.get()


@contextmanager
def drawn_so_wide(columns: int) -> Iterator[None]:
    """Pages that are drawn meanwhile have so many columns, but at least ``LEAST``."""
    token = _columns.set(max(LEAST, columns))
    try:
        yield
    finally:
        _columns.reset(token)


@dataclass
class TextPage:
    """Collects lines from top to bottom; nothing is wider than ``columns_here``.

    ``margin`` is how wide the titles of lanes and curves are at least, so that parts line up.
    """

    title: str
    about: str
    lines: list[str] = field(default_factory=list)
    margin: int = 0

    def heading(self, words: str, note: str = "") -> None:
        """The title of a part, with a note behind it."""
        self.lines.append("")
        self.write(f"{words} ({note})" if note else words)

    def write(self, *lines: str, indent: str = "") -> None:
        """Lines as they are, the longer ones broken."""
        for line in lines:
            hang = f"{indent}    "
            room = columns_here()
            broken = wrap(line, room, initial_indent=indent, subsequent_indent=hang)
            self.lines += broken or [""]

    def lanes(self, rows: Sequence[tuple[str, Sequence[Stay]]], end: int) -> None:
        """One line a row, over time from 0 to ``end``.

        A stay begins with its label, where that fits, and goes on in its glyph. A cell shows what
        began last in its stretch of time, so nothing short is lost.
        """
        cells = self._cells(title for title, _ in rows)
        for title, stays in rows:
            drawn = [" "] * cells
            for stay in sorted(stays, key=lambda stay: stay.start):
                _draw(drawn, stay, max(1, end))
            self._lane(title, drawn)
        self.lines += draw_axis(end, cells, columns_here() - cells)

    def curve(self, title: str, series: Sequence[tuple[int, int]], end: int) -> None:
        """A number over time as a line of bars: ``title`` and its greatest value, then the bars.

        A cell is as high as the number was at most in its stretch of time.
        """
        most = max((value for _, value in series), default=0)
        title = f"{title} ≤ {most}"
        cells = self._cells([title])
        highs, now, after = [0] * cells, 0, 0
        for time, value in [*series, (end, 0)]:
            at = min(time * cells // max(1, end), cells - 1)
            highs[after : at + 1] = [max(now, high) for high in highs[after : at + 1]]
            highs[at] = max(highs[at], value)
            now, after = value, at
        self._lane(title, [HEIGHTS[-(-high * 8 // max(1, most))] for high in highs])

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Columns as wide as what is in them, numbers to the right."""
        cells = [[str(cell) for cell in row] for row in (heads, *rows)]
        widths = [max(len(row[at]) for row in cells) for at in range(len(heads))]
        is_number = [
            bool(rows) and all(isinstance(row[at], int | float) for row in rows)
            for at in range(len(heads))
        ]
        lines = [
            "  ".join(
                f"{cell:>{width}}" if right else f"{cell:<{width}}"
                for cell, width, right in zip(row, widths, is_number, strict=True)
            ).rstrip()
            for row in cells
        ]
        room = columns_here()
        if room < COLUMNS and max(map(len, lines)) > room:
            self._records(heads, cells[1:])
            return
        self.lines += [line if len(line) <= room else line[: room - 1] + "…" for line in lines]

    def _records(self, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """The rows one below the other, where they are too wide to stand side by side."""
        for first, *rest in rows:
            self.write(f"{heads[0]} {first}".strip())
            for head, cell in zip(heads[1:], rest, strict=True):
                if cell:
                    self.write(f"{head}: {cell}" if head else cell, indent="  ")

    def legend(self, names: Mapping[str, str]) -> None:
        """What the glyphs of some looks mean."""
        signs = [f"{GLYPHS[name]}\N{NO-BREAK SPACE}{words}" for name, words in names.items()]
        self.lines += ["", *wrap("   ".join(signs), columns_here())]

    def finish(self) -> str:
        """The whole text."""
        text = "\n".join(
            [*wrap(self.title, columns_here()), *wrap(self.about, columns_here()), *self.lines, ""]
        )
        return text.replace("\N{NO-BREAK SPACE}", " ")

    def _cells(self, titles: Iterator[str] | Sequence[str]) -> int:
        """How many cells are left beside the titles."""
        self.margin = max(self.margin, *(len(title) for title in titles), 0)
        return columns_here() - self.margin - 2

    def _lane(self, title: str, drawn: Sequence[str]) -> None:
        self.lines.append(f"{title:>{self.margin}} │{''.join(drawn)}".rstrip())


def _draw(drawn: list[str], stay: Stay, longest: int) -> None:
    cells = len(drawn)
    first = min(stay.start * cells // longest, cells - 1)
    last = max(first + 1, min(-(-stay.end * cells // longest), cells))
    drawn[first:last] = GLYPHS[stay.kind] * (last - first)
    if len(stay.label) < last - first:
        drawn[first : first + len(stay.label)] = stay.label
