"""An SVG's page: its shapes, its time axis, and what is around a drawing: titles, legend, notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from xml.sax.saxutils import escape, quoteattr

from .looks import OVER, SIGNS, UNDER, css
from .scene import Data, LaneItem, Scene
from .svg_style import style_of
from .units import exact, tick_step

WIDTH, MARGIN = 860, 20  # pixels: the page, and what stays free left and right
EDGE = WIDTH - 24
PITCH, BOX = 27, 18  # from lane to lane, and how high a box is


def char_width(size: float, bold: bool = False) -> float:
    """About how wide one character is, on the safe side: fonts differ from reader to reader."""
    return size * (0.62 if bold and size < 14 else 0.57)


def width_of(words: str, size: float = 11, bold: bool = False) -> float:
    """About how wide a text is."""
    return len(words) * char_width(size, bold)


def cut(words: str, room: float, bold: bool = False, size: float = 11) -> str:
    """As much of a text as there is room for; nothing where that is less than two characters."""
    most = int(room / char_width(size, bold))
    return words if len(words) <= most else "" if most < 2 else words[: most - 1] + "…"


def broken(words: str, room: float, size: float = 12, bold: bool = False) -> Iterator[str]:
    """Lines that fit."""
    yield from wrap(words, int(room / char_width(size, bold))) or [""]


def hover_of(about: str, data: Data | None) -> str:
    """What is told of a shape to who points at it; if nothing else, what it belongs to."""
    said = about or ", ".join(f"{name} {value}" for name, value in (data or {}).items())
    return f"<title>{escape(said)}</title>" if said else ""


class SvgPage:
    """Collects shapes from top to bottom; ``top`` is where the next part begins."""

    def __init__(self, left: float) -> None:
        self.left = left  # where time begins, in all lanes and curves
        self.drawn: list[str] = []
        self.top = 80.0
        self.said: set[str] = set()  # the labels that are to be read in the picture

    def heading(self, words: str, note: str) -> None:
        """The title of a part, with a quiet note behind it, or below it where it is long."""
        self.top += 4 if self.drawn else 0
        self.words(MARGIN, self.top, words, "run")
        at = MARGIN + width_of(words, 13.5, bold=True) + 18
        if note and at + width_of(note) > EDGE:
            at, self.top = MARGIN, self.top + 17
        self.words(at, self.top, note, "small faint")
        self.top += 14

    # -- shapes ------------------------------------------------------------------------------------

    def rect(
        self, kind: str, x: float, y: float, width: float, height: float, about: str = "",
        data: Data | None = None,
    ) -> None:  # fmt: skip
        """A box of a kind."""
        hover = hover_of(about, data)
        self.drawn.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{height:.1f}" rx="2"{_attributes(data)}>{hover}</rect>'
        )

    def path(self, kind: str, d: str, about: str = "", data: Data | None = None) -> None:
        """Any other outline."""
        hover = hover_of(about, data)
        self.drawn.append(f'<path class="{kind}" d="{d}"{_attributes(data)}>{hover}</path>')

    def line(
        self, kind: str, x1: float, y1: float, x2: float, y2: float, data: Data | None = None
    ) -> None:
        """A straight line."""
        ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self.drawn.append(f'<line class="{kind}" {ends}{_attributes(data)}/>')

    def words(
        self, x: float, y: float, words: str, kind: str = "", anchor: str = "start",
        data: Data | None = None,
    ) -> None:  # fmt: skip
        """One line of text."""
        if words:
            looks = f' class="{kind}"' if kind else ""
            where = f' text-anchor="{anchor}"' if anchor != "start" else ""
            self.drawn.append(
                f'<text{looks} x="{x:.1f}" y="{y:.1f}"{where}{_attributes(data)}>'
                f"{escape(words)}</text>"
            )

    def sign(
        self, kind: str, x: float, y: float, about: str = "", data: Data | None = None
    ) -> None:
        """What takes no time, around its middle."""
        self.path(css(kind), f"M{x:.1f} {y:.1f}{SIGNS[kind][0]}", about, data)

    def flags(self, flags: Sequence[LaneItem], x: TimeScale, top: float, bottom: float) -> None:
        """A line at each moment, and its words where there is room beside it.

        A stretch has an arrow from its end back to its start, with words above and below it.
        """
        free = x.left  # of words before it
        for number, flag in enumerate(flags, 1):
            at, until = x.at(flag.start), x.at(flag.end)
            is_sign = flag.kind in SIGNS and flag.kind != "end"
            high = 8 * (flag.end == flag.start)
            kind = "flag" if is_sign else css(flag.kind)
            self.line(kind, at, top - high, at, bottom, {} if is_sign else flag.data)
            if is_sign:
                self.sign(flag.kind, at, top - high, flag.about, flag.data)
            if flag.end > flag.start:
                middle, y = (at + until) / 2, top + 1.5 * PITCH - 4
                if width_of(max(flag.label, flag.brief, key=len), 12, bold=True) < until - at - 6:
                    self.path("saved", f"M{until:.1f} {y}H{at + 2:.1f}")
                    self.line("saved-end", until, y - 6, until, y + 6)
                    self.words(middle, y - 7, flag.label, "bold", "middle")
                    self.words(middle, y + 16, flag.brief, "faint small", "middle")
                continue
            room = width_of(flag.label, 11, bold=True)
            after = x.at(flags[number].start) - 6 if number < len(flags) else float(EDGE)
            if at + 7 + room <= after:
                self.words(at + 7, top - 3, flag.label, "small warn")
                free = at + 7 + room
            elif at - 7 - room >= free:
                self.words(at - 7, top - 3, flag.label, "small warn", "end")
                free = at + 7

    # -- what is around them -----------------------------------------------------------------------

    def legend(self, scene: Scene) -> None:
        """What kinds mean that occur, and whose meaning is not written on them."""
        x, self.top = float(MARGIN), self.top + 16
        entries = [
            (kind, words)
            for kind, words in scene.meanings.items()
            if not any(label.startswith(words) for label in self.said)
        ]
        if not entries:
            self.top -= 16
        for kind, words in entries:
            room = 26 + width_of(words, 12) + 12
            if x + room > EDGE:
                x, self.top = float(MARGIN), self.top + 22
            self._sample(kind, x, self.top)
            self.words(x + 24, self.top, words)
            x += room
        self.top += 8

    def _sample(self, kind: str, x: float, y: float) -> None:
        """What a kind looks like."""
        if kind in SIGNS:
            self.sign(kind, x + 9, y - 4)
        elif kind.startswith(("arrow ", "line", "wall")):
            self.path(kind, f"M{x:.1f} {y - 4}h19")
        elif kind == "saved":
            self.path(kind, f"M{x + 19:.1f} {y - 4}h-17")
        else:
            shown = kind if kind in (*UNDER, *OVER) else f"box {css(kind)}"
            self.rect("box queued changed" if kind == "changed" else shown, x, y - 10, 18, 12)

    def notes(self, notes: Sequence[str]) -> None:
        """Quiet lines under the drawing, the longer ones broken."""
        for note in notes:
            for words in broken(note, EDGE - MARGIN):
                self.top += 17
                self.words(MARGIN, self.top, words, "faint")

    def finish(self, scene: Scene) -> str:
        """The whole file."""
        height, drawn = round(self.top + 14), "\n".join(self.drawn)
        head, y = list[str](), 31
        for words in broken(scene.title, EDGE - MARGIN, 16, bold=True):
            head.append(f'<text class="title" x="{MARGIN}" y="{y}">{escape(words)}</text>')
            y += 20
        for words in broken(scene.about, EDGE - MARGIN):
            head.append(f'<text class="faint" x="{MARGIN}" y="{y - 1}">{escape(words)}</text>')
            y += 17
        more = y - 68
        body = f'<g transform="translate(0 {more})">\n{drawn}\n</g>' if more else drawn
        height += more
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
                f'width="{WIDTH}" height="{height}" role="img">',
                f"<title>{escape(scene.title)}</title>",
                style_of(drawn),
                f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" '
                'rx="8"/>',
                *head,
                body,
                "</svg>",
                "",
            ]
        )


@dataclass(frozen=True)
class TimeScale:
    """Nanoseconds to pixels."""

    start: int
    end: int
    left: float
    right: float = EDGE

    def at(self, time: int) -> float:
        """Where a moment lies, kept inside."""
        inside = min(max(time, self.start), self.end) - self.start
        return self.left + inside * (self.right - self.left) / max(1, self.end - self.start)

    @property
    def ticks(self) -> range:
        """The moments that get a number."""
        step = tick_step(max(1, self.end - self.start))
        return range(-(-self.start // step) * step, self.end + 1, step)

    def grid(self, page: SvgPage, top: float, bottom: float) -> None:
        """A faint line at every tick."""
        for at in self.ticks:
            page.line("grid", self.at(at), top, self.at(at), bottom)

    def draw(self, page: SvgPage, words: str) -> None:
        """The axis below what has been drawn, in what ``words`` say."""
        y = page.top
        page.line("axis", self.left, y, self.right, y)
        page.words(MARGIN, y + 18, words, "small faint")
        for at in self.ticks:
            page.line("axis", self.at(at), y, self.at(at), y + 5)
            page.words(self.at(at), y + 18, exact(at), "small", "middle")
        page.top += 40


def _attributes(data: Data | None) -> str:
    items = data.items() if data else ()
    return "".join(f" data-{name}={quoteattr(str(value))}" for name, value in items)
