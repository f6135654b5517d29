"""Two-batch overlap by half: the all-to-alls of one half run while the other half computes."""

from __future__ import annotations

from dataclasses import replace

from ...checks.overlap import intersection, length, union
from ...trace import Trace
from ...trace.events import ALL_TO_ALL, is_copy, is_forward, is_host
from ..layout import shown
from ..runs import side_by_side
from ..scene import Lanes, Scene
from ..units import ms
from .marks import NothingToShow

WORDS = {"half a": "a", "half b": "b", "forward": "both halves"}  # the words on a box


def scene(trace: Trace) -> Scene:
    """Draw the streams of the device in two settled steps.

    Raises:
        NothingToShow: no step was split.
    """
    view = shown(trace, 2)
    if not (sent := union(item for item in view.slices if item.lane == ALL_TO_ALL)):
        raise NothingToShow("no step of the trace has an all-to-all.")
    lanes = tuple(lane for lane in view.lanes if not is_host(lane) and not is_copy(lane))
    view = replace(
        view, lanes=lanes, slices=tuple(item for item in view.slices if item.lane in lanes),
        arrows=tuple(arrow for arrow in view.arrows if arrow.kind == "recv"),
    )  # fmt: skip
    computed = union(item for item in view.slices if is_forward(item.lane))
    hidden = f"{ms(length(intersection(sent, computed)))} of {ms(length(sent))} ms"
    scene = side_by_side([view], f"{hidden} of all-to-all run while the other half computes")
    (part,) = scene.parts
    (drawn,) = part.shows
    assert isinstance(drawn, Lanes)
    rows = [
        replace(row, spans=[replace(item, label=WORDS.get(item.kind, item.label),
                                    brief=WORDS.get(item.kind, item.brief))
                            for item in row.spans])
        for row in drawn.rows
    ]  # fmt: skip
    legend = {**scene.legend, "forward": WORDS["forward"]}
    return replace(scene, legend=legend, parts=[replace(part, shows=[replace(drawn, rows=rows)])])
