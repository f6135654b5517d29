"""An SVG's page: its shapes, its time axis, and the titles, legend and notes around a drawing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from unicodedata import east_asian_width
from xml.sax.saxutils import escape as escape_xml
from xml.sax.saxutils import quoteattr

from ..core.text import printable
from .looks import LIGHT, LOOKS, OVER, SIGNS, css
from .scene import Data, LaneItem, Scene
from .svg_style import DESK, FONT, MARGIN, Sheet, painted, style_of
from .units import exact, ms, tick_step

WIDTHS = json.loads(files(__package__).joinpath("font-widths.json").read_text(encoding="utf-8"))


def width_of(words: str, size: float = 11, bold: bool = False) -> float:
    """Return the width of a text in Arial; a Chinese character is a square."""
    widths, other = WIDTHS["bold" if bold else "regular"], WIDTHS["other"]
    units = (1000 if east_asian_width(sign) in "WF" else widths.get(sign, other) for sign in words)
    return sum(units) * size / 1000


def escape(words: str) -> str:
    """Return text for an element: control characters written out, because XML has none of them."""
    return escape_xml(printable(words))


def cut(words: str, room: float, size: float = 11) -> str:
    """Return the part of a text that fits, up to a whole number; empty if that is too short."""
    if width_of(words, size) <= room:
        return words
    most = len(words)
    while most and width_of(words[:most] + "…", size) > room:
        most -= 1
    kept = words[:most].rstrip("0123456789" if words[most].isdigit() else "")
    return kept + "…" if kept else ""


TICK = 24  # pixels: the least room of a number on an axis
BELOW = 20  # pixels of paper below the lowest words
SHORT = 0.4  # of the first line: the least length of a last line


def folded(words: str, room: float, size: float, bold: bool = False) -> list[str]:
    """Return a text in lines that fit, with more than a word or two in the last one.

    A Chinese text may break after every character.
    """
    parts = re.findall(r"[^\u2e80-\uffff\s]+\s*|[\u2e80-\uffff]\s*", words)
    widths = [width_of(part, size, bold) for part in parts]
    lines = filled(parts, widths, room)
    while len(lines) > 1 and len(lines[-1]) < SHORT * len(lines[0]):
        room -= size
        if len(closer := filled(parts, widths, room)) > len(lines):
            break
        lines = closer
    return lines


def filled(parts: Sequence[str], widths: Sequence[float], room: float) -> list[str]:
    """Return words with their widths in lines, each as full as possible."""
    lines, line, used = list[str](), "", 0.0
    for part, width in zip(parts, widths, strict=True):
        if line and used + width > room:
            lines.append(line.rstrip())
            line, used = "", 0.0
        line, used = line + part, used + width
    return [*lines, line.rstrip()]


TOLD = {"start": "from", "end": "to", "ns": "takes", "ready": "lies ready for"}  # nanoseconds
UNTOLD = {  # data that its place or its look already shows
    "row", "column", "round", "place", "source", "tree", "parent", "unit", "first", "last", "mark",
    "stay",
}  # fmt: skip


def said_of(about: str, data: Data) -> str:
    """Return the text for a pointer on a shape; by default its data."""
    told = (
        f"{TOLD[name]} {ms(int(value))} ms" if name in TOLD else f"{name} {value}"
        for name, value in data.items()
        if name not in UNTOLD and value != ""
    )
    return about or ", ".join(told)


def hover_of(about: str, data: Data | None) -> str:
    """Return the same as a shape's element; empty if there is no text."""
    said = said_of(about, data or {})
    return f"<title>{escape(said)}</title>" if said else ""


