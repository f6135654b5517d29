"""The arrows of a sequence diagram, each with what it says where there is room."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..arrow_words import meaning, says
from ..layout import Arrow
from ..palette import ARROWS
from ..svg_style import char_width
from .sequence_layout import Lifelines
from .shapes import path, text

BOW = 20  # pixels: how far an arrow within a lane swings out, to the left
Place = tuple[float, float, float]  # the middle of a text, its line, and its width


@dataclass
class Messages:
    """Every edge of the view; texts that would lie on one another are left to the hover."""

    lines: Lifelines
    taken: list[Place] = field(default_factory=list)

    def draw(self) -> Iterator[str]:
        """The arrows, then their texts."""
        yield from (self._arrow(arrow) for arrow in self.lines.view.arrows)
        for arrow in self.lines.view.arrows:
            yield from self._words(arrow)

    def _arrow(self, arrow: Arrow) -> str:
        kind = arrow.brings if arrow.brings in ARROWS else "launch"
        x1, y1, x2, y2 = self._ends(arrow)
        d = f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"
        if arrow.is_level:
            y1, y2 = y1 - 6, y2 + 8
            d = f"M{x1:.1f} {y1:.1f}C{x1 - BOW} {y1:.1f} {x1 - BOW} {y2:.1f} {x1:.1f} {y2:.1f}"
        return path(f"arrow {kind}", d, meaning(arrow), src=arrow.src.slice.id,
                    dst=arrow.dst.slice.id)  # fmt: skip

    def _ends(self, arrow: Arrow) -> tuple[float, float, float, float]:
        """From the edge of one box to the edge of the other."""
        lines, half = self.lines, self.lines.width / 2
        x1, x2 = lines.x(arrow.src.lane), lines.x(arrow.dst.lane)
        y1, y2 = lines.y(arrow.start), lines.y(arrow.end)
        if arrow.is_level:
            return x1 - half, y1, x1 - half, y2
        return (x1 + half, y1, x2 - half, y2) if x2 > x1 else (x1 - half, y1, x2 + half, y2)

    def _words(self, arrow: Arrow) -> Iterator[str]:
        """Beside the box it leaves, on the way; in short where there is less room."""
        middle, y, room = self._place(arrow)
        for shown in (says(arrow), says(arrow).replace(" for ", " ").replace(" of ", " ")):
            place = (middle, y, len(shown) * char_width(11))
            if place[2] <= room and not any(_touch(place, other) for other in self.taken):
                self.taken.append(place)
                yield text(middle, y, shown, "said", "middle")
                return

    def _place(self, arrow: Arrow) -> Place:
        """Where there is room for a text: the gap beside the box."""
        x1, y1, x2, y2 = self._ends(arrow)
        gap = self.lines.pitch - self.lines.width
        if arrow.is_level:
            room = gap - 0.8 * BOW
            return x1 - 0.8 * BOW - room / 2, (y1 + y2) / 2 + 5, room
        middle = x1 + (gap / 2 if x2 > x1 else -gap / 2)
        return middle, y1 + (y2 - y1) * abs(middle - x1) / abs(x2 - x1) - 4, gap - 4


def _touch(one: Place, other: Place) -> bool:
    near = abs(one[0] - other[0]) < (one[2] + other[2]) / 2
    return near and abs(one[1] - other[1]) < 11
