"""What is around the two runs of an exhibit's picture: title, time axis, and the paper."""

from __future__ import annotations

from textwrap import wrap
from xml.sax.saxutils import escape

from ..export.offence_marks import RED, red_style
from ..export.offence_view import Scene
from ..export.svg_run import Frame
from ..export.svg_style import FONT, char_width, definitions, style, variables
from ..export.svg_waits import wait_style
from ..export.units import MILLISECOND, ms, tick_step
from .exhibit import Exhibit

WIDTH, RIGHT = 900, 24  # pixels: the page, its right margin
LINE = 17  # from line to line of what is said


def heading(title: str, sentence: str) -> tuple[list[str], float]:
    """The title and, in red, what law was broken how; and where they end."""
    lines = wrap(sentence, int((WIDTH - 40) / char_width(12, bold=True)))
    drawn = [f'<text class="title" x="20" y="31">{escape(title)}</text>']
    for number, line in enumerate(lines):
        y = 54 + number * LINE
        drawn.append(f'<text class="red-text" x="20" y="{y}">{escape(line)}</text>')
    return drawn, 54 + (len(lines) - 1) * LINE + 4


def title_of_run(frame: Frame, is_bug: bool, exhibit: Exhibit) -> str:
    """Which of the two it is, and what it runs on."""
    trace, y = frame.view.trace, frame.top - 9
    name = "with the bug" if is_bug else "without it, same requests: every law holds"
    loop = exhibit.case.loop + (f" with relay {exhibit.case.relay}" if exhibit.case.relay else "")
    about = f"{loop}, {trace.model} model on {trace.device}"
    if frame.view.end < trace.end:
        about += f", goes on to {ms(trace.end)} ms"
    return (
        f'<text class="run" x="20" y="{y}">{name}</text><text class="faint" x="{WIDTH - RIGHT}" '
        f'y="{y}" text-anchor="end">{escape(about)}</text>'
    )


def grid(frame: Frame, longest: int) -> list[str]:
    """Lines at the times of the axis, as far as the run goes."""
    view = frame.view
    return [
        f'<line class="grid" x1="{x:.1f}" y1="{frame.top}" x2="{x:.1f}" y2="{frame.bottom}"/>'
        for x in (frame.x(at) for at in ticks(view.start, longest) if at <= view.end)
    ]


def ticks(start: int, longest: int) -> range:
    """Round times, in nanoseconds, at most ten or so."""
    step = tick_step(longest)
    return range(-(-start // step) * step, start + longest + 1, step)


def axis(left: float, top: float, start: int, longest: int, scale: float) -> str:
    """The time axis that both runs share, in milliseconds."""
    drawn = [f'<line class="axis" x1="{left:.0f}" y1="{top}" x2="{WIDTH - RIGHT}" y2="{top}"/>']
    for time in ticks(start, longest):
        x = left + (time - start) * scale
        drawn.append(
            f'<line class="axis" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + 5}"/>'
            f'<text class="small" x="{x:.1f}" y="{top + 18}" text-anchor="middle">'
            f"{time / MILLISECOND:g}</text>"
        )
    drawn.append(f'<text class="small faint" x="20" y="{top + 18}">simulated time in ms</text>')
    return "".join(drawn)


def red_legend(scene: Scene, top: float) -> tuple[list[str], float]:
    """What is red; and where the legend goes on."""
    drawn = [
        f'<rect class="red" x="21" y="{top - 10}" width="16" height="11" rx="2"/>'
        f'<text x="44" y="{top}">what did it, by number</text>'
    ]
    if scene.missing:
        drawn.append(
            f'<path class="red-missing" d="M220 {top - 4}h26"/>'
            f'<text x="252" y="{top}">an edge that should be there, and is not</text>'
        )
    return drawn, top + 24


def document(drawn: list[str], height: float, title: str) -> str:
    """The whole file."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            f'width="{WIDTH}" height="{height:.0f}" role="img">',
            f"<title>{escape(title)}</title>",
            style(), definitions(), wait_style(), red_style(),
            f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" '
            'rx="8"/>',
            *drawn,
            "</svg>",
            "",
        ]
    )  # fmt: skip


def html_style() -> str:
    """The rules of a page that stands alone, on the picture's paper."""
    return (
        f"<style>\n{variables()}\n:root {{ color-scheme: light dark; --red: {RED[0]} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ --red: {RED[1]} }} }}\n"
        f"body {{ font: 16px/1.5 {FONT}; color: var(--ink); background: var(--paper); "
        "max-width: 900px; margin: 32px auto; padding: 0 16px }\n"
        "h1 { font-size: 26px } h2 { font-size: 17px; margin: 28px 0 6px }\n"
        "p { margin: 6px 0 } a { color: inherit }\n"
        "figure { margin: 0; overflow-x: auto } .bad, .minus { color: var(--red) }\n"
        "pre { background: var(--lane); padding: 10px; overflow-x: auto; font-size: 13px }\n"
        ".plus, .good { color: var(--copy) } .place { color: var(--faint) }\n</style>"
    )
