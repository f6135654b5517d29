"""The look of each kind of thing in every form: one table, one meaning for each colour.

Phases and ops have Okabe and Ito's colours (the host is warm, the device cold), and shares of
requests have Paul Tol's muted ones. Blue is a token, indigo is memory in use, grey is a budget.
Lost or idle time is hatched, and the paper shows through.
"""

from __future__ import annotations

from dataclasses import dataclass

DARK_TEXT, WHITE_TEXT = "#1A1A1A", "#FFFFFF"
# Okabe and Ito, "Color Universal Design" (2008).
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"


@dataclass(frozen=True)
class Look:
    """A kind of box. With an empty ``fill`` the paper shows through and the border is dashed.

    ``glyph`` is the sign in a text: phases and ops have a letter, small for the host.
    """

    fill: str
    text: str = DARK_TEXT
    texture: str = ""  # stripes, dots, cross or hatch
    glyph: str = "█"


PHASES = {  # related phases share a hue: receiving is a pale schedule, output a pale process
    "receive": Look("#F6D799", glyph="r"),
    "schedule": Look(ORANGE, glyph="s"),
    "prepare": Look(YELLOW, glyph="p"),
    "launch": Look("#8C5A2B", WHITE_TEXT, glyph="l"),
    "process": Look(PURPLE, glyph="x"),
    "output": Look("#EBC9DC", glyph="o"),
    "wait": Look("", glyph="·"),
    "forward": Look(SKY, glyph="F"),
    "sample": Look(BLUE, WHITE_TEXT, glyph="S"),
    "copy": Look(GREEN, glyph="C"),
    # phases of some designs only, paler than the related phase
    "advance step": Look("#F8F3B8", glyph="e"),
    "fill": Look("#E8CFA6", glyph="f"),
    "launch sample": Look("#BD936A", glyph="a"),
    "postprocess": Look("#DDAAC8", glyph="t"),
    "mask": Look("#CDC85F", glyph="m"),
    "verify": Look("#00476F", WHITE_TEXT, glyph="v"),
    "draft": Look("#A9D8F5", glyph="D"),
    "upload": Look("#8FD3BF", glyph="U"),
    "recv": Look("#BDE5DA", glyph="R"),
    "select": Look("#7A5195", WHITE_TEXT, glyph="K"),
    "copy beams": Look("#8CCFB4", glyph="c"),
    "half a": Look("#CDBEEE", glyph="A"),
    "half b": Look("#5B4B9A", WHITE_TEXT, glyph="B"),
    "send": Look("#97624A", WHITE_TEXT, glyph="n"),
    "transfer": Look("#A67C00", glyph="T"),
}
SHARES = {  # a step's share for one request
    "waiting": Look("", glyph="∙"),
    "prompt": Look("#44AA99", glyph="█"),
    "again": Look("#BFE3DC", texture="stripes", glyph="▒"),
    "decode": Look("#882255", WHITE_TEXT, glyph="▓"),
    "wasted": Look("", texture="cross", glyph="╳"),
}
# A step's colour, in turn: with four stages, five steps are in flight at one moment.
STEPS = {
    f"step {number}": Look(fill, glyph=glyph)
    for number, (fill, glyph) in enumerate(
        zip((ORANGE, SKY, GREEN, PURPLE, YELLOW), "█▒▓░▚", strict=True)
    )
}
OWNERS = (  # of requests, in rotation; their names stand next to them, and no phase has these
    ("#AFC69F", DARK_TEXT), ("#3C3CDD", WHITE_TEXT), ("#DD7C3C", DARK_TEXT),
    ("#235C45", WHITE_TEXT), ("#13496C", WHITE_TEXT), ("#6C2513", WHITE_TEXT),
)  # fmt: skip
LOOKS = {
    **PHASES,
    **SHARES,
    **STEPS,
    **{f"owner {at}": Look(*both, glyph="abcdef"[at]) for at, both in enumerate(OWNERS)},
    "other": Look("#D2D6DB", glyph="?"),  # a phase or an op that later designs add
    "bubble": Look("", texture="hatch", glyph="╱"),
    "waited": Look("", texture="hatch", glyph="╳"),
    # a token on its way
    "promised": Look("#A9D8F3", texture="stripes", glyph="░"),
    "stored": Look("#0072B2", WHITE_TEXT, "", "●"),
    "unread": Look("#8DBBE0", glyph="◐"),
    "resolved": Look("#D6E8F5", glyph="▷"),
    "stale": Look("", texture="dots", glyph="·"),
    # memory
    "admitted": Look("#4F4AA3", WHITE_TEXT, "", "■"),
    "protected": Look("#9B97DA", glyph="▣"),
    "evictable": Look("#D9D7F3", glyph="□"),
    "sending": Look("#A9A5DD", texture="stripes", glyph="▤"),
    "evicted": Look("", texture="cross", glyph="✗"),
    # budgets and queues
    "left": Look("#C5CCD4", glyph="▁"),
    "spent": Look("#E9ECF0", texture="stripes", glyph="▆"),
    "lacking": Look("", glyph="!"),
    "room": Look("#F6F7F9", glyph=" "),  # a bar, filled up to the used part
    "queued": Look("", glyph="─"),
    "popped": Look("#E3E6EA", glyph="▪"),
    "ready": Look("#D5CDB4", glyph="═"),
    # a choice compared with another one (ColorBrewer's BrBG)
    "loses much": Look("#8C510A", WHITE_TEXT, "", "▼"),
    "loses": Look("#E3BE73", DARK_TEXT, "", "▽"),
    "ties": Look("#E6E6E6", DARK_TEXT, "", "="),
    "wins": Look("#C7EAE5", DARK_TEXT, "", "△"),
    "wins more": Look("#5AB4AC", DARK_TEXT, "", "▲"),
    "wins much": Look("#01665E", WHITE_TEXT, "", "█"),
}
SIGNS = {  # kinds that take no time: their shape around the middle, and their glyph in a text
    "flag": ("m-4 -6h8l-4 6z", "▼"),
    "flag-head": ("m-6 -5h12l-6 9z", "▼"),
    "read": ("m0 -5l8 5l-8 5z", "▶"),
    "written": ("m-5 -4h10l-5 8z", "▽"),
    "evict": ("m-4 -4l8 8m0 -8l-8 8", "╳"),
    "end": ("m0 -8v16", "┃"),
}
PALE = {  # the fills of looks without one, for forms that have no texture
    "bubble": "#FBEAE0", "waited": "#E9E4F8", "wait": "#ECEEF1", "waiting": "#ECEEF1",
    "wasted": "#FBEAE0", "evicted": "#FBEAE0", "stale": "#F3F5F7", "queued": "#D9DEE4",
    "lacking": "#FFFFFF",
}  # fmt: skip
ON_DARK = {  # pale secondary looks, dark on dark paper because they would stand out there
    "other": "#454E58", "left": "#55606C", "spent": "#2A313A", "room": "#1C232B",
    "popped": "#3D4651", "evictable": "#302D57",
}  # fmt: skip
ARROWS = {  # the meaning of each kind of edge
    "launch": "launch to run",
    "copy": "run to copy",
    "result": "copy to process",
    "token": "token to next step",
    "stay": "token to the same row of the next step",
    "wrong": "a wrong token, from where it came",
    "upload": "prompt to token pool",
    "recv": "stage to stage",
    "transfer": "KV to the decode side",
}

