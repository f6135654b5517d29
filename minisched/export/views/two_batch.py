"""Two-batch overlap by half: the all-to-alls of one half run while the other half computes."""

from __future__ import annotations

from dataclasses import replace

from ...checks.overlap import intersection, length, union
from ...trace import Trace
from ...trace.events import ALL_TO_ALL, is_copy, is_forward, is_host
from ..layout import shown
from ..runs import side_by_side
from ..scene import LaneItem, LaneLink, Lanes, Scene
from ..units import brief_ms, ms
from .marks import NothingToShow

ASIDE = 200_000  # nanoseconds between an arrow's end and the end of its part
WHOLE = "both halves"  # the words on a part of the whole batch
LEGEND = {"forward": WHOLE, "arrow recv": "a half's part, its all-to-all, its next part"}


def scene(trace: Trace) -> Scene:
    """Draw the streams of the device in a settled step.

    Raises:
        NothingToShow: no step was split.
    """
    view = shown(trace, 1)
    if not (sent := union(item for item in view.slices if item.lane == ALL_TO_ALL)):
        raise NothingToShow("no step of the trace has an all-to-all.")
    lanes = tuple(lane for lane in view.lanes if not is_host(lane) and not is_copy(lane))
    view = replace(
        view, lanes=lanes, slices=tuple(item for item in view.slices if item.lane in lanes),
        arrows=tuple(arrow for arrow in view.arrows if arrow.kind == "recv"),
    )  # fmt: skip
    hidden = length(intersection(sent, union(it for it in view.slices if is_forward(it.lane))))
    share = "All" if hidden == length(sent) else f"{ms(hidden)} of"
    share += f" {ms(length(sent))} ms of all-to-all run"
    scene = side_by_side([view], f"{share} while the other half computes")
    (part,) = scene.parts
    (drawn,) = part.shows
    assert isinstance(drawn, Lanes)
    rows = [replace(row, note="", spans=[*map(timed, row.spans)]) for row in drawn.rows]
    to, at = (lanes.index(lane) for lane in ("forward", ALL_TO_ALL))
    back = [
        LaneLink("recv", (at, item.end - ASIDE), (to, after.start + ASIDE))
        for item in rows[at].spans
        for after in rows[to].spans
        if after.kind == item.kind and 0 <= after.start - item.end < item.duration
    ]
    part = replace(part, shows=[replace(drawn, rows=rows, links=[*drawn.links, *back])])
    return replace(scene, legend={**scene.legend, **LEGEND}, parts=[part])


def timed(item: LaneItem) -> LaneItem:
    """Return a part of a step with its name and its time."""
    name = WHOLE if item.kind == "forward" else item.kind
    return replace(item, label=f"{name}, {brief_ms(item.duration)}", brief=name)
