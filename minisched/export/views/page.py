"""A view's page: title, what is shown, the drawing, and a legend of what occurs in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

from ..svg import char_width, definitions, style

# -- The few SVG shapes that every view is made of, as text ----------------------------------------

Datum = str | int


def rect(
    kind: str, x: float, y: float, width: float, height: float, about: str = "", **data: Datum
) -> str:
    """A box of a kind (``look.py``); ``about`` shows on hover, ``data`` says what it belongs to."""
    return (
        f'<rect class="box {kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="2"{_attributes(data)}>{_hover(about)}</rect>'
    )


def band(x: float, y: float, width: float, height: float, kind: str = "lane") -> str:
    """A plain background."""
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
    )


def svg_text(
    x: float, y: float, words: str, kind: str = "", anchor: str = "start", **data: Datum
) -> str:
    """One line of text."""
    looks = f' class="{kind}"' if kind else ""
    where = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text{looks} x="{x:.1f}" y="{y:.1f}"{where}{_attributes(data)}>{escape(words)}</text>'


def line(kind: str, x1: float, y1: float, x2: float, y2: float, **data: Datum) -> str:
    """A straight line."""
    return (
        f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        f"{_attributes(data)}/>"
    )


def path(kind: str, d: str, about: str = "", **data: Datum) -> str:
    """Any other outline."""
    return f'<path class="{kind}" d="{d}"{_attributes(data)}>{_hover(about)}</path>'


def _attributes(data: dict[str, Datum]) -> str:
    return "".join(f" data-{name}={quoteattr(str(value))}" for name, value in data.items())


def _hover(about: str) -> str:
    return f"<title>{escape(about)}</title>" if about else ""


WIDTH, LEFT, RIGHT = 860, 96, 24  # pixels: the page, the row titles, the right margin
EDGE = WIDTH - RIGHT


@dataclass
class Page:
    """Collects shapes from top to bottom; ``top`` is where the next part begins."""

    title: str
    about: str
    drawn: list[str] = field(default_factory=list)
    top: float = 80.0

    def add(self, *shapes: str) -> None:
        """Draw shapes."""
        self.drawn += shapes

    def heading(self, words: str, note: str = "") -> None:
        """The title of a part, with a quiet note behind it."""
        quiet = (
            f'<tspan class="faint small" style="font-weight:400" dx="10">{escape(note)}</tspan>'
            if note
            else ""
        )
        self.add(svg_text(20, self.top, words, "run").replace("</text>", f"{quiet}</text>"))
        self.top += 12

    def legend(self, entries: dict[str, str]) -> None:
        """What boxes, flags and lines mean, as far as they occur."""
        x, self.top = 20.0, self.top + 18
        drawn = "".join(self.drawn)
        for kind, words in entries.items():
            if not any(f'"{start}{kind}{end}' in drawn for start in ("", "box ") for end in '" '):
                continue
            room = 26 + len(words) * char_width(12) + 12
            if x + room > EDGE:
                x, self.top = 20.0, self.top + 22
            self.add(sample(kind, x, self.top), svg_text(x + 24, self.top, words))
            x += room
        self.top += 8

    def notes(self, *lines: str) -> None:
        """Quiet lines of text under the drawing."""
        for words in lines:
            self.top += 17
            self.add(svg_text(20, self.top, words, "faint"))

    def finish(self) -> str:
        """The whole SVG."""
        height = round(self.top + 14)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
                f'width="{WIDTH}" height="{height}" role="img">',
                f"<title>{escape(self.title)}</title>",
                style(),
                definitions(),
                f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" '
                f'height="{height - 1}" rx="8"/>',
                svg_text(20, 31, self.title, "title"),
                svg_text(20, 50, self.about, "faint"),
                *self.drawn,
                "</svg>",
                "",
            ]
        )


def sample(kind: str, x: float, y: float) -> str:
    """What a kind looks like, for the legend."""
    return rect(kind, x, y - 10, 18, 12)