COLOURS = {  # plain ink, and the edges by kind, on light and on dark paper
    "paper": ("#FFFFFF", "#0D1117"),
    "ink": ("#1F2328", "#E6EDF3"),
    "faint": ("#59636E", "#9DA7B1"),  # second-rank text
    "grid": ("#D9DEE4", "#30363D"),
    "lane": ("#F3F5F7", "#161C24"),  # the background of a lane
    "bubble": ("#B8480A", "#F08A4B"),  # the hatching of device idle time
    "waited": ("#4B3690", "#B9A9F5"),  # the cost of a wait
    "launch": ("#1F2328", "#E6EDF3"),
    "copy": ("#00704F", "#2BC79A"),
    "result": ("#A8447B", "#E58DBE"),
    "token": ("#00558A", "#6CC0F0"),
    "stay": ("#AFB8C1", "#5A6470"),
    "wrong": ("#B3261E", "#FF8A7A"),
    "upload": ("#8A5A00", "#F0B94A"),
    "recv": ("#5B4B9A", "#B5A6F0"),
    "transfer": ("#8A5A00", "#F0B94A"),
    **{kind: (LOOKS[kind].fill, dark) for kind, dark in ON_DARK.items()},
}
LIGHT, DARK = ({name: pair[at] for name, pair in COLOURS.items()} for at in (0, 1))
OVER = ("outline", "ghost", "said", "deed", "span")  # kinds around the others
MARK = "!"  # the character of a text for an outline


def look(kind: str) -> Look:
    """Return the look of a kind; an unknown phase or op has that of ``other``."""
    return LOOKS.get(kind, LOOKS["other"])


def glyph(kind: str) -> str:
    """Return the sign of a kind in a text."""
    if kind == "outline":
        return MARK
    return SIGNS[kind][1] if kind in SIGNS else look(kind).glyph


def css(kind: str) -> str:
    """Return the class of a kind in an SVG, without the space that would make it two."""
    return kind.replace(" ", "-")


def flat(kind: str) -> str:
    """Return the colour of a kind for forms without textures."""
    return look(kind).fill or PALE.get(kind, "#FFFFFF")
