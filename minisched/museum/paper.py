"""What stands above an exhibit's picture and above each of its two runs; its page's rules."""

from __future__ import annotations

from xml.sax.saxutils import escape

from ..export.offence_marks import RED
from ..export.offence_paper import MARGIN, lines_of
from ..export.svg import RIGHT, WIDTH
from ..export.svg_run import Frame
from ..export.svg_style import FONT, variables
from ..export.units import ms
from .exhibit import Exhibit

LINE = 17  # pixels from line to line of what is said


def heading(title: str, sentence: str) -> tuple[list[str], float]:
    """The title and, in red, what law was broken how; and where they end."""
    lines = lines_of(sentence, 12)
    drawn = [f'<text class="title" x="{MARGIN}" y="31">{escape(title)}</text>']
    for number, line in enumerate(lines):
        y = 54 + number * LINE
        drawn.append(f'<text class="red-text" x="{MARGIN}" y="{y}">{escape(line)}</text>')
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
        f'<text class="run" x="{MARGIN}" y="{y}">{name}</text>'
        f'<text class="faint" x="{WIDTH - RIGHT}" y="{y}" text-anchor="end">{escape(about)}</text>'
    )


def html_style() -> str:
    """The rules of a page that stands alone, on the picture's paper."""
    return (
        f"<style>\n{variables()}\n:root {{ color-scheme: light dark; --red: {RED[0]} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ --red: {RED[1]} }} }}\n"
        f"body {{ font: 16px/1.5 {FONT}; color: var(--ink); background: var(--paper); "
        "max-width: 900px; margin: 32px auto; padding: 0 16px }\n"
        "h1 { font-size: 26px } h2 { font-size: 17px; margin: 28px 0 6px }\n"
        "p { margin: 6px 0 } a { color: inherit }\n"
        "figure { margin: 0 } figure svg { max-width: 100%; height: auto }\n"
        ".bad, .minus { color: var(--red) }\n"
        "pre { background: var(--lane); padding: 10px; overflow-x: auto; font-size: 13px }\n"
        ".plus, .good { color: var(--copy) } .place { color: var(--faint) }\n</style>"
    )
