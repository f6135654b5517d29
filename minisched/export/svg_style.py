"""The style sheet of an SVG, for light and dark paper, with only the rules in use."""

from __future__ import annotations

from .looks import ARROWS, DARK, DARK_TEXT, LIGHT, LOOKS, ON_DARK, css

FONT = 'system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif'
LINES = "fill:none;stroke-width:1.1"
TEXTURES = {  # on a tile of 8 by 8 pixels: the path, and its style
    "stripes": ("M-2 2L2 -2M0 8L8 0M6 10L10 6", f"{LINES};opacity:.45"),
    "dots": ("M2 2h0M6 6h0", "fill:none;stroke-width:2;stroke-linecap:round;opacity:.5"),
    "cross": ("M-2 2L2 -2M0 8L8 0M6 10L10 6M-2 6L2 10M0 0L8 8M6 -2L10 2", f"{LINES};opacity:.6"),
    "hatch": ("M-2 6L2 10M0 0L8 8M6 -2L10 2", f"{LINES};opacity:.6"),
}
INKS = {"bubble": "var(--bubble)", "waited": "var(--waited)", "wait": "var(--faint)"}


def style_of(drawn: str) -> str:
    """Return style sheet, textures and arrow heads, as far as ``drawn`` uses them."""
    lists = (piece.split('"', 1)[0].split() for piece in drawn.split('class="')[1:])
    classes = {word.removeprefix("in-") for words in lists for word in words}
    rules = [rule for name, rule in RULES if not name or name in classes]
    said = "\n".join([*rules, variables()])
    defs = "".join(shape for name, shape in DEFS.items() if f"url(#{name})" in said)
    return f"<style>\n{said}\n</style>\n" + (f"<defs>{defs}</defs>" if defs else "")


def variables() -> str:
    """Return the colours as CSS variables, for light and for dark paper."""
    light, dark = (
        "; ".join(f"--{name}: {colour}" for name, colour in paper.items())
        for paper in (LIGHT, DARK)
    )
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def _ground(kind: str) -> str:
    """Return the colour under a kind's texture and words."""
    return f"var(--{kind})" if kind in ON_DARK else LOOKS[kind].fill or "var(--paper)"


def _box_rule(kind: str) -> str:
    has, name = LOOKS[kind], css(kind)
    fill = f"url(#of-{name})" if has.texture else _ground(kind)
    border, ink, bold = "", "var(--ink)" if kind in ON_DARK else has.text, ""
    if not has.fill:
        line = INKS.get(kind, "var(--bubble)" if kind == "lacking" else "var(--faint)")
        line = "none" if kind == "stale" else line
        dash = "" if kind in ("bubble", "waited", "lacking") else "; stroke-dasharray: 3 2"
        border, ink = f"; stroke: {line}{dash}", INKS.get(kind, "var(--ink)")
        bold = "; font-weight: 650" if kind in ("bubble", "waited") else ""
    rim = f"; stroke: {_ground(kind)}; stroke-width: 3px; paint-order: stroke"
    rim += "; stroke-linejoin: round"  # otherwise letters such as w have spikes
    return f".box.{name} {{ fill: {fill}{border} }} text.in-{name} {{ fill: {ink}{bold}{rim} }}"


def _pattern(kind: str) -> str:
    (d, how), has = TEXTURES[LOOKS[kind].texture], LOOKS[kind]
    ink = "var(--ink)" if kind in ON_DARK else DARK_TEXT
    if not has.fill:
        ink = {"stale": "var(--faint)", "waited": "var(--waited)"}.get(kind, "var(--bubble)")
    return (
        f'<pattern id="of-{css(kind)}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect width="8" height="8" style="fill:{_ground(kind)}"/>'
        f'<path d="{d}" style="stroke:{ink};{how}"/></pattern>'
    )


def _arrow_head(kind: str) -> str:
    return (
        f'<marker id="head-{kind}" viewBox="0 0 8 8" refX="7.4" refY="4" markerWidth="7" '
        'markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path style="fill:var(--{kind})" d="M0 0.6L8 4L0 7.4z"/></marker>'
    )


