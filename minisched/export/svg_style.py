"""The style sheet of an SVG: only what occurs in it, for light and for dark paper."""

from __future__ import annotations

from .looks import ARROW_COLOURS, DARK, LIGHT, LOOKS, ON_DARK, WAITED, Paper, css

FONT = 'system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif'
TEXTURES = {
    "stripes": '<path d="M-2 2L2 -2M0 8L8 0M6 10L10 6" class="texture"/>',
    "dots": '<circle cx="2" cy="2" r="1" class="texture-dot"/>'
    '<circle cx="6" cy="6" r="1" class="texture-dot"/>',
    "cross": '<path d="M-2 2L2 -2M0 8L8 0M6 10L10 6M-2 6L2 10M0 0L8 8M6 -2L10 2" class="cross"/>',
    "hatch": '<path d="M-2 6L2 10M0 0L8 8M6 -2L10 2" class="hatch"/>',
}
PLAIN = [  # (a class that must occur; empty: always, the rule)
    ("", f"text {{ font: 12px {FONT}; fill: var(--ink) }}"),
    ("", ".title { font-size: 16px; font-weight: 650 }"),
    ("", ".run { font-size: 13.5px; font-weight: 650 }"),
    ("", ".faint { fill: var(--faint) } .small { font-size: 11px } .bold { font-weight: 650 }"),
    ("", ".paper { fill: var(--paper); stroke: var(--grid) } .lane { fill: var(--lane) }"),
    ("", ".grid { stroke: var(--grid) } .axis { stroke: var(--faint) }"),
    ("box", ".box { stroke: var(--gap); stroke-width: 1 } .box.thin { stroke: none }"),
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
    ("saved", ".saved, .saved-end { stroke: var(--ink); stroke-width: 1.2; fill: none }"),
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
]  # fmt: skip
INKS = {"bubble": "var(--bubble)", "waited": "var(--waited)", "wait": "var(--faint)"}


def style_of(drawn: str) -> str:
    """Style sheet, textures and arrow heads, as far as ``drawn`` uses them."""
    words = {
        word for piece in drawn.split('class="')[1:] for word in piece.split('"', 1)[0].split()
    }
    words |= {word.removeprefix("in-") for word in words}
    kinds = [kind for kind in LOOKS if css(kind) in words]
    arrows = [kind for kind in ARROW_COLOURS if kind in words]
    arrows += ["wrong"] * ("missing" in words and "wrong" not in words)
    textures = {texture for kind in kinds if (texture := LOOKS[kind].texture)}
    rules = [rule for name, rule in PLAIN if not name or name in words]
    rules += [_box_rule(kind) for kind in kinds]
    rules += [f".arrow.{kind} {{ stroke: var(--{kind}); marker-end: url(#head-{kind}) }}"
              for kind in arrows]  # fmt: skip
    if "level" in words:
        rules.append(".arrow.level { marker-end: none }")
    if {"stripes", "dots"} & textures:
        rules.append(".texture { stroke: #1A1A1A; stroke-width: 1; opacity: .45; fill: none }")
        rules.append(".texture-dot { fill: #1A1A1A; opacity: .5 }")
    if "cross" in textures or "hatch" in textures:
        rules.append(".cross, .hatch { stroke: var(--bubble); stroke-width: 1.1; opacity: .6; "
                     "fill: none }")  # fmt: skip
    if "stale" in words:
        rules.append("#of-stale .texture-dot { fill: var(--faint); opacity: 1 }")
    if "waited" in words:
        rules.append("#of-waited .hatch { stroke: var(--waited) }")
    if "saved" in words:
        rules.append(".saved { marker-end: url(#head-ink) }")
        arrows.append("ink")
    heads = "".join(
        f'<marker id="head-{kind}" viewBox="0 0 8 8" refX="7.4" refY="4" markerWidth="7" '
        'markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path style="fill:var(--{kind})" d="M0 0.6L8 4L0 7.4z"/></marker>'
        for kind in arrows
    )
    patterns = "".join(_pattern(kind) for kind in kinds if LOOKS[kind].texture)
    rules.append(variables())
    if darker := [kind for kind in kinds if kind in ON_DARK]:
        own = "\n".join(_dark_rule(kind) for kind in darker)
        rules.append(f"@media (prefers-color-scheme: dark) {{\n{own}\n}}")
    defs = f"<defs>{patterns}{heads}</defs>" if patterns or heads else ""
    return "<style>\n" + "\n".join(rules) + f"\n</style>\n{defs}".rstrip("\n")


def variables() -> str:
    """The colours as CSS variables, for light and for dark paper."""
    light, dark = _variables(LIGHT, 0), _variables(DARK, 1)
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def _variables(paper: Paper, which: int) -> str:
    colours = {
        "paper": paper.background, "ink": paper.ink, "faint": paper.faint_ink, "grid": paper.grid,
        "lane": paper.lane, "gap": paper.background, "bubble": paper.bubble,
        "waited": WAITED[which], **{kind: pair[which] for kind, pair in ARROW_COLOURS.items()},
    }  # fmt: skip
    return "; ".join(f"--{name}: {colour}" for name, colour in colours.items())


def _box_rule(kind: str) -> str:
    has, name = LOOKS[kind], css(kind)
    fill = f"url(#of-{name})" if has.texture else has.fill or "var(--paper)"
    border = ""
    if not has.fill:
        line = INKS.get(kind, "var(--bubble)" if kind == "lacking" else "var(--faint)")
        line = "none" if kind == "stale" else line
        dash = "" if kind in ("bubble", "waited", "lacking") else "; stroke-dasharray: 3 2"
        border = f"; stroke: {line}{dash}"
    ink = has.text if has.fill else INKS.get(kind, "var(--ink)")
    bold = "; font-weight: 650" if kind in ("bubble", "waited") else ""
    rim = f"; stroke: {has.fill or 'var(--paper)'}; stroke-width: 3px; paint-order: stroke"
    rim += "; stroke-linejoin: round"  # or letters such as w have spikes
    return f".box.{name} {{ fill: {fill}{border} }} text.in-{name} {{ fill: {ink}{bold}{rim} }}"


def _dark_rule(kind: str) -> str:
    name, fill = css(kind), ON_DARK[kind]
    ground = f".box.{name} {{ fill: {fill} }}"
    if LOOKS[kind].texture:
        ground = (
            f"#of-{name} rect {{ fill: {fill} }} #of-{name} .texture {{ stroke: var(--ink) }} "
            f"#of-{name} .texture-dot {{ fill: var(--ink) }}"
        )
    return f"{ground} text.in-{name} {{ fill: var(--ink); stroke: {fill} }}"


def _pattern(kind: str) -> str:
    has, name = LOOKS[kind], css(kind)
    ground = f'fill="{has.fill}"' if has.fill else 'class="halo" style="fill:var(--paper)"'
    return (
        f'<pattern id="of-{name}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect width="8" height="8" {ground}/>{TEXTURES[has.texture]}</pattern>'
    )
