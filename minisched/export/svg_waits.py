"""How a wait looks in the SVG: a flag where the loop decided it, hatching over what it cost.

The rules stand in a picture only where something waits.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from ..checks.causes import waits
from ..trace import Mark
from .layout import View
from .palette import WAITED
from .svg_run import Frame
from .units import ms

FLAG = "l-4 -6h8z"  # a triangle that stands on its tip


def has_waits(views: list[View]) -> bool:
    """Whether anything to be seen waits."""
    return any(waits_of(view) or reasons_of(view) for view in views)


def waits_of(view: View) -> list[Mark]:
    """The waits that were decided in the time shown."""
    return [mark for mark in waits(view.trace) if view.start <= mark.time <= view.end]


def reasons_of(view: View) -> list[str]:
    """What devices have waited for in the time shown, each reason once."""
    return list(dict.fromkeys(bubble.reason for bubble in view.bubbles if bubble.reason))


def wait_style() -> str:
    """The colours of waits, for light and for dark paper."""
    return (
        f"<style>\n{wait_variable()}\n"
        ".waited { fill: url(#hatch-waited); stroke: var(--waited) }\n"
        ".waited-for { fill: var(--waited); font-size: 11px; font-weight: 650 }\n"
        ".flag { fill: var(--waited) } .hatch-waited { stroke: var(--waited); stroke-width: 1.8 }\n"
        "</style>\n"
        '<defs><pattern id="hatch-waited" width="5" height="5" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(-45)"><rect width="5" height="5" class="halo"/>'
        '<line x1="0" y1="0" x2="0" y2="5" class="hatch-waited"/></pattern></defs>'
    )


def wait_variable() -> str:
    """The colour as a CSS variable, for light and for dark."""
    light, dark = WAITED
    return (
        f":root {{ --waited: {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ --waited: {dark} }} }}"
    )


def draw_flags(frame: Frame) -> list[str]:
    """A flag above the host's lane for each wait, at the moment of the decision."""
    return [_flag(frame, mark) for mark in waits_of(frame.view)]


def _flag(frame: Frame, mark: Mark) -> str:
    side, lanes = str(mark.attrs.get("side", "")).capitalize(), frame.view.lanes
    hosts = (lane for lane in lanes if lane.side == "host" and lane.name.startswith(side))
    y = frame.y(next(hosts, lanes[0])) - 1
    return (
        f'<path class="flag" data-mark="wait" d="M{frame.x(mark.time):.1f} {y:.1f}{FLAG}">'
        f"<title>{escape(about(mark))} at {ms(mark.time)} ms</title></path>"
    )


def about(mark: Mark) -> str:
    """A wait in words: ``sample 5 waits for grammar``."""
    return "{op} {step} waits for {reason}".format(**mark.attrs)