DEFS = {
    **{f"of-{css(kind)}": _pattern(kind) for kind, has in LOOKS.items() if has.texture},
    **{f"head-{kind}": _arrow_head(kind) for kind in ("ink", *ARROWS)},
}
RULES = [  # (a class that must occur; empty: always, the rule)
    ("", f"text {{ font: 12px {FONT}; fill: var(--ink) }}"),
    ("", ".title { font-size: 16px; font-weight: 650 }"),
    ("", ".run { font-size: 13.5px; font-weight: 650 }"),
    ("", ".faint { fill: var(--faint) } .small { font-size: 11px } .bold { font-weight: 650 }"),
    ("", ".paper { fill: var(--paper); stroke: var(--grid) } .lane { fill: var(--lane) }"),
    ("", ".grid { stroke: var(--grid) } .axis { stroke: var(--faint) }"),
    ("box", ".box { stroke: var(--paper); stroke-width: 1 } .box.thin { stroke: none }"),
    ("arrow", ".arrow { fill: none; stroke-width: 1.4 }"),
    ("faint-arrow", ".faint-arrow { stroke-width: .6; opacity: .5; marker-end: none !important }"),
    ("both", ".both { fill: var(--token); opacity: .17 }"),
    ("outline", ".outline { fill: none; stroke: var(--wrong); stroke-width: 3 } "
                ".disc { fill: var(--wrong) } .on-disc { fill: var(--paper); font-weight: 700 }"),
    ("ghost", ".ghost { fill: none; stroke: var(--wrong); stroke-width: 1.5; "
              "stroke-dasharray: 3 3 }"),
    ("halo", ".halo { fill: var(--paper) }"),
    ("said", ".said { fill: var(--wrong); font-weight: 650; stroke: var(--paper); "
             "stroke-width: 3px; paint-order: stroke }"),
    ("begin", ".begin { stroke: var(--faint) }"),
    ("span", ".span { stroke: var(--token); stroke-width: 1.2 } .spanned { fill: var(--token) }"),
    ("saved", ".saved, .saved-end { stroke: var(--ink); stroke-width: 1.2; fill: none } "
              ".saved { marker-end: url(#head-ink) }"),
    ("end", ".end { stroke: var(--ink); stroke-width: 1.4; stroke-dasharray: 3 3 }"),
    ("line", ".line { fill: none; stroke: var(--ink); stroke-width: 1.6 } "
             ".line.second { stroke-dasharray: 5 3; stroke: var(--bubble) } "
             ".line.third { stroke: var(--token) } "
             ".line.limit { stroke: var(--bubble); stroke-width: 1.8; stroke-dasharray: 6 3 }"),
    ("flag", ".flag { stroke: var(--bubble); fill: var(--bubble); stroke-width: 1.4 }"),
    ("flag-head", ".flag-head { fill: var(--bubble); stroke: var(--paper) }"),
    ("warn", ".warn { fill: var(--bubble); font-weight: 650 }"),
    ("evict", ".evict { fill: none; stroke: var(--bubble); stroke-width: 2 }"),
    ("read", ".read { fill: var(--paper); stroke: var(--ink); stroke-width: 1.2 }"),
    ("link", ".link { fill: none; stroke: var(--faint); stroke-width: 1.2 }"),
    ("wall", ".wall { stroke: var(--ink); stroke-width: 2.6; stroke-linecap: round }"),
    ("changed", ".box.changed { stroke: var(--ink); stroke-width: 2.4; stroke-dasharray: none }"),
    ("missing", ".arrow.missing { stroke: var(--wrong); stroke-width: 2.2; "
                "stroke-dasharray: 6 4; marker-end: url(#head-wrong) }"),
    *((css(kind), _box_rule(kind)) for kind in LOOKS),
    *((kind, f".arrow.{kind} {{ stroke: var(--{kind}); marker-end: url(#head-{kind}) }}")
      for kind in ARROWS),
    ("level", ".arrow.level { marker-end: none }"),
]  # fmt: skip
