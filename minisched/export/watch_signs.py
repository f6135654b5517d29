"""What the signs of ``minisched watch`` mean, as far as they occur in a run."""

from __future__ import annotations

from collections.abc import Iterable

from .layout import View
from .letters import letters_of
from .state import Panel
from .state.leases import ZOMBIE
from .text import BUBBLE

GLYPHS = {"admitted": "█", "sending": "▒", "wasted": "╳", "protected": "▓", "evictable": "░",
          "promised": "▒", "stored": "█", "stale": "-", "queued": "─"}  # fmt: skip
FREE = "·"
SAID = {  # panel -> its signs in words, in the order of a thing's life
    "pages": {"admitted": "a request's page", "protected": "cached, locked",
              "evictable": "cached, evictable"},
    "tree": {"protected": "locked node", "evictable": "evictable node"},
}  # fmt: skip


def lane_signs(view: View) -> str:
    """The letters of phases and ops; a number is that of a step."""
    names = [box.slice.name for box in view.boxes if box.slice.duration]
    letters = letters_of(names).replace("\N{NO-BREAK SPACE}", " ").replace("   ", ", ")
    return f"lanes: {letters}, {BUBBLE} idle, 12 a step"


def state_signs(panels: Iterable[Panel]) -> str:
    """The signs of maps and trees that occur, and what a zombie is."""
    there: dict[str, set[str]] = {}
    for panel in panels:
        there.setdefault(panel.name, set()).update(stay.kind for stay in panel.stays)
    said: dict[str, str] = {}
    for name, words in SAID.items():
        for kind, text in words.items():
            if kind in there.get(name, ()):
                said.setdefault(GLYPHS[kind], text)
    signs = [f"{glyph} {text}" for glyph, text in said.items()]
    if any("wasted" in kinds for kinds in there.values()):
        signs.append(f"{GLYPHS['wasted']} a zombie's, which {ZOMBIE}")
    return "state: " + ", ".join([f"{FREE} free", *signs])