class SvgPage:
    """Collect shapes from top to bottom; ``top`` is the upper edge of the next part."""

    def __init__(self, scene: Scene, left: float, sheet: Sheet = DESK) -> None:
        self.scene = scene
        self.sheet = sheet
        self.left = left  # the start of time, in all lanes and curves
        self.drawn: list[str] = []
        self.said: set[str] = set()  # the labels that the picture contains
        self.top = 11.0
        self.lowest = 0.0  # the line of the lowest words
        self.lines(scene.title, "title")
        self.top += 2
        self.lines(scene.about, "faint")
        self.top += 30

    # -- shapes ------------------------------------------------------------------------------------

    def rect(
        self, kind: str, x: float, y: float, width: float, height: float, about: str = "",
        data: Data | None = None,
    ) -> None:  # fmt: skip
        """Draw a box of a kind."""
        where = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2"'
        self._draw("rect", kind, where, data, hover_of(about, data))

    def path(self, kind: str, d: str, about: str = "", data: Data | None = None) -> None:
        """Draw any other outline."""
        self._draw("path", kind, f'd="{d}"', data, hover_of(about, data))

    def line(
        self, kind: str, x1: float, y1: float, x2: float, y2: float, data: Data | None = None
    ) -> None:
        """Draw a straight line."""
        ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self._draw("line", kind, ends, data)

    def words(
        self, x: float, y: float, words: str, kind: str = "", anchor: str = "start",
        data: Data | None = None,
    ) -> None:  # fmt: skip
        """Draw one line of text."""
        if words:
            self.lowest = max(self.lowest, y)
            where = f' text-anchor="{anchor}"' if anchor != "start" else ""
            self._draw("text", kind, f'x="{x:.1f}" y="{y:.1f}"{where}', data, escape(words))

    def label(self, x: float, y: float, words: str, look: str, kind: str, is_bold: bool) -> None:
        """Draw the words of a box around x; on a texture they have its ground behind them."""
        if words and look in LOOKS and LOOKS[look].texture:  # for programs without rims
            room, size = width_of(words, self.sheet.small, is_bold) + 2, self.sheet.small
            ground = "halo" if not LOOKS[look].fill else f"ground-{css(look)}"
            self.rect(ground, x - room / 2, y - 0.95 * size, room, 1.25 * size)
        self.words(x, y, words, kind, "middle")

    def sign(
        self, kind: str, x: float, y: float, about: str = "", data: Data | None = None
    ) -> None:
        """Draw a sign, which takes no time, around its middle."""
        self.path(css(kind), f"M{x:.1f} {y:.1f}{SIGNS[kind][0]}", about, data)

    def _draw(self, tag: str, kind: str, where: str, data: Data | None, inside: str = "") -> None:
        looks = f'class="{kind}" ' if kind else ""
        of = (data or {}).items()
        more = "".join(f" data-{name}={quoteattr(printable(str(value)))}" for name, value in of)
        end = f">{inside}</{tag}>" if inside else "/>"
        self.drawn.append(f"<{tag} {looks}{where}{more}{end}")

    def beside(self, left: float, right: float, y: float, words: str, kind: str) -> None:
        """Draw words right of a shape, or left of it where the page ends."""
        size = self.sheet.small
        if right + 6 + width_of(words, size) <= self.sheet.edge:
            self.words(right + 6, y, words, kind)
        else:
            self.words(left - 6, y, cut(words, left - 6 - self.left, size), kind, "end")

    def flags(self, flags: Sequence[LaneItem], x: TimeScale, top: float, bottom: float) -> None:
        """Draw a line at each time, with its words where they have room."""
        free = self.left  # the end of earlier words
        for number, flag in enumerate(flags, 1):
            at = x.at(flag.start)
            is_sign = flag.kind in SIGNS and flag.kind != "end"
            kind = "flag" if is_sign else css(flag.kind)
            self.line(kind, at, top - 8, at, bottom, {} if is_sign else flag.data)
            if is_sign:
                self.sign(flag.kind, at, top - 8, flag.about, flag.data)
            room = width_of(flag.label, self.sheet.small, bold=True)
            after = x.at(flags[number].start) - 6 if number < len(flags) else self.sheet.edge
            if at + 7 + room <= after:
                self.words(at + 7, top - 3, flag.label, "small warn")
                free = at + 7 + room
            elif at - 7 - room >= free:
                self.words(at - 7, top - 3, flag.label, "small warn", "end")
                free = at + 7

    # -- around the shapes -------------------------------------------------------------------------

    def lines(self, words: str, kind: str) -> None:
        """Draw text as wide as the page, in as many lines as it needs."""
        size, is_bold = self.sheet.size(kind), kind in ("title", "run")
        for line in folded(words, self.sheet.edge - MARGIN, size, is_bold):
            self.top += round(size) + (4 if is_bold else 5)
            self.words(MARGIN, self.top, line, kind)

    def heading(self, words: str, note: str) -> None:
        """Draw the title of a part, followed by a quiet note, or with it below if it is long."""
        sheet = self.sheet
        first, *more = folded(words, sheet.edge - MARGIN, sheet.run, bold=True)
        self.words(MARGIN, self.top, first, "run")
        for line in more:
            self.top += round(sheet.run) + 4
            self.words(MARGIN, self.top, line, "run")
        at = MARGIN + width_of(words, sheet.run, bold=True) + 18
        if note and (more or at + width_of(note, sheet.small) > sheet.edge):
            self.lines(note, "small faint")
        else:
            self.words(at, self.top, note, "small faint")
        self.top += 14

    def legend(self) -> None:
        """Draw the meaning of the kinds that occur, except those with their meaning on them."""
        x = float(MARGIN)
        quiet, scene = self.scene.quiet, self.scene
        entries = [
            (kind, words)
            for kind, words in scene.meanings.items()
            if kind not in quiet and not any(label.startswith(words) for label in self.said)
        ]
        entries += [("other", scene.legend["other"])] if quiet and "other" in scene.legend else []
        for number, (kind, words) in enumerate(entries):
            room = 24 + width_of(words, self.sheet.text) + 20
            if not number or x + room > self.sheet.edge:
                x, self.top = float(MARGIN), self.top + (22 if number else 16)
            self._sample(kind, x, self.top)
            first, *more = folded(words, self.sheet.edge - x - 24, self.sheet.text)
            self.words(x + 24, self.top, first)
            for line in more:
                self.top += 16
                self.words(x + 24, self.top, line)
            x += self.sheet.width if more else room
        self.top += 8

    def _sample(self, kind: str, x: float, y: float) -> None:
        """Draw a sample of a kind."""
        if kind in SIGNS:
            self.sign(kind, x + 9, y - 4)
        elif kind.startswith(("arrow ", "line", "wall")):
            self.path(kind, f"M{x:.1f} {y - 4}h19")
        else:
            shown = kind if kind in OVER else f"box {css(kind)}"
            self.rect("box queued changed" if kind == "changed" else shown, x, y - 10, 18, 12)

    def finish(self) -> str:
        """Return the whole file."""
        height, sheet = round(self.lowest + BELOW), self.sheet
        paper = (
            f'<rect class="paper" x="0.5" y="0.5" width="{sheet.width - 1}" height="{height - 1}" '
            'rx="8"/>'
        )
        drawn = "\n".join([paper, *self.drawn])
        lang = f' lang="{self.scene.lang}"' if self.scene.lang != "en" else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {sheet.width} {height}" '
            f'width="{sheet.width}" height="{height}" font-family="{FONT}" '
            f'font-size="{sheet.text:g}" fill="{LIGHT["ink"]}" role="img"{lang}>\n'
            f"<title>{escape(self.scene.title)}</title>\n{style_of(drawn)}\n"
            f"{painted(drawn, sheet)}\n</svg>\n"
        )


