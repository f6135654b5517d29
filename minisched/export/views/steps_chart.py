"""Where everything lies in a picture of steps, and its boxes, arrows and flags."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...trace import Mark
from ..lane import Lane
from ..layout import Arrow, Box, View
from ..palette import ARROWS
from ..svg_style import box_class, char_width
from ..svg_waits import FLAG, about, waits_of
from ..units import ms
from .axes import TimeAxis
from .shapes import path, text
from .steps_rows import StepRow

LEFT, LANE, BOX, GAP = 158, 25, 17, 22  # pixels: row titles, lane to lane, a box, between two rows


@dataclass(frozen=True)
class Chart:
    """The rows on the page; ``x`` counts from the view's start."""

    view: View
    rows: list[StepRow]
    x: TimeAxis
    top: float

    def y(self, lane: Lane) -> float:
        """The upper edge of a lane's boxes."""
        y = self.top
        for row in self.rows:
            if lane in row.lanes:
                return y + row.lanes.index(lane) * LANE
            y += len(row.lanes) * LANE + GAP
        raise KeyError(lane)

    @property
    def bottom(self) -> float:
        """Below the last row."""
        return self.y(self.rows[-1].lanes[-1]) + LANE

    def span(self, start: int, end: int) -> tuple[float, float]:
        """Left edge and width of an interval of the run."""
        return self.x.span(*self.view.clip(start, end))

    def boxes(self) -> Iterator[str]:
        """Every slice that takes time, with its name where there is room."""
        for box in self.view.boxes:
            if box.slice.duration > 0:
                yield from self._box(box)

    def arrows(self) -> Iterator[str]:
        """Every edge between two of them."""
        return map(self._arrow, self.view.arrows)

    def flags(self) -> Iterator[str]:
        """A flag for each wait, above the step that waits; of a step not shown above the first."""
        for mark in waits_of(self.view):
            rows = (row for row in self.rows if row.step == mark.attrs.get("step"))
            yield self._flag(mark, next(rows, self.rows[0]))

    def _box(self, box: Box) -> Iterator[str]:
        item, kind, y = box.slice, box_class(box.slice.name), self.y(box.lane)
        left, width = self.span(item.start, item.end)
        said = f"{box.label}, {item.lane}, {ms(item.start)} to {ms(item.end)} ms"
        yield (
            f'<rect class="box {kind}" x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{BOX}" rx="2" data-id="{item.id}" data-step="{box.step}">'
            f"<title>{said}</title></rect>"
        )
        if len(item.name) * char_width(11) + 2 <= width:
            yield text(left + width / 2, y + 13, item.name, f"on-{kind}", "middle")

    def _arrow(self, arrow: Arrow) -> str:
        kind = arrow.brings if arrow.brings in ARROWS else "launch"
        (x1, _), (x2, _) = self.span(arrow.start, arrow.start), self.span(arrow.end, arrow.end)
        y1, y2 = self.y(arrow.src.lane), self.y(arrow.dst.lane)
        if y1 == y2:
            kind += " level"
            d = f"M{x1 - 5:.1f} {y1 + BOX}c0 5 {x2 - x1 + 11:.1f} 5 {x2 - x1 + 11:.1f} 0"
        elif y2 > y1:
            d = f"M{x1:.1f} {y1 + BOX}L{x2:.1f} {y2}"
        else:
            d = f"M{x1:.1f} {y1}L{x2:.1f} {y2 + BOX}"
        return path(f"arrow {kind}", d, src=arrow.src.slice.id, dst=arrow.dst.slice.id)

    def _flag(self, mark: Mark, row: StepRow) -> str:
        left, _ = self.span(mark.time, mark.time)
        d = f"M{left:.1f} {self.y(row.lanes[0]) - 1:.1f}{FLAG}"
        return path("flag", d, f"{about(mark)} at {ms(mark.time)} ms", mark="wait")
