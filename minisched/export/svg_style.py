"""The look of an SVG's shapes: attributes for light paper, a style sheet for dark paper.

Colours are attributes, because many programs read no style sheet: LaTeX, slide programs, librsvg. A
style sheet overrides attributes, so in a browser the picture follows its reader from light to dark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from .looks import ARROWS, DARK, DARK_TEXT, LIGHT, LOOKS, ON_DARK, css

FONT = "Arial, Helvetica, Liberation Sans, Noto Sans CJK SC, sans-serif"
"""Arial comes first: Windows and macOS have it, and Linux has a font of the same widths."""
TEXTURES: dict[str, tuple[str, dict[str, str]]] = {  # on a tile of 8 by 8 pixels: path, its look
    "stripes": ("M-2 2L2 -2M0 8L8 0M6 10L10 6", {"stroke-width": "1.1", "opacity": ".45"}),
    "dots": ("M2 2h.1M6 6h.1",
             {"stroke-width": "2", "stroke-linecap": "round", "opacity": ".5"}),
    "cross": ("M-2 2L2 -2M0 8L8 0M6 10L10 6M-2 6L2 10M0 0L8 8M6 -2L10 2",
              {"stroke-width": "1.1", "opacity": ".6"}),
    "hatch": ("M-2 6L2 10M0 0L8 8M6 -2L10 2", {"stroke-width": "1.1", "opacity": ".6"}),
}  # fmt: skip
INKS = {"bubble": "$bubble", "waited": "$waited", "wait": "$faint"}
CLASS = re.compile(r'class="([^"]*)"')
LINK = re.compile(r"url\(#([\w-]+)\)")
Look = Mapping[str, str]  # attributes; ``$ink`` is a colour by its name in ``looks.COLOURS``


@dataclass(frozen=True)
class Sheet:
    """The width of a page, and the sizes of lanes and letters on it, in pixels."""

    width: int
    box: int  # height of a box
    gap: int  # between two lanes
    title: float
    run: float  # the name of a run
    text: float
    small: float
    left: int  # the least room for the names of lanes

    @property
    def edge(self) -> int:
        """Return the right end of every drawing."""
        return self.width - MARGIN - 4

    @property
    def pitch(self) -> int:
        """Return the height from lane to lane."""
        return self.box + self.gap

    def size(self, classes: str) -> float:
        """Return the size of a text's letters."""
        named = set(classes.split())
        return next((getattr(self, name) for name in ("title", "run", "small") if name in named),
                    self.text)  # fmt: skip


MARGIN = 20  # pixels left and right
DESK = Sheet(860, 18, 9, title=16, run=13.5, text=12, small=11, left=96)
SLIDE = Sheet(860, 24, 9, title=21, run=16, text=14, small=13.5, left=84)  # 20 px of 1,280
PHONE = Sheet(358, 30, 8, title=16, run=14, text=12, small=12, left=66)


def painted(drawn: str, sheet: Sheet = DESK) -> str:
    """Return shapes with the attributes of their classes, on light paper."""
    return CLASS.sub(lambda found: found[0] + attributes(found[1], sheet), drawn)


@cache
def attributes(classes: str, sheet: Sheet) -> str:
    """Return the attributes of some classes; a later rule overrides an earlier one."""
    size = sheet.size(classes)
    look = {"font-size": f"{size:g}"} if size != sheet.text else {}
    for _, has in matching(classes):
        look.update(has)
    look.pop("rim", None)
    return "".join(f' {name}="{colour(value, LIGHT)}"' for name, value in look.items())


def matching(classes: str) -> Iterator[tuple[str, Look]]:
    """Yield the rules that have all of their words among some classes."""
    has = set(classes.split())
    return ((words, look) for words, look in RULES if has.issuperset(words.split()))


