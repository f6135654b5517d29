"""Colours that colour-blind readers can tell apart, on light and on dark paper."""

from __future__ import annotations

from dataclasses import dataclass

# Okabe and Ito, "Color Universal Design" (2008).
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"


@dataclass(frozen=True)
class Paint:
    """A fill and the text on it, the same on light and dark paper."""

    fill: str
    text: str = "#1A1A1A"


# The host is warm, the device is cold. What belongs together has one hue: receiving is a pale
# schedule, output a pale process.
PAINTS = {
    "receive": Paint("#F6D799"),
    "schedule": Paint(ORANGE),
    "prepare": Paint(YELLOW),
    "launch": Paint("#8C5A2B", "#FFFFFF"),
    "process": Paint(PURPLE),
    "output": Paint("#EBC9DC"),
    "wait": Paint("#D8DCE1", "#3A3F45"),
    "forward": Paint(SKY),
    "sample": Paint(BLUE, "#FFFFFF"),
    "copy": Paint(GREEN),
    # What only some designs have, paler than what it belongs to.
    "advance step": Paint("#F8F3B8"),
    "fill": Paint("#E8CFA6"),
    "launch sample": Paint("#BD936A"),
    "postprocess": Paint("#DDAAC8"),
    "mask": Paint("#CDC85F"),
    "verify": Paint("#00476F", "#FFFFFF"),
    "draft": Paint("#A9D8F5"),
    "upload": Paint("#8FD3BF"),
    "recv": Paint("#BDE5DA"),
    "send": Paint("#97624A", "#FFFFFF"),
    "transfer": Paint("#4DB893"),
}
SHARES = {  # what a step did for one request
    "waiting": Paint("#ECEEF1", "#3A3F45"),
    "prompt": Paint("#44AA99"),
    "again": Paint("#BFE3DC"),
    "decode": Paint("#882255", "#FFFFFF"),
    "wasted": Paint("#B34700", "#FFFFFF"),
}
OWNERS = (  # of requests, by turns; their names stand beside them
    Paint(SKY), Paint(ORANGE), Paint(GREEN, "#FFFFFF"), Paint(PURPLE), Paint(BLUE, "#FFFFFF"),
    Paint(YELLOW), Paint("#B34700", "#FFFFFF"), Paint("#8C5A2B", "#FFFFFF"),
)  # fmt: skip
OTHER = Paint("#B4B9BF")  # a phase or an op that later designs add


@dataclass(frozen=True)
class Paper:
    """What is drawn on, and what is drawn in plain ink."""

    background: str
    ink: str
    faint_ink: str  # second-rank text
    grid: str
    lane: str  # behind the boxes of a lane
    gap: str  # the hairline between two boxes
    bubble: str  # hatching of device idle time


LIGHT = Paper("#FFFFFF", "#1F2328", "#59636E", "#D9DEE4", "#F3F5F7", "#FFFFFF", "#B8480A")
DARK = Paper("#0D1117", "#E6EDF3", "#9DA7B1", "#30363D", "#161C24", "#0D1117", "#F08A4B")

WAITED = ("#4B3690", "#B9A9F5")  # what a wait costs, on light and on dark paper

ARROWS = {  # what an edge's kind means
    "launch": "launch to run",
    "copy": "run to copy",
    "result": "copy to process",
    "token": "token to next step",
    "wrong": "a wrong token, from where it came",
    "upload": "prompt to token pool",
    "recv": "stage to stage",
    "transfer": "KV to the decode side",
}
ARROW_COLOURS = {  # on light and on dark paper
    "launch": (LIGHT.ink, DARK.ink),
    "copy": ("#00704F", "#2BC79A"),
    "result": ("#A8447B", "#E58DBE"),
    "token": ("#00558A", "#6CC0F0"),
    "wrong": ("#B3261E", "#FF8A7A"),
    "upload": ("#8A5A00", "#F0B94A"),
    "recv": ("#5B4B9A", "#B5A6F0"),
    "transfer": ("#8A5A00", "#F0B94A"),
}


def paint(name: str) -> Paint:
    """The colours of a phase, an op, or a request's share of a step."""
    return PAINTS.get(name) or SHARES.get(name, OTHER)
