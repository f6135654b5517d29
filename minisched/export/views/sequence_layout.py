"""Where everything lies in a sequence diagram: a lifeline a lane, time running down.

Time is in order but not to scale: what is short gets the room that its name needs, and whatever
began before something else stands above it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ..lane import Lane
from ..layout import View
from .page import EDGE

LEFT, HIGH, LEAST_BOX, LEAST_GAP = 70, 330, 19, 4  # pixels
LEAST_WIDTH, BETWEEN = 84, 24  # of a box; beside it, where lifelines stand close


@dataclass(frozen=True)
class Lifelines:
    """Pixels for lanes and moments. ``heights`` is where each moment of the run lies."""

    view: View
    heights: dict[int, float]

    @property
    def pitch(self) -> float:
        """From lifeline to lifeline."""
        return (EDGE - LEFT) / len(self.view.lanes)

    @property
    def width(self) -> float:
        """Of a box."""
        return max(0.5 * self.pitch, min(self.pitch - BETWEEN, LEAST_WIDTH))

    def x(self, lane: Lane) -> float:
        """The middle of a lane."""
        return LEFT + (self.view.lanes.index(lane) + 0.5) * self.pitch

    def y(self, time: int) -> float:
        """A moment of the run, kept inside the view."""
        return self.heights[min(max(time, self.view.start), self.view.end)]

    @property
    def bottom(self) -> float:
        """Where the view ends."""
        return self.heights[self.view.end]


def lay_out(view: View, top: float) -> Lifelines:
    """A height for every moment at which something begins or ends."""
    spans = [(box.slice.start, box.slice.end) for box in view.boxes if box.slice.duration]
    spans += [(bubble.start, bubble.end) for bubble in view.bubbles]
    spans = [(max(start, view.start), min(end, view.end)) for start, end in spans]
    moments = {view.start, view.end, *(time for span in spans for time in span)}
    moments |= {arrow.start for arrow in view.arrows} | {arrow.end for arrow in view.arrows}
    inside = sorted(time for time in moments if view.start <= time <= view.end)
    heights = {inside[0]: top}
    began: dict[int, int] = {}  # for each end the latest start: it needs the most room
    for start, end in spans:
        if start < end:
            began[end] = max(start, began.get(end, start))
    for before, time in pairwise(inside):
        gap = max(LEAST_GAP, (time - before) * HIGH / max(1, view.duration))
        heights[time] = heights[before] + gap
        if time in began:
            heights[time] = max(heights[time], heights[began[time]] + LEAST_BOX)
    return Lifelines(view, heights)