def style_of(drawn: str) -> str:
    """Return style sheet, textures and arrow heads, as far as ``drawn`` uses them."""
    lists = {*CLASS.findall(drawn)}
    links = {name for classes in lists for name in LINK.findall(attributes(classes, DESK))}
    defs = "".join(shape for name, shape in DEFS.items() if name in links)
    lists.update(CLASS.findall(defs))
    used = {words for classes in lists for words, _ in matching(classes)}
    rules = [(words, look) for words, look in RULES if words in used]
    dark = [f"svg {{ fill: {DARK['ink']} }}"]
    for words, look in rules:
        paints = [
            f"{'stroke' if name == 'rim' else name}: {colour(value, DARK)}"
            for name, value in look.items()
            if value.startswith("$") or value == "none" or name == "rim"
        ]
        if paints:
            dark.append(f"{selector(words)} {{ {'; '.join(paints)} }}")
    sheet = ["@media (prefers-color-scheme: dark) {", *dark, "}"]
    rims = [(selector(words), colour(look["rim"], LIGHT)) for words, look in rules if "rim" in look]
    if rims:
        # in @supports: a program without paint-order would draw the rim over the letters
        names = ", ".join(name for name, _ in rims)
        sheet = [
            "@supports (paint-order: stroke) {",
            f"{names} {{ stroke-width: 3px; paint-order: stroke; stroke-linejoin: round }}",
            *(f"{name} {{ stroke: {rim} }}" for name, rim in rims),
            "}",
            *sheet,
        ]
    style = "\n".join(["<style>", *sheet, "</style>", ""])
    return style + (f"<defs>{painted(defs)}</defs>" if defs else "")


def selector(words: str) -> str:
    """Return the style sheet's name of a rule."""
    return "".join(f".{word}" for word in words.split())


def colour(value: str, paper: Mapping[str, str]) -> str:
    """Return a colour by its name on light or dark paper; any other value as it is."""
    return paper[value[1:]] if value.startswith("$") else value


def variables() -> str:
    """Return the colours as CSS variables, for light and for dark paper."""
    light, dark = (
        "; ".join(f"--{name}: {colour}" for name, colour in paper.items())
        for paper in (LIGHT, DARK)
    )
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def ground(kind: str) -> str:
    """Return the colour under a kind's texture and words."""
    return f"${kind}" if kind in ON_DARK else LOOKS[kind].fill or "$paper"


def looks_of(kind: str) -> Iterator[tuple[str, Look]]:
    """Yield the rules of a kind: its box, the words in it, and the tile of its texture."""
    has, name = LOOKS[kind], css(kind)
    box = {"fill": f"url(#of-{name})" if has.texture else ground(kind)}
    words = {"fill": "$ink" if kind in ON_DARK else has.text, "rim": ground(kind)}
    if not has.fill:
        box["stroke"] = INKS.get(kind, "$bubble" if kind == "lacking" else "$faint")
        words["fill"] = INKS.get(kind, "$ink")
        if kind in ("bubble", "waited"):
            words["font-weight"] = "650"
        elif kind != "lacking":
            box["stroke-dasharray"] = "3 2"
        if kind == "stale":
            box["stroke"] = "none"
    yield f"box {name}", box
    yield f"in-{name}", words
    if has.texture:
        ink = "$ink" if kind in ON_DARK else DARK_TEXT
        if not has.fill:
            ink = {"stale": "$faint", "waited": "$waited"}.get(kind, "$bubble")
        yield f"ground-{name}", {"fill": ground(kind)}
        yield f"tile-{name}", {"fill": "none", "stroke": ink, **TEXTURES[has.texture][1]}


def tile(kind: str) -> str:
    """Return the tile of a kind's texture."""
    name = css(kind)
    return (
        f'<pattern id="of-{name}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect class="ground-{name}" width="8" height="8"/>'
        f'<path class="tile-{name}" d="{TEXTURES[LOOKS[kind].texture][0]}"/></pattern>'
    )


