"""What all that writes PlantUML shares: its time axis, links to code, escaping, colours."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .looks import ARROW_COLOURS, DARK_TEXT, LIGHT, look
from .units import MICROSECOND, MILLISECOND, NANOSECOND, exact, tick_step

# -- The time axis of a PlantUML timing diagram ----------------------------------------------------

WIDTH = 860  # pixels
UNITS = {"milliseconds": MILLISECOND, "microseconds": MICROSECOND, "nanoseconds": NANOSECOND}


@dataclass(frozen=True)
class Axis:
    """The time axis, ``duration`` nanoseconds long."""

    duration: int

    @property
    def scale(self) -> float:
        """Pixels a nanosecond."""
        return WIDTH / self.duration

    @property
    def tick(self) -> int:
        """Nanoseconds from tick to tick."""
        return tick_step(self.duration, most=14)

    @property
    def unit(self) -> str:
        """The largest unit of which a tick is a whole number."""
        return next(name for name, unit in UNITS.items() if self.tick % unit == 0)

    def at(self, time: int) -> str:
        """A time since the view's start, as the diagram writes it."""
        return exact(time, UNITS[self.unit])


# -- Names of functions in a diagram as links to their code ----------------------------------------
#
# ``[[../minisched/engine/engine.py#Engine.chain chain()]]``: the file as it lies from
# ``diagrams/``, so that a code host and a browser find it, then the function. The function itself
# is given, and never its path, so that a link cannot outlive what it leads to.

Code = Mapping[str, Callable[..., Any]]  # a name in a diagram -> what of the package it means

LINK_COLOUR = "#0B57A4"
LINK_STYLE = (f"skinparam hyperlinkColor {LINK_COLOUR}", "skinparam hyperlinkUnderline false")


def address(function: Callable[..., Any]) -> str:
    """Where a function or a class of the package stands, seen from ``diagrams/``."""
    path = function.__module__.replace(".", "/")
    return f"../{path}.py#{function.__qualname__}"


def linked(text: str, code: Code) -> str:
    """PlantUML text in which every name of ``code`` is a link, with the ``()`` behind it if any."""
    if not code:
        return text
    names = "|".join(map(re.escape, sorted(code, key=len, reverse=True)))
    return re.sub(rf"\b({names})\b(\(\))?", lambda found: _link(found, code), text)


def _link(found: re.Match[str], code: Code) -> str:
    return f"[[{address(code[found[1]])} {found[0]}]]"


def creole(text: str) -> str:
    """Text without what PlantUML would read as markup, or as the end of a string."""
    return MARKUP.sub(lambda found: "".join(f"<U+{ord(c):04X}>" for c in found[0]), text)


MARKUP = re.compile(r'["\\~<>\n]|([*/_-])\1+')


def ink(kind: str, words: str) -> str:
    """Text in a look's colour, if that is not ink; ``words`` are escaped already."""
    is_light = look(kind).text != DARK_TEXT
    return f"<color:{look(kind).text}>{words}</color>" if is_light else words


def arrow_colour(kind: str) -> str:
    """The colour of an edge."""
    return ARROW_COLOURS.get(kind, (LIGHT.ink, ""))[0]
