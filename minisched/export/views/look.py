"""What things look like in every view: each has a colour *and* a texture."""

from __future__ import annotations

from dataclasses import dataclass

from ..palette import BLUE, GREEN, ORANGE, SKY, VERMILLION

DARK_TEXT, WHITE_TEXT = "#1A1A1A", "#FFFFFF"


@dataclass(frozen=True)
class Look:
    """A kind of box. ``fill`` empty: the paper shows through and the border is dashed."""

    fill: str
    text: str = DARK_TEXT
    texture: str = ""  # stripes, dots or cross


LOOKS = {
    # what a step computes
    "prompt": Look(SKY),
    "decode": Look(ORANGE),
    "again": Look("#A9D8F3", texture="stripes"),  # a prompt computed once more
    "wasted": Look("", texture="cross"),
    # pages and slots
    "protected": Look(GREEN),  # in the cache, and locked by a request
    "evictable": Look("#7CCBB3", texture="dots"),
    "evicted": Look("", texture="cross"),
    "promised": Look("#A9D8F3", texture="stripes"),
    "stored": Look(BLUE, WHITE_TEXT),
    "stale": Look("", texture="dots"),
    # budgets and queues
    "left": Look(SKY),
    "spent": Look(ORANGE, texture="stripes"),
    "lacking": Look(""),
    "queued": Look(""),
    "admitted": Look(BLUE, WHITE_TEXT),
    "sending": Look("#A9D8F3", texture="stripes"),  # memory held for KV on its way
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


def _pattern(name: str, look: Look) -> str:
    ground = f'fill="{look.fill}"' if look.fill else 'class="halo"'
    return (
        f'<pattern id="of-{name}" class="on-{name}" width="8" height="8" '
        f'patternUnits="userSpaceOnUse"><rect width="8" height="8" {ground}/>'
        f"{TEXTURES[look.texture]}</pattern>"
    )


def _rule(name: str, look: Look) -> str:
    fill = f"url(#of-{name})" if look.texture else look.fill or "var(--paper)"
    border = "" if look.fill else "; stroke: var(--faint); stroke-dasharray: 3 2"
    ink = look.text if look.fill else "var(--ink)"
    halo = f"; stroke: {look.fill or 'var(--paper)'}; stroke-width: 3px; paint-order: stroke"
    words = f"fill: {ink}{halo if look.texture else ''}"
    return f".box.{name} {{ fill: {fill}{border} }} text.in-{name} {{ {words} }}"
