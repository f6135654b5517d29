"""What the SVG's parts look like: one style sheet for light and dark, hatching, arrow heads."""

from __future__ import annotations

from .palette import ARROW_COLOURS, ARROWS, DARK, LIGHT, OTHER, PAINTS, Paint, Paper

FONT = 'system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif'


def char_width(size: float, bold: bool = False) -> float:
    """About how wide one character is, on the safe side: fonts differ from reader to reader."""
    return size * (0.62 if bold else 0.57)


def style() -> str:
    """The style element: light by default, dark where the reader's system is."""
    rules = [
        f"text {{ font: 12px {FONT}; fill: var(--ink) }}",
        ".title { font-size: 16px; font-weight: 650 } .run { font-size: 13.5px; font-weight: 650 }",
        ".faint { fill: var(--faint) } .strong { fill: var(--ink) }",
        ".small { font-size: 11px } .bold { font-weight: 650 }",
        ".paper { fill: var(--paper); stroke: var(--grid) } .lane { fill: var(--lane) }",
        ".grid { stroke: var(--grid) } .axis { stroke: var(--faint) }",
        ".box { stroke: var(--gap); stroke-width: 1 }",
        ".hatch { stroke: var(--bubble); stroke-width: 1.6 }",
        ".bubble { fill: url(#hatch); stroke: var(--bubble) } .halo { fill: var(--paper) }",
        ".idle { fill: var(--bubble); font-size: 11px; font-weight: 650 }",
        ".end { stroke: var(--ink); stroke-width: 1.4; stroke-dasharray: 3 3 }",
        ".saved { stroke: var(--ink); stroke-width: 1.2; fill: none }",
        ".arrow { fill: none; stroke-width: 1.4 }",
        *(
            f".arrow.{kind} {{ stroke: var(--{kind}); marker-end: url(#head-{kind}) }}"
            for kind in ARROWS
        ),
        *_box_rules(),
        ".wait { fill: none; stroke: var(--faint); stroke-dasharray: 2 2 } "
        ".on-wait { fill: var(--faint) }",
        ".thin { stroke: none } .arrow.thin { stroke-width: .6; opacity: .5; marker-end: none }",
        variables(),
    ]
    return "<style>\n" + "\n".join(rules) + "\n</style>"


def variables() -> str:
    """The colours as CSS variables, for light and for dark."""
    return (
        f":root {{ {_variables(LIGHT, 0)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK, 1)} }} }}"
    )


def definitions() -> str:
    """The hatching of bubbles and one arrow head a kind."""
    heads = "".join(
        f'<marker id="head-{kind}" viewBox="0 0 8 8" refX="7.4" refY="4" markerWidth="7" '
        f'markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path style="fill:var(--{kind})" d="M0 0.6L8 4L0 7.4z"/></marker>'
        for kind in [*ARROWS, "ink"]
    )
    return (
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="6" height="6" class="halo"/>'
        '<line x1="0" y1="0" x2="0" y2="6" class="hatch"/></pattern>' + heads + "</defs>"
    )


def box_class(name: str) -> str:
    """The class of a phase or an op; a space would make it two."""
    return name.replace(" ", "-") if name in PAINTS else "other"


def _box_rules() -> list[str]:
    paints: dict[str, Paint] = {**PAINTS, "other": OTHER}
    return [
        f".{kind} {{ fill: {paint.fill} }} .on-{kind} {{ fill: {paint.text}; font-size: 11px }}"
        for kind, paint in ((box_class(name), paint) for name, paint in paints.items())
    ]


def _variables(paper: Paper, which: int) -> str:
    colours = {
        "paper": paper.background,
        "ink": paper.ink,
        "faint": paper.faint_ink,
        "grid": paper.grid,
        "lane": paper.lane,
        "gap": paper.gap,
        "bubble": paper.bubble,
        **{kind: pair[which] for kind, pair in ARROW_COLOURS.items()},
    }
    return "; ".join(f"--{name}: {colour}" for name, colour in colours.items())
