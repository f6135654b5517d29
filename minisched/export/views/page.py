"""A view's page: title, what is shown, the drawing, and a legend of what occurs in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

from ...trace import Trace
from ..palette import BLUE, GREEN, ORANGE, SKY, VERMILLION
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


# -- What things look like in every view: each has a colour *and* a texture ------------------------

DARK_TEXT, WHITE_TEXT = "#1A1A1A", "#FFFFFF"


@dataclass(frozen=True)
class PageLook:
    """A kind of box. ``fill`` empty: the paper shows through and the border is dashed."""

    fill: str
    text: str = DARK_TEXT
    texture: str = ""  # stripes, dots or cross


LOOKS = {
    # what a step computes
    "prompt": PageLook(SKY),
    "decode": PageLook(ORANGE),
    "again": PageLook("#A9D8F3", texture="stripes"),  # a prompt computed once more
    "wasted": PageLook("", texture="cross"),
    # pages and slots
    "protected": PageLook(GREEN),  # in the cache, and locked by a request
    "evictable": PageLook("#7CCBB3", texture="dots"),
    "evicted": PageLook("", texture="cross"),
    "promised": PageLook("#A9D8F3", texture="stripes"),
    "stored": PageLook(BLUE, WHITE_TEXT),
    "stale": PageLook("", texture="dots"),
    # budgets and queues
    "left": PageLook(SKY),
    "spent": PageLook(ORANGE, texture="stripes"),
    "lacking": PageLook(""),
    "queued": PageLook(""),
    "admitted": PageLook(BLUE, WHITE_TEXT),
    "sending": PageLook("#A9D8F3", texture="stripes"),  # memory held for KV on its way
}
TEXTURES = {
    "stripes": '<path d="M-2 2L2 -2M0 8L8 0M6 10L10 6" class="texture"/>',
    "dots": '<circle cx="2" cy="2" r="1" class="texture-dot"/>'
    '<circle cx="6" cy="6" r="1" class="texture-dot"/>',
    "cross": '<path d="M-2 2L2 -2M0 8L8 0M6 10L10 6M-2 6L2 10M0 0L8 8M6 -2L10 2" '
    'class="texture-cross"/>',
}


def look_style() -> str:
    """The views' own rules, beside ``svg_style.style``."""
    rules = [
        ".texture { stroke: #1A1A1A; stroke-width: 1; opacity: .45; fill: none }",
        ".texture-dot { fill: #1A1A1A; opacity: .5 }",
        f".texture-cross {{ stroke: {VERMILLION}; stroke-width: 1; opacity: .6; fill: none }}",
        ".plain { font-weight: 400 }",
        ".line { fill: none; stroke: var(--ink); stroke-width: 1.6 }",
        ".line.under { stroke: var(--paper); stroke-width: 4 }",
        ".line.second { stroke-dasharray: 5 3; stroke: var(--faint) }",
        ".limit { stroke: var(--bubble); stroke-width: 1.6; stroke-dasharray: 6 3 }",
        ".flag { stroke: var(--bubble); stroke-width: 1.4 }",
        ".flag-head { fill: var(--bubble); stroke: var(--paper) }",
        ".lapped { fill: var(--bubble) }",
        ".warn { fill: var(--bubble); font-weight: 650 }",
        ".held { stroke: var(--faint); stroke-width: 1.4 }",
        ".link { fill: none; stroke: var(--faint); stroke-width: 1.2 }",
        ".evict { fill: none; stroke: var(--bubble); stroke-width: 2 }",
        ".read { fill: var(--paper); stroke: var(--ink); stroke-width: 1.2 }",
        *(_rule(name, look) for name, look in LOOKS.items()),
        ".box.thin { stroke: none }",
        ".box.lacking { fill: none; stroke: var(--bubble); stroke-width: 1.6 }",
        ".on-stale .texture-dot { fill: var(--faint) } .box.stale { stroke: none }",
        ".box.changed { stroke: var(--ink); stroke-width: 2.4; stroke-dasharray: none }",
    ]
    return "<style>\n" + "\n".join(rules) + "\n</style>"


def textures() -> str:
    """A pattern for each kind that has a texture."""
    return (
        "<defs>"
        + "".join(_pattern(n, look) for n, look in LOOKS.items() if look.texture)
        + ("</defs>")
    )


def _pattern(name: str, look: PageLook) -> str:
    ground = f'fill="{look.fill}"' if look.fill else 'class="halo"'
    return (
        f'<pattern id="of-{name}" class="on-{name}" width="8" height="8" '
        f'patternUnits="userSpaceOnUse"><rect width="8" height="8" {ground}/>'
        f"{TEXTURES[look.texture]}</pattern>"
    )


def _rule(name: str, look: PageLook) -> str:
    fill = f"url(#of-{name})" if look.texture else look.fill or "var(--paper)"
    border = "" if look.fill else "; stroke: var(--faint); stroke-dasharray: 3 2"
    ink = look.text if look.fill else "var(--ink)"
    halo = f"; stroke: {look.fill or 'var(--paper)'}; stroke-width: 3px; paint-order: stroke"
    words = f"fill: {ink}{halo if look.texture else ''}"
    return f".box.{name} {{ fill: {fill}{border} }} text.in-{name} {{ {words} }}"


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
                look_style(),
                definitions(),
                textures(),
                f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" '
                f'height="{height - 1}" rx="8"/>',
                svg_text(20, 31, self.title, "title"),
                svg_text(20, 50, self.about, "faint"),
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
