"""What both PlantUML exporters share: the view, escaping, the legend."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..trace import Trace
from .layout import View, steady_steps, view_of_steps, whole_run
from .palette import ARROW_COLOURS, ARROWS, LIGHT, PAINTS, SHARES, Paint, paint
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


BUBBLE = Paint("#FCE9DF", "#8A3B00")  # where a device idles
WAIT = Paint("#DDD5F5", "#33206E")  # where it idles because of a wait


def choose_view(trace: Trace, first_step: int | None, last_step: int | None, count: int) -> View:
    """The steps asked for; without any, ``count`` settled ones, or the whole run if it has fewer.

    Raises:
        ValueError: the run has no such steps.
    """
    if first_step is None and last_step is None:
        steps = steady_steps(trace, count)
        return view_of_steps(trace, *steps) if steps else whole_run(trace)
    first = first_step if first_step is not None else last_step
    last = last_step if last_step is not None else first_step
    assert first is not None and last is not None
    return view_of_steps(trace, first, last)


def creole(text: str) -> str:
    """Text without what PlantUML would read as markup, or as the end of a string."""
    return MARKUP.sub(lambda found: "".join(f"<U+{ord(c):04X}>" for c in found[0]), text)


MARKUP = re.compile(r'["\\~<>\n]|([*/_-])\1+')


def written(text: str, paint: Paint) -> str:
    """Text in the colour that is legible on a fill."""
    dark = paint.text == Paint("").text
    return creole(text) if dark else f"<color:{paint.text}>{creole(text)}</color>"


def arrow_colour(kind: str) -> str:
    """The colour of an edge."""
    return ARROW_COLOURS.get(kind, (LIGHT.ink, ""))[0]


def legend(views: Sequence[View]) -> list[str]:
    """What the colours of boxes and arrows mean, as far as they occur."""
    boxes = [box for view in views for box in view.boxes if box.slice.duration]
    arrows = [arrow for view in views for arrow in view.arrows]
    seen = {box.slice.name for box in boxes}
    kinds = {arrow.brings for arrow in arrows if arrow.start < arrow.end or not arrow.is_level}
    known = [*PAINTS, *SHARES]
    names = [name for name in known if name in seen] + sorted(seen.difference(known))
    paints = [(name, paint(name)) for name in names]
    bubbles = [bubble for view in views for bubble in view.bubbles]
    if not all(bubble.reason for bubble in bubbles):
        paints.append(("the device idles", BUBBLE))
    if reasons := dict.fromkeys(bubble.reason for bubble in bubbles if bubble.reason):
        paints.append((f"the device waits for {', '.join(reasons)}", WAIT))
    cells = [f"<{colours.fill}> {written(name, colours)} " for name, colours in paints]
    lines = ["legend", "|" + "|".join(cells) + "|"]
    texts = [
        f"<color:{arrow_colour(kind)}>**<U+2192>** {text}</color>"
        for kind, text in ARROWS.items()
        if kind in kinds
    ]
    return [*lines, "   ".join(texts), "end legend"] if texts else [*lines, "end legend"]
