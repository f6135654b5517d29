"""The empty frames of what the page shows of one run at a moment; its scripts fill them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..loops.design import LoopSource
from ..trace import Trace
from .html_panel_legend import panel_legend
from .html_state import sources
from .state import Panel
from .state.side import PAIR

ABOUT = {  # title and one line on each panel, for somebody who sees it for the first time
    "queue": ("Waiting queue", "requests that wait for memory"),
    "set": ("Running set", "requests with memory"),
    "ring": ("Future slots", "where the device keeps tokens that the host has not seen yet"),
    "pages": ("KV map", "one cell a page, in the colour of who computed it"),
    "rows": ("Request table", "which row is whose"),
    "tree": ("Radix tree", "cached prefixes; a lock protects a node from eviction"),
}
GROUPS = (("queue", "set", "ring"), ("pages", "rows", "tree"))


def moment(at: int, name: str, trace: Trace, state: Sequence[Panel]) -> str:
    """The frames of one run: source, state, counters. A part that the run never had is left out."""
    listings = "".join(_source(lane, source) for lane, source in sources(trace).items())
    counted = _frame("counters", "Counters", "", "<table></table>")
    shown = [panel for panel in state if panel.stays]
    if any(panel.side for panel in shown):
        groups = [_side(side, [panel for panel in shown if panel.side == side]) for side in PAIR]
        listings += counted
    else:
        left, right = ([p for p in shown if p.name in names] for names in GROUPS)
        groups = ["".join(map(_panel, left)) + counted, "".join(map(_panel, right))]
    return (
        f'<section class="moment" data-run="{at}" aria-label="{escape(name)} at the cursor">'
        f'<h3>{escape(name)} <span class="doing"></span></h3><div class="groups">'
        + "".join(f"<div>{group}</div>" for group in (listings, *groups) if group)
        + "</div></section>"
    )


def _side(side: str, panels: Sequence[Panel]) -> str:
    """All panels of one of two schedulers, under a heading."""
    return f'<h4 class="side">{side.capitalize()} side</h4>' + "".join(map(_panel, panels))


def _panel(panel: Panel) -> str:
    title, about = ABOUT[panel.name]
    map_of = '<canvas role="img" aria-label="KV map"></canvas>' if panel.name == "pages" else ""
    inside = f'{panel_legend(panel)}{map_of}<div class="entries"></div>'
    return _frame(panel.name, title, about, inside, f' data-side="{panel.side}"')


def _frame(name: str, title: str, about: str, inside: str, more: str = "") -> str:
    note = f'<p class="about">{about}</p>' if about else ""
    return (
        f'<div class="panel" data-panel="{name}"{more}><h4>{title} <span class="count"></span></h4>'
        f"{note}{inside}</div>"
    )


def _source(lane: str, source: LoopSource) -> str:
    """A loop's source with its docstring folded; ``data-line`` counts from the ``def``."""
    first, last = docstring(source.lines)
    lines = [_line(number, text, source) for number, text in enumerate(source.lines)]
    if last > first:
        more = f"<summary>{lines[first]}</summary>{''.join(lines[first + 1 : last + 1])}"
        lines[first : last + 1] = [f"<details>{more}</details>"]
    return _frame(
        "source",
        "Source of the loop",
        f"{escape(source.path)}:{escape(source.name)}; the {escape(lane)} is at the marked line",
        f'<div class="code" tabindex="0">{"".join(lines)}</div>',
        f' data-lane="{escape(lane)}"',
    )


def _line(number: int, text: str, source: LoopSource) -> str:
    faint = ' class="faint"' if text.lstrip().startswith("#") else ""
    words = escape(text) or " "
    return f'<code data-line="{number}"{faint}><i>{source.first_line + number}</i>{words}</code>'


def docstring(lines: tuple[str, ...]) -> tuple[int, int]:
    """The first and last line of a function's docstring; (0, 0) if it has none."""
    quotes = [at for at, line in enumerate(lines) if '"""' in line]
    if not quotes or lines[quotes[0]].count('"""') > 1 or len(quotes) < 2:
        return 0, 0
    return quotes[0], quotes[1]
