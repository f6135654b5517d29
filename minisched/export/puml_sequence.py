"""A PlantUML sequence diagram: why, and in what order. Time runs down, not to scale.

What runs at the same time stands in the same row (``!pragma teoz true``), and a divider marks the
moment at which the device starts a step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ..checks.overlap import measure, union
from ..loops.mini import upload
from ..loops.pd import PrefillEngine
from ..loops.vllm_pp import recv_tensors
from ..trace import Trace
from ..trace.events import is_forward
from ..worker import Worker
from ..worker.worker import copy
from .layout import Arrow, Box, Lane, View, boxes_of, in_order, says
from .palette import paint
from .puml_style import LINK_STYLE, Code, arrow_colour, choose_view, creole, linked, written
from .units import busy_of_run, ms

HEADS = {"launch": ("-", ">>"), "result": ("-", "->")}  # around the colour
CODE: Code = {
    "launch": Worker.launch,
    "copy": copy,
    "upload": upload,
    "recv": recv_tensors,
    "send": PrefillEngine.send_kv_chunk,
}


def to_sequence(
    trace: Trace,
    first_step: int | None = None,
    last_step: int | None = None,
    title: str = "",
    has_links: bool = False,
) -> str:
    """The diagram's text; two settled steps unless told which.

    With ``has_links`` its arrows lead to the code, if it lies in the repository's ``diagrams/``.

    Raises:
        ValueError: the run has no such steps.
    """
    view = choose_view(trace, first_step, last_step, count=2)
    code = CODE if has_links else {}
    return "\n".join(
        [
            "@startuml",
            "!pragma teoz true",
            f"title {creole(title or trace.loop)}\\n{_about(view)}",
            "hide footbox",
            "skinparam sequenceMessageAlign center",
            "skinparam defaultFontSize 12",
            *(LINK_STYLE if code else ()),
            *_participants(view),
            *_body(view, code),
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
        f"{ms(view.duration)} ms, {busy_of_run(report)}"
    )


def _participants(view: View) -> Iterator[str]:
    for side, colour in (("host", "#FFF8EC"), ("device", "#EEF6FC")):
        yield f"box {side.capitalize()} {colour}"
        for lane in view.lanes:
            if lane.side == side:
                yield f'participant "{creole(lane.name)}" as {lane.key}'
        yield "end box"


def _body(view: View, code: Code) -> Iterator[str]:
    """The rows, and on each forward lane's life line a bar for as long as it is busy."""
    ends = {
        lane: [end for _, end in union(box.slice for box in boxes)]
        for lane, boxes in _forwards(view).items()
    }
    leaving = _leaving(view)
    until: dict[Lane, int] = {}  # the lanes that have a bar, and where it ends
    for row in rows(view):
        for lane in [lane for lane, end in until.items() if row[0].slice.start >= end]:
            yield f"deactivate {lane.key}"
            del until[lane]
        yield from _dividers(row, list(ends))
        for box in row:
            if box.lane in ends and box.lane not in until and box.slice.duration:
                later = bisect_right(ends[box.lane], box.slice.start)
                until[box.lane] = ends[box.lane][later]
                yield f"activate {box.lane.key} {paint('forward').fill}"
        yield from _row(leaving, row, code)
    yield from (f"deactivate {lane.key}" for lane in until)


def _forwards(view: View) -> dict[Lane, list[Box]]:
    """What lies on the lanes on which forward passes run; the first lane is where a step begins."""
    boxes: dict[Lane, list[Box]] = {}
    for box in boxes_of(view.trace):
        if is_forward(box.slice.lane):
            boxes.setdefault(box.lane, []).append(box)
    return {lane: boxes[lane] for lane in in_order(boxes)}


def _dividers(row: list[Box], forwards: list[Lane]) -> Iterator[str]:
    """A line where a step begins on the first device."""
    who = "device" if len(forwards) == 1 else creole(forwards[0].name) if forwards else ""
    for box in row:
        if box.slice.name == "forward" and box.lane == forwards[0]:
            yield f"== {who} starts step {box.step} =="


def _leaving(view: View) -> Mapping[int, Sequence[tuple[int, Arrow]]]:
    """By the id of each slice, the arrows that leave it, numbered in their order."""
    leaving: dict[int, list[tuple[int, Arrow]]] = defaultdict(list)
    for at, arrow in enumerate(view.arrows):
        leaving[arrow.src.slice.id].append((at, arrow))
    return leaving


def _row(
    leaving: Mapping[int, Sequence[tuple[int, Arrow]]], row: list[Box], code: Code
) -> Iterator[str]:
    """The notes of a row, and the arrows that leave from them."""
    joined = ""
    for box in row:
        if box.slice.duration > 0:
            colours = paint(box.slice.name)
            lines = (box.label, f"{ms(box.slice.duration)} ms")
            about = "\\n".join(written(line, colours) for line in lines)
            yield f"{joined}rnote over {box.lane.key} {colours.fill} : {about}"
            joined = "& "
    arrows = [item for box in row for item in leaving.get(box.slice.id, ())]
    yield from (_arrow(arrow, code) for _, arrow in sorted(arrows, key=lambda item: item[0]))


def _arrow(arrow: Arrow, code: Code) -> str:
    tail, head = HEADS.get(arrow.kind, ("-", ">"))
    colour = arrow_colour(arrow.brings)
    is_sent = arrow.src.slice.name == "send"
    text = linked(creole(f"send {arrow.dst.step}" if is_sent else says(arrow)), code)
    return f"{arrow.src.lane.key} {tail}[{colour}]{head} {arrow.dst.lane.key} : {text}"
