"""What is around a run of which something is red: lines of words, time axis, legend, and the paper.

Both kinds of pictures stand on it: a broken law (``offence.py``) and an exhibit of the museum.
"""

from __future__ import annotations

from textwrap import wrap
from xml.sax.saxutils import escape

from .offence_marks import red_style
from .offence_view import Scene
from .svg import WIDTH
from .svg_run import Frame
from .svg_style import char_width, definitions, style
from .units import exact, tick_step

MARGIN = 20  # pixels, left and right of what is said


def lines_of(sentence: str, size: float) -> list[str]:
    """A bold sentence in as few lines as it needs, all of about one length."""
    columns = int((WIDTH - 2 * MARGIN) / char_width(size, bold=True))
    lines = wrap(sentence, columns)
    while columns > 1 and len(narrower := wrap(sentence, columns - 1)) == len(lines):
        lines, columns = narrower, columns - 1
    return lines


def ticks(start: int, duration: int) -> range:
    """Round times, in nanoseconds, at most ten or so."""
    step = tick_step(duration)
    return range(-(-start // step) * step, start + duration + 1, step)


def grid(frame: Frame, duration: int) -> list[str]:
    """Lines at the times of an axis of this length, as far as the run goes."""
    view = frame.view
    return [
        f'<line class="grid" x1="{x:.1f}" y1="{frame.top}" x2="{x:.1f}" y2="{frame.bottom}"/>'
        for x in (frame.x(at) for at in ticks(view.start, duration) if at <= view.end)
    ]


def axis(frame: Frame, duration: int, top: float, words: str = "time in ms") -> str:
    """The time axis, in milliseconds since the run began; ``words`` stand before it."""
    left, right, start = frame.left, frame.right, frame.view.start
    drawn = [f'<line class="axis" x1="{left:.0f}" y1="{top}" x2="{right}" y2="{top}"/>']
    for time in ticks(start, duration):
        x = left + (time - start) * frame.scale
        drawn.append(
            f'<line class="axis" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + 5}"/>'
            f'<text class="small" x="{x:.1f}" y="{top + 18}" text-anchor="middle">'
            f"{exact(time)}</text>"
        )
    drawn.append(f'<text class="small faint" x="{MARGIN}" y="{top + 18}">{words}</text>')
    return "".join(drawn)


def red_legend(scene: Scene, top: float) -> tuple[list[str], float]:
    """What is red, as far as it occurs; and where the legend goes on."""
    drawn = []
    if scene.culprits:
        drawn.append(
            f'<rect class="red" x="21" y="{top - 10}" width="16" height="11" rx="2"/>'
            f'<text x="44" y="{top}">what did it, by number</text>'
        )
    if scene.missing:
        drawn.append(
            f'<path class="red-missing" d="M220 {top - 4}h26"/>'
            f'<text x="252" y="{top}">an edge that should be there, and is not</text>'
        )
    return drawn, top + (24 if drawn else 0)


def document(drawn: list[str], height: float, title: str, *rules: str) -> str:
    """The whole file; ``rules`` are style elements beside those that every such picture has."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            f'width="{WIDTH}" height="{height:.0f}" role="img">',
            f"<title>{escape(title)}</title>",
            style(), definitions(), *rules, red_style(),
            f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" '
            'rx="8"/>',
            *drawn,
            "</svg>",
            "",
        ]
    )  # fmt: skip
