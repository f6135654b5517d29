"""The boxes of a sequence diagram: what each lane does, and where a device idles."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from ..layout import Box, IdleStretch
from ..svg_style import box_class, char_width
from ..units import ms
from .sequence_layout import Lifelines
from .shapes import text


def boxes(lines: Lifelines) -> Iterator[str]:
    """Every slice that takes time."""
    return (_box(lines, box) for box in lines.view.boxes if box.slice.duration > 0)


def labels(lines: Lifelines) -> Iterator[str]:
    """What they are, over the arrows that cross them."""
    for box in lines.view.boxes:
        if box.slice.duration > 0:
            yield from _label(lines, box)


def bubbles(lines: Lifelines) -> Iterator[str]:
    """Where a device idles, hatched."""
    for bubble in lines.view.bubbles:
        yield from _bubble(lines, bubble)


def _box(lines: Lifelines, box: Box) -> str:
    item, kind = box.slice, box_class(box.slice.name)
    top, bottom, middle = lines.y(item.start), lines.y(item.end), lines.x(box.lane)
    return (
        f'<rect class="box {kind}" x="{middle - lines.width / 2:.1f}" y="{top:.1f}" '
        f'width="{lines.width:.1f}" height="{max(1.0, bottom - top):.1f}" rx="2" '
        f'data-id="{item.id}" data-lane="{box.lane.key}">'
        f"<title>{escape(box.label)}, {ms(item.start)} to {ms(item.end)} ms</title></rect>"
    )


def _label(lines: Lifelines, box: Box) -> Iterator[str]:
    """Name and step, and how long where there is room."""
    item, kind = box.slice, box_class(box.slice.name)
    top, bottom, middle = lines.y(item.start), lines.y(item.end), lines.x(box.lane)
    words = [box.label if fits(box.label, lines.width) else item.name]
    if bottom - top >= 32:
        words.append(f"{ms(item.duration)} ms")
    for at, said in enumerate(words):
        if bottom - top >= 13 and fits(said, lines.width):
            y = (top + bottom) / 2 + 4 + 13 * (at - (len(words) - 1) / 2)
            yield text(middle, y, said, f"on-{kind}", "middle")


def _bubble(lines: Lifelines, bubble: IdleStretch) -> Iterator[str]:
    top, bottom, middle = lines.y(bubble.start), lines.y(bubble.end), lines.x(bubble.lane)
    kind = "waited" if bubble.reason else "bubble"
    idle = ms(bubble.end - bubble.start)
    yield (
        f'<rect class="{kind}" x="{middle - lines.width / 2:.1f}" y="{top:.1f}" '
        f'width="{lines.width:.1f}" height="{max(1.0, bottom - top):.1f}">'
        f"<title>bubble: {idle} ms {escape(bubble.reason)}</title></rect>"
    )
    if bottom - top >= 18:
        said = f"{bubble.reason or 'idle'} {idle} ms"
        room = len(said) * char_width(11, bold=True) + 6
        y = (top + bottom) / 2
        if room <= lines.width:
            yield (
                f'<rect class="halo" x="{middle - room / 2:.1f}" y="{y - 8:.1f}" '
                f'width="{room:.1f}" height="15" rx="3"/>'
            )
            yield text(middle, y + 4, said, "waited-for" if bubble.reason else "idle", "middle")


def fits(words: str, width: float) -> bool:
    """Whether small text fits."""
    return len(words) * char_width(11) + 2 <= width