@dataclass(frozen=True)
class TimeScale:
    """Nanoseconds to pixels."""

    start: int
    end: int
    left: float
    right: float

    def at(self, time: int) -> float:
        """Return the pixel of a time, kept inside."""
        inside = min(max(time, self.start), self.end) - self.start
        return self.left + inside * (self.right - self.left) / max(1, self.end - self.start)

    @property
    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yield the pixel and the number of each tick."""
        span = max(1, self.end - self.start)
        step, room = tick_step(span), self.right - self.left
        while step < span and room * step < TICK * span:  # a narrow page
            step *= 2
        for time in range(-(-self.start // step) * step, self.end + 1, step):
            yield self.at(time), exact(time)

    def grid(self, page: SvgPage, top: float, bottom: float) -> None:
        """Draw a faint line at every tick."""
        for x, _ in self.ticks:
            page.line("grid", x, top, x, bottom)

    def draw(self, page: SvgPage, words: str) -> None:
        """Draw the axis below the last shape; ``words`` name its unit."""
        y = page.top
        page.line("axis", self.left, y, self.right, y)
        if width_of(words, page.sheet.small) > self.left - MARGIN - 12:
            words = words.split()[-1]
        page.words(MARGIN, y + 18, words, "small faint")
        for x, number in self.ticks:
            page.line("axis", x, y, x, y + 5)
            page.words(x, y + 18, number, "small", "middle")
        page.top += 40
