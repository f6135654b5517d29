"""A PlantUML timing diagram: how much of each, and where the device idles.

Times are decimal numbers counted from the start of the view, in milliseconds, or in a smaller unit
where the view is short: PlantUML wants a whole number of them from tick to tick. Slices are drawn
as rectangles (``rectangle`` lanes, PlantUML 1.2025 or newer), because ``concise`` lanes turn short
ones into hourglasses. Arrows carry no text, which would collide with the names of the lanes.
"""

from __future__ import annotations

from ..checks.overlap import measure
from ..trace import Trace
from .layout import FORWARD, Box, Lane, View
from .palette import LIGHT, paint
from .puml_style import arrow_colour, choose_view, creole, legend, written
from .units import MICROSECOND, MILLISECOND, NANOSECOND, exact, ms, tick_step

WIDTH = 1000  # pixels of the time axis
UNITS = {"milliseconds": MILLISECOND, "microseconds": MICROSECOND, "nanoseconds": NANOSECOND}


def to_timing(
    trace: Trace, first_step: int | None = None, last_step: int | None = None, title: str = ""
) -> str:
    """The diagram's text; three settled steps unless told which.

    Raises:
        ValueError: the run has no such steps.
    """
    view = choose_view(trace, first_step, last_step, count=3)
    tick = _tick(view)
    return "\n".join(
        [
            "@startuml",
            STYLE,
            f"title {_title(view, title)}",
            f"caption time in {_unit(view)}",
            f"scale {_at(view, tick)} as {max(1, round(tick * _scale(view)))} pixels",
            *(f'rectangle "{creole(lane.title)}" as {lane.key}' for lane in view.lanes),
            *_states(view),
            *_bubbles(view),
            *_arrows(view),
            *legend(view),
            "@enduml",
            "",
        ]
    )


STYLE = f"""<style>
legend {{
  BackgroundColor {LIGHT.background}
  LineColor {LIGHT.grid}
}}
timingDiagram {{
  FontSize 11
  FontColor {LIGHT.ink}
  LineColor {LIGHT.faint_ink}
  arrow {{ LineThickness 1 }}
  constraintArrow {{
    LineColor {LIGHT.bubble}
    FontColor {LIGHT.bubble}
  }}
  rectangle {{
    FontSize 11
    LineColor #FFFFFF
  }}
}}
</style>"""


def _title(view: View, title: str) -> str:
    report = measure(view.trace)
    return (
        f"{creole(title or view.trace.loop)}\\n"
        f"steps {view.first_step} to {view.last_step} of {report.steps}, "
        f"device busy {report.device_busy_percent:.0f} % of the run"
    )


def _scale(view: View) -> float:
    """Pixels a nanosecond."""
    return WIDTH / max(1, view.duration)


def _tick(view: View) -> int:
    return tick_step(max(1, view.duration), most=14)


def _unit(view: View) -> str:
    """The largest unit of which a tick is a whole number."""
    return next(name for name, unit in UNITS.items() if _tick(view) % unit == 0)


def _at(view: View, time: int) -> str:
    """A time since the view's start, as the diagram writes it."""
    return exact(time, UNITS[_unit(view)])


def _states(view: View) -> list[str]:
    """What each lane shows from when on, grouped by moment."""
    changes: dict[int, list[str]] = {}
    for lane in view.lanes:
        free_at = 0
        for box in view.on(lane):
            start, end = view.clip(box.slice.start, box.slice.end)
            if start == end:
                continue
            if start > free_at:
                changes.setdefault(free_at, []).append(f"{lane.key} is {{-}}")
            changes.setdefault(start, []).append(_state(lane, box, (end - start) * _scale(view)))
            free_at = end
        changes.setdefault(free_at, []).append(f"{lane.key} is {{-}}")
    return [line for time in sorted(changes) for line in (f"@{_at(view, time)}", *changes[time])]


def _state(lane: Lane, box: Box, width: float) -> str:
    fits = (text for text in (box.label, str(box.step or " ")) if len(text) * 7 + 4 <= width)
    colours = paint(box.slice.name)
    return f'{lane.key} is "{written(next(fits, " "), colours)}" {colours.fill}'


def _bubbles(view: View) -> list[str]:
    """Where the device idles, in words where there is room for them."""
    lines = []
    for bubble in view.bubbles:
        start, end = view.clip(*bubble)
        span, text = (_at(view, start), _at(view, end)), f"idle {ms(bubble[1] - bubble[0])} ms"
        colours = f"#FCE9DF;line:{LIGHT.bubble.removeprefix('#')}"
        lines.append(f"highlight {span[0]} to {span[1]} {colours}")
        if len(text) * 6 < (end - start) * _scale(view):
            lines.append(f"{FORWARD.key}@{span[0]} <-> @{span[1]} : {text}")
    return lines


def _arrows(view: View) -> list[str]:
    lines = []
    for arrow in view.arrows:
        start, end = (_at(view, view.clip(time, time)[0]) for time in (arrow.start, arrow.end))
        colour = arrow_colour(arrow.kind)
        lines.append(f"{arrow.src.lane.key}@{start} -[{colour}]> {arrow.dst.lane.key}@{end}")
    return lines
