"""A view's page: title, what is shown, the drawing, and a legend of what occurs in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from ...trace import Trace
from ..svg_style import char_width, definitions, style
from .look import look_style, textures
from .shapes import path, rect, text

WIDTH, LEFT, RIGHT = 860, 96, 24  # pixels: the page, the row titles, the right margin
EDGE = WIDTH - RIGHT
SIGNS = {  # flags and lines, around their middle
    "flag-head": "m-6 -5h12l-6 9z",
    "read": "m0 -5l5 5l-5 5l-5 -5z",
    "evict": "m-4 -4l8 8m0 -8l-8 8",
    "limit": "m-9 0h18",
    "lapped": "m0 -7h8l-8 8z",
    "end": "m0 -8v16",
    "line": "m-9 0h18",
    "line second": "m-9 0h18",
}


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
        quiet = f'<tspan class="faint small plain" dx="10">{escape(note)}</tspan>' if note else ""
        self.add(text(20, self.top, words, "run").replace("</text>", f"{quiet}</text>"))
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
            self.add(sample(kind, x, self.top), text(x + 24, self.top, words))
            x += room
        self.top += 8

    def notes(self, *lines: str) -> None:
        """Quiet lines of text under the drawing."""
        for words in lines:
            self.top += 17
            self.add(text(20, self.top, words, "faint"))

    def finish(self) -> str:
        """The whole SVG."""
        height = round(self.top + 14)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
                f'width="{WIDTH}" height="{height}" role="img">',
                f"<title>{escape(self.title)}</title>",
                style(),
                look_style(),
                definitions(),
                textures(),
                f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" '
                f'height="{height - 1}" rx="8"/>',
                text(20, 31, self.title, "title"),
                text(20, 50, self.about, "faint"),
                *self.drawn,
                "</svg>",
                "",
            ]
        )


def labels(flags: list[tuple[float, str]]) -> list[str]:
    """The words beside flags, given with where they stand; empty where there is no room."""
    ends = [x for x, _ in flags[1:]] + [WIDTH - 4.0]
    return [
        words if x + 10 + len(words) * char_width(11, True) <= end else ""
        for (x, words), end in zip(flags, ends, strict=False)
    ]


def sample(kind: str, x: float, y: float) -> str:
    """What a kind looks like, for the legend."""
    if kind not in SIGNS:
        return rect(kind, x, y - 10, 18, 12)
    return path(kind, f"M{x + 9:.1f} {y - 4:.1f}{SIGNS[kind]}")


def about_run(trace: Trace, *more: str) -> str:
    """Which run a page shows: ``overlap on sim, hash model, simulated time``."""
    clock = "simulated time" if trace.clock == "virtual" else "measured time"
    model = f"{trace.model} model" + f" in {trace.dtype}" * bool(trace.dtype)
    return "; ".join([f"{trace.loop} on {trace.device}, {model}, {clock}", *more])