def arrow_head(kind: str) -> str:
    """Return the head of a kind's arrows."""
    return (
        f'<marker id="head-{kind}" viewBox="0 0 8 8" refX="7.4" refY="4" markerWidth="7" '
        'markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path class="head-{kind}" d="M0 0.6L8 4L0 7.4z"/></marker>'
    )


DEFS = {
    **{f"of-{css(kind)}": tile(kind) for kind, has in LOOKS.items() if has.texture},
    **{f"head-{kind}": arrow_head(kind) for kind in ("ink", *ARROWS)},
}
LINE = {"fill": "none", "stroke": "$ink"}
RULES: list[tuple[str, Look]] = [  # the classes that must all occur, and the look
    ("title", {"font-weight": "650"}),
    ("run", {"font-weight": "650"}),
    ("faint", {"fill": "$faint"}),
    ("bold", {"font-weight": "650"}),
    ("paper", {"fill": "$paper", "stroke": "$grid"}),
    ("lane", {"fill": "$lane"}),
    ("grid", {"stroke": "$grid"}),
    ("axis", {"stroke": "$faint"}),
    ("box", {"stroke": "$paper", "stroke-width": "1"}),
    ("box thin", {"stroke": "none"}),
    ("arrow", {"fill": "none", "stroke-width": "1.4"}),
    ("outline", {"fill": "none", "stroke": "$wrong", "stroke-width": "3"}),
    ("disc", {"fill": "$wrong"}),
    ("on-disc", {"fill": "$paper", "font-weight": "700"}),
    ("ghost", {"fill": "none", "stroke": "$wrong", "stroke-width": "1.5",
               "stroke-dasharray": "3 3"}),
    ("halo", {"fill": "$paper"}),
    ("deed", {"fill": "$wrong", "font-weight": "650"}),
    ("said", {"fill": "$wrong", "font-weight": "650", "rim": "$paper"}),
    ("end", {"stroke": "$ink", "stroke-width": "1.4", "stroke-dasharray": "3 3"}),
    ("line", {**LINE, "stroke-width": "1.6"}),
    ("line second", {"stroke": "$bubble", "stroke-dasharray": "5 3"}),
    ("line third", {"stroke": "$token"}),
    ("line limit", {"stroke": "$bubble", "stroke-width": "1.8", "stroke-dasharray": "6 3"}),
    ("span", {"stroke": "$bubble", "fill": "none", "stroke-width": "1.6"}),
    ("flag", {"stroke": "$bubble", "fill": "$bubble", "stroke-width": "1.4"}),
    ("flag-head", {"fill": "$bubble", "stroke": "$paper"}),
    ("warn", {"fill": "$bubble", "font-weight": "650"}),
    ("evict", {"fill": "none", "stroke": "$bubble", "stroke-width": "2"}),
    ("written", {"fill": "$ink", "stroke": "$paper", "stroke-width": "1.2"}),
    ("read", {"fill": "$paper", "stroke": "$ink", "stroke-width": "1.2"}),
    ("link", {"fill": "none", "stroke": "$faint", "stroke-width": "1.2"}),
    ("wall", {"stroke": "$ink", "stroke-width": "2.6", "stroke-linecap": "round"}),
    *(rule for kind in LOOKS for rule in looks_of(kind)),
    ("box changed", {"stroke": "$ink", "stroke-width": "2.4", "stroke-dasharray": "none"}),
    *((f"arrow {kind}", {"stroke": f"${kind}", "marker-end": f"url(#head-{kind})"})
      for kind in ARROWS),
    ("arrow missing", {"stroke": "$wrong", "stroke-width": "2.2", "stroke-dasharray": "6 4",
                       "marker-end": "url(#head-wrong)"}),
    ("level", {"marker-end": "none"}),
    ("faint-arrow", {"stroke-width": ".6", "opacity": ".5", "marker-end": "none"}),
    *((f"head-{kind}", {"fill": f"${kind}"}) for kind in ("ink", *ARROWS)),
]  # fmt: skip
