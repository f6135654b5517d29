"""A PlantUML sequence diagram: why, and in what order. Time runs down, not to scale.

What runs at the same time stands in the same row (``!pragma teoz true``), and a divider marks the
moment at which the device starts a step.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..checks.overlap import device_busy, measure
from ..trace import Trace
from .layout import FORWARD, Arrow, Box, View
from .palette import paint
from .puml_style import arrow_colour, choose_view, creole, written
from .units import ms

HEADS = {"launch": ("-", ">>"), "result": ("-", "->")}  # around the colour


def to_sequence(
    trace: Trace, first_step: int | None = None, last_step: int | None = None, title: str = ""
) -> str:
    """The diagram's text; two settled steps unless told which.

    Raises:
        ValueError: the run has no such steps.
    """
    view = choose_view(trace, first_step, last_step, count=2)
    return "\n".join(
        [
            "@startuml",
            "!pragma teoz true",
            f"title {creole(title or trace.loop)}\\n{_about(view)}",
            "hide footbox",
            "skinparam sequenceMessageAlign center",
            "skinparam defaultFontSize 12",
            *_participants(view),
            *_body(view),
            "@enduml",
            "",
        ]
    )


def rows(view: View) -> Iterator[list[Box]]:
    """Boxes in order of time; those that run at the same moment, on different lanes, together."""
    linked = {(arrow.src.slice.id, arrow.dst.slice.id) for arrow in view.arrows}
    row: list[Box] = []
    for box in view.boxes:
        together = row and all(
            box.slice.start < other.slice.end
            and box.lane != other.lane
            and (other.slice.id, box.slice.id) not in linked
            for other in row
        )
        if row and not together:
            yield row
            row = []
        row.append(box)
    if row:
        yield row


def _about(view: View) -> str:
    report = measure(view.trace)
    return (
        f"steps {view.first_step} to {view.last_step} of {report.steps}, "
        f"{ms(view.duration)} ms, device busy {report.device_busy_percent:.0f} % of the run"
    )


def _participants(view: View) -> Iterator[str]:
    for side, colour in (("host", "#FFF8EC"), ("device", "#EEF6FC")):
        yield f"box {side.capitalize()} {colour}"
        for lane in view.lanes:
            if lane.side == side:
                yield f'participant "{creole(lane.name)}" as {lane.key}'
        yield "end box"


def _body(view: View) -> Iterator[str]:
    """The rows, and on the forward stream's life line a bar for as long as it is busy."""
    busy = device_busy(view.trace)
    busy_until = 0
    for row in rows(view):
        now = row[0].slice.start
        if busy_until and now >= busy_until:
            yield f"deactivate {FORWARD.key}"
            busy_until = 0
        yield from (
            f"== device starts step {box.step} ==" for box in row if box.slice.name == "forward"
        )
        begun = [box.slice.start for box in row if box.lane == FORWARD and box.slice.duration]
        if begun and not busy_until:
            busy_until = next(end for _, end in busy if end > begun[0])
            yield f"activate {FORWARD.key} {paint('forward').fill}"
        yield from _row(view, row)
    if busy_until:
        yield f"deactivate {FORWARD.key}"


def _row(view: View, row: list[Box]) -> Iterator[str]:
    """The notes of a row, and the arrows that leave from them."""
    joined = ""
    for box in row:
        if box.slice.duration > 0:
            colours = paint(box.slice.name)
            lines = (box.label, f"{ms(box.slice.duration)} ms")
            about = "\\n".join(written(line, colours) for line in lines)
            yield f"{joined}rnote over {box.lane.key} {colours.fill} : {about}"
            joined = "& "
    shown = {box.slice.id for box in row}
    yield from (_arrow(arrow) for arrow in view.arrows if arrow.src.slice.id in shown)


def _arrow(arrow: Arrow) -> str:
    tail, head = HEADS.get(arrow.kind, ("-", ">"))
    colour = arrow_colour(arrow.kind)
    texts = {"token": f"token for {arrow.dst.step}", "result": f"tokens of {arrow.src.step}"}
    text = texts.get(arrow.kind, f"{arrow.kind} {arrow.dst.step}")
    return f"{arrow.src.lane.key} {tail}[{colour}]{head} {arrow.dst.lane.key} : {creole(text)}"
