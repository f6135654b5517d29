"""What every kind of thing looks like, in every form: one table, one colour one meaning.

Colours are Okabe and Ito's for who does what (the host is warm, the device cold), and Paul Tol's
muted ones for what requests have. Blue is a token wherever it goes, indigo memory that somebody
holds, grey a budget. Whatever is lost or idle lets the paper show through, hatched.
"""

from __future__ import annotations

from dataclasses import dataclass

from .palette import ARROWS, OTHER, PAINTS, SHARES

DARK_TEXT, WHITE_TEXT = "#1A1A1A", "#FFFFFF"


@dataclass(frozen=True)
class Look:
    """A kind of box. ``fill`` empty: the paper shows through and the border is dashed.

    ``glyph`` is the sign in a text: phases and ops have a letter, the host's small.
    """

    fill: str
    text: str = DARK_TEXT
    texture: str = ""  # stripes, dots, cross or hatch
    glyph: str = "█"


LETTERS = {
    "schedule": "s", "prepare": "p", "fill": "f", "mask": "m", "launch": "l",
    "launch sample": "a", "verify": "v", "wait": "·", "postprocess": "t", "process": "x",
    "output": "o", "send": "n", "receive": "r", "advance step": "e",
    "forward": "F", "sample": "S", "copy": "C", "recv": "R", "transfer": "T", "upload": "U",
    "draft": "D",
}  # fmt: skip
LOOKS = {
    **{name: Look(paint.fill, paint.text, "", LETTERS[name]) for name, paint in PAINTS.items()},
    "wait": Look("", "", "", "·"),
    "other": Look(OTHER.fill, OTHER.text, "", "?"),
    "bubble": Look("", texture="hatch", glyph="╱"),
    "waited": Look("", texture="hatch", glyph="╳"),
    # what a step computes
    "waiting": Look(SHARES["waiting"].fill, SHARES["waiting"].text, "", "∙"),
    "prompt": Look(SHARES["prompt"].fill, SHARES["prompt"].text, "", "█"),
    "decode": Look(SHARES["decode"].fill, SHARES["decode"].text, "", "▓"),
    "again": Look(SHARES["again"].fill, SHARES["again"].text, "stripes", "▒"),
    "wasted": Look("", texture="cross", glyph="╳"),
    # a token on its way
    "promised": Look("#A9D8F3", texture="stripes", glyph="░"),
    "stored": Look("#0072B2", WHITE_TEXT, "", "●"),
    "unread": Look("#8DBBE0", glyph="◐"),
    "stale": Look("", texture="dots", glyph="·"),
    # memory
    "admitted": Look("#4F4AA3", WHITE_TEXT, "", "■"),
    "protected": Look("#9B97DA", glyph="▣"),
    "evictable": Look("#D9D7F3", texture="dots", glyph="□"),
    "sending": Look("#A9A5DD", texture="stripes", glyph="▤"),
    "evicted": Look("", texture="cross", glyph="✗"),
    # budgets and queues
    "left": Look("#E3E6EA", glyph="▁"),
    "spent": Look("#C3CAD2", texture="stripes", glyph="▆"),
    "lacking": Look("", glyph="!"),
    "room": Look("#F6F7F9", glyph=" "),  # that is filled as far as it is used
    "queued": Look("", glyph="─"),
    "popped": Look("#E3E6EA", glyph="▪"),
    "ready": Look("#D5CDB4", glyph="═"),
    # how a choice does beside another one (ColorBrewer's BrBG), and amounts, pale to dark
    "loses much": Look("#8C510A", WHITE_TEXT, "", "▼"),
    "loses": Look("#E3BE73", DARK_TEXT, "", "▽"),
    "ties": Look("#E6E6E6", DARK_TEXT, "", "="),
    "wins": Look("#C7EAE5", DARK_TEXT, "", "△"),
    "wins more": Look("#5AB4AC", DARK_TEXT, "", "▲"),
    "wins much": Look("#01665E", WHITE_TEXT, "", "█"),
    "least": Look("#F2F0F7", DARK_TEXT, "", " "),
    "low": Look("#CBC9E2", DARK_TEXT, "", "░"),
    "middle": Look("#9E9AC8", DARK_TEXT, "", "▒"),
    "high": Look("#6A51A3", WHITE_TEXT, "", "▓"),
    "most": Look("#3F007D", WHITE_TEXT, "", "█"),
}
SIGNS = {  # kinds that take no time, around their middle; and their glyph in a text
    "flag": ("m-4 -6h8l-4 6z", "▼"),
    "flag-head": ("m-6 -5h12l-6 9z", "▼"),
    "read": ("m0 -5l5 5l-5 5l-5 -5z", "◆"),
    "evict": ("m-4 -4l8 8m0 -8l-8 8", "╳"),
    "limit": ("m-9 0h18", "┃"),
    "end": ("m0 -8v16", "┃"),
}
PALE = {  # the fills of looks through which the paper shows, where a form has no texture
    "bubble": "#FBEAE0", "waited": "#E9E4F8", "wait": "#ECEEF1", "wasted": "#FBEAE0",
    "evicted": "#FBEAE0", "stale": "#F3F5F7", "queued": "#D9DEE4", "lacking": "#FFFFFF",
}  # fmt: skip
UNDER = ("both",)  # kinds behind all others; not in a text
OVER = ("outline", "ghost", "said")  # around or below what else is there
MARK = "!"  # what a text writes over what is outlined
LINKS = (*ARROWS, "link", "missing")
MORE = (
    "both",
    *OVER,
    "begin",
    "line",
    "span",
    "saved",
    "changed",
    "wall",
)  # drawn in ways of their own


def look(kind: str) -> Look:
    """The look of a kind; a phase or an op that later designs add has that of ``other``."""
    return LOOKS.get(kind, LOOKS["other"])


def glyph(kind: str) -> str:
    """The sign of a kind in a text."""
    if kind == "outline":
        return MARK
    return SIGNS[kind][1] if kind in SIGNS else look(kind).glyph


def css(kind: str) -> str:
    """The class of a kind in an SVG; a space would make it two."""
    is_known = kind in LOOKS or kind in SIGNS or kind in LINKS or kind in MORE
    return kind.replace(" ", "-") if is_known else "other"


def flat(kind: str) -> str:
    """The colour of a kind where a form has no texture."""
    return look(kind).fill or PALE.get(kind, "#FFFFFF")
