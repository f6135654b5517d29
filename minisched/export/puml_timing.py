"""A PlantUML timing diagram: how much of each, and where the device idles; of one run or several.

Times are decimal numbers counted from the start of the view, in milliseconds, or in a smaller unit
where the view is short: PlantUML wants a whole number of them from tick to tick. Slices are drawn
as rectangles (``rectangle`` lanes, PlantUML 1.2025 or newer), because ``concise`` lanes turn short
ones into hourglasses. Arrows carry no text, which would collide with the names of the lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..checks.overlap import measure
from ..trace import Trace
from .layout import Box, IdleStretch, Lane, View
from .palette import LIGHT, paint
from .puml_style import BUBBLE, WAIT, Axis, arrow_colour, choose_view, creole, legend, written
from .units import busy_of_run, ms


@dataclass(frozen=True)
class RunPanel:
    """One run's lanes in a diagram. ``key`` goes before their names, ``title`` stands above them.

    The title's bar is as long as what is shown of the run.
    """

    view: View
    key: str = ""
    title: str = ""


def to_timing(
    trace: Trace, first_step: int | None = None, last_step: int | None = None, title: str = ""
) -> str:
    """The diagram's text; three settled steps unless told which.

    Raises:
        ValueError: the run has no such steps.
    """
    view = choose_view(trace, first_step, last_step, count=3)
    return draw_panels([RunPanel(view)], _title(view, title))


def draw_panels(panels: Sequence[RunPanel], title: str) -> str:
    """The text of a diagram of several runs, one above the other on one time axis.

    Every ``view`` begins at time 0; ``title`` is PlantUML text.
    """
    axis = Axis(max(1, *(panel.view.duration for panel in panels)))
    return "\n".join(
        [
            "@startuml",
            STYLE,
            f"title {title}",
            f"caption time in {axis.unit}",
            f"scale {axis.at(axis.tick)} as {max(1, round(axis.tick * axis.scale))} pixels",
            *(line for panel in panels for line in _lanes(panel)),
            *_states(panels, axis),
            *(line for panel in panels for line in _arrows(panel, axis)),
            *legend([panel.view for panel in panels]),
            "@enduml",
            "",
        ]
    )


FAINT = "66"  # the opacity of an arrow that runs along its lane, over what is written there
HEAD = "#E4E7EB"  # behind the title of a run
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
        f"steps {view.first_step} to {view.last_step} of {report.steps}, {busy_of_run(report)}"
    )


def _lanes(panel: RunPanel) -> list[str]:
    """What every lane is called; the panel's title is a lane of its own, above them."""
    head = [f'rectangle " " as {panel.key}run'] if panel.title else []
    lanes = panel.view.lanes
    return [
        *head,
        *(f'rectangle "{creole(lane.title)}" as {panel.key}{lane.key}' for lane in lanes),
    ]


def _states(panels: Sequence[RunPanel], axis: Axis) -> list[str]:
    """What each lane shows from when on, grouped by moment."""
    changes: dict[int, list[str]] = {}
    for panel in panels:
        if panel.title:
            changes.setdefault(0, []).append(f'{panel.key}run is "{creole(panel.title)}" {HEAD}')
            changes.setdefault(panel.view.duration, []).append(f"{panel.key}run is {{-}}")
        for lane in panel.view.lanes:
            _lane_states(panel, lane, axis, changes)
    return [line for time in sorted(changes) for line in (f"@{axis.at(time)}", *changes[time])]


def _lane_states(panel: RunPanel, lane: Lane, axis: Axis, changes: dict[int, list[str]]) -> None:
    """Add what one lane shows to ``changes``, by moment."""
    view, name, free_at = panel.view, f"{panel.key}{lane.key}", 0
    for start, end, item in _spans(view, lane):
        if start > free_at:
            changes.setdefault(free_at, []).append(f"{name} is {{-}}")
        width = (end - start) * axis.scale
        text = _bubble(item, width) if isinstance(item, IdleStretch) else _state(item, width)
        changes.setdefault(start, []).append(f"{name} is {text}")
        free_at = end
    changes.setdefault(free_at, []).append(f"{name} is {{-}}")


def _spans(view: View, lane: Lane) -> list[tuple[int, int, Box | IdleStretch]]:
    """What is to be seen on a lane: boxes and bubbles, with the part of each that is shown."""
    spans: list[tuple[int, int, Box | IdleStretch]] = []
    for box in view.on(lane):
        spans.append((*view.clip(box.slice.start, box.slice.end), box))
    for item in view.bubbles:
        if item.lane == lane:
            spans.append((*view.clip(item.start, item.end), item))
    return sorted((span for span in spans if span[0] < span[1]), key=lambda span: span[:2])


def _state(box: Box, width: float) -> str:
    fits = (text for text in (box.label, str(box.step or " ")) if len(text) * 7 + 4 <= width)
    colours = paint(box.slice.name)
    return f'"{written(next(fits, " "), colours)}" {colours.fill}'


def _bubble(bubble: IdleStretch, width: float) -> str:
    """Where a device idles, in words where there is room for them."""
    why, colours = (bubble.reason, WAIT) if bubble.reason else ("idle", BUBBLE)
    time = ms(bubble.end - bubble.start)
    texts = (f"waits for {why} {time} ms",) * (why != "idle") + (f"{why} {time} ms", why)
    fits = (text for text in texts if len(text) * 7 + 4 <= width)
    return f'"{written(next(fits, " "), colours)}" {colours.fill}'


def _arrows(panel: RunPanel, axis: Axis) -> list[str]:
    lines, view = [], panel.view
    for arrow in view.arrows:
        start, end = (axis.at(view.clip(time, time)[0]) for time in (arrow.start, arrow.end))
        src, dst = (f"{panel.key}{lane.key}" for lane in (arrow.src.lane, arrow.dst.lane))
        faint = FAINT if arrow.is_level else ""
        lines.append(f"{src}@{start} -[{arrow_colour(arrow.brings)}{faint}]> {dst}@{end}")
    return lines
