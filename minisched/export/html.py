"""The stepper: one page in which whole runs on one time axis can be played, stepped and dragged.

It needs no network: the page is made of the ``stepper*`` files beside this one, with the runs as
JSON. At each moment it shows where in its source each loop is, and what the engine's state is. It
draws only what is visible, so ten thousand slices stay smooth.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from itertools import compress

from ..checks.causes import num_waits
from ..checks.overlap import (
    OverlapReport,
    beats_ideal,
    ideal_speedup,
    measure,
    speedup_over,
    versus_ideal,
)
from ..loops.design import LoopSource
from ..trace import Trace
from ..trace.sides import PAIR
from .html_data import (
    CLOCKS,
    FLAGS,
    are_alike,
    page_data,
    run_names,
    setting,
    sources,
    title_of,
    what_it_is,
)
from .palette import ARROWS, PAINTS
from .state import Panel, panels
from .svg_style import variables
from .units import ms

# -- What the colours, hatchings, arrows and flags of the page's lanes mean ------------------------


def legend(traces: Sequence[Trace]) -> str:
    """One line of what occurs in these runs."""
    seen = {item.name for trace in traces for item in trace.slices if item.duration}
    items = [_phase(name) for name in PAINTS if name in seen]
    items.append('<span><i class="bubble"></i>bubble: the device idles</span>')
    if reasons := dict.fromkeys(reason for trace in traces for reason in num_waits(trace)):
        waits = f"the device waits for {escape(', '.join(reasons))}"
        items.append(f'<span><i class="waited"></i>{waits}</span>')
    kinds = {edge.kind for trace in traces for edge in trace.edges}
    kinds |= {"wrong" for trace in traces for mark in trace.marks if mark.name == "wrong token"}
    items += [
        f'<span><i class="arrow" style="background:var(--{kind})"></i>{text}</span>'
        for kind, text in ARROWS.items()
        if kind in kinds
    ]
    flags = {mark.name for trace in traces for mark in trace.marks}
    for colour in dict.fromkeys(FLAGS.values()):
        if found := [name for name in FLAGS if name in flags and FLAGS[name] == colour]:
            flag = f'<b style="color:var(--{colour})">▼</b>'
            items.append(f'<span class="mark">{flag} {", ".join(found)}</span>')
    return f'<div class="legend">{"".join(items)}</div>'


def _phase(name: str) -> str:
    style = "" if name == "wait" else f' style="background:{PAINTS[name].fill}"'
    return f'<span><i class="{name}"{style}></i>{name}</span>'


# -- What the looks of a panel's entries mean, as far as they occur in a run -----------------------

ZOMBIE = "crossed (zombie): has ended or was retracted, but a launched step still names it"
LOOKS = {  # by panel and kind of stay
    "set": {
        "admitted": "holds memory",
        "sending": "framed: its KV moves from prefill to decode",
        "wasted": ZOMBIE,
    },
    "ring": {
        "promised": "promised: its step has not sampled it yet",
        "stored": "stored: somebody will read it",
        "stale": "stale: nobody reads it any more",
    },
    "pages": {
        "admitted": "a request's own",
        "protected": "cached, in use: its node is locked",
        "evictable": "cached, evictable",
        "wasted": "a zombie's",
    },
    "rows": {"admitted": "a request's", "wasted": "a zombie's"},
    "tree": {"protected": "locked: requests use it", "evictable": "may be evicted"},
}
NOBODY = {"ring": "not listed: empty", "pages": "free"}


def panel_legend(panel: Panel) -> str:
    """One line of swatches; none where there is but one look."""
    seen = {stay.kind for stay in panel.stays}
    looks = [(kind, text) for kind, text in LOOKS.get(panel.name, {}).items() if kind in seen]
    if panel.name in NOBODY:
        looks.append(("nobody", NOBODY[panel.name]))
    if len(looks) < 2:
        return ""
    samples = "".join(f'<span><i class="{kind}"></i>{text}</span>' for kind, text in looks)
    return f'<div class="looks">{samples}</div>'


# -- The empty frames of what the page shows of one run at a moment; its scripts fill them ---------

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
    hang = len(text) - len(text.lstrip()) + 4  # where a line that is too long goes on
    words = escape(text) or " "
    return (
        f'<code data-line="{number}"{faint} style="--in:{hang}ch">'
        f"<i>{source.first_line + number}</i>{words}</code>"
    )


def docstring(lines: tuple[str, ...]) -> tuple[int, int]:
    """The first and last line of a function's docstring; (0, 0) if it has none."""
    quotes = [at for at, line in enumerate(lines) if '"""' in line]
    if not quotes or lines[quotes[0]].count('"""') > 1 or len(quotes) < 2:
        return 0, 0
    return quotes[0], quotes[1]


# -- The metrics of the runs on the page, one run a row --------------------------------------------

HEADS = (
    "loop", "steps", "tokens", "makespan", "device busy", "bubbles", "host busy", "host hidden",
    "wasted rows", "speed-up",
)  # fmt: skip
NONE = "–"


def metrics_table(traces: Sequence[Trace], reports: Sequence[OverlapReport]) -> str:
    """The table; speed-ups refer to the first run. A column that nobody fills is left out."""
    names = run_names(traces)
    reasons = [not_comparable(traces[0], trace) for trace in traces]
    has_speedup = len(traces) > 1 and not all(reasons[1:])
    rows = [
        _cells(name, report, _speedup(reports[0], report) if has_speedup and not why else NONE)
        for name, report, why in zip(names, reports, reasons, strict=True)
    ]
    filled = [any(row[at] != NONE for row in rows) for at in range(len(HEADS))]
    filled[-1] = len(traces) > 1
    told = [
        f"No speed-up of {name} over {names[0]}: {why}."
        for name, why in zip(names, reasons, strict=True)
        if why
    ]
    if has_speedup:
        told.append(
            f"Ideal speed-up over {names[0]}, with everything hidden behind the longest of host, "
            f"device and copies: {ideal_speedup(reports[0]):.2f}×."
        )
        told += [
            f"{name}: {versus_ideal(reports[0], report, traces[0].clock)}."
            for name, report, why in zip(names[1:], reports[1:], reasons[1:], strict=True)
            if not why and beats_ideal(reports[0], report)
        ]
    return (
        '<div class="scroll"><table>'
        + "".join(
            _row(tag, [*compress(row, filled)], [*compress(HEADS, filled)])
            for tag, row in [("th", HEADS), *(("td", row) for row in rows)]
        )
        + "</table></div>"
        + "".join(f"<p>{escape(line)}</p>" for line in told)
    )


def not_comparable(base: Trace, trace: Trace) -> str:
    """Why a run's time says nothing of a speed-up over ``base``; empty if it does."""
    if trace.clock != base.clock:
        one, other = (CLOCKS.get(run.clock, run.clock) for run in (trace, base))
        return f"its time is {one}, and the other's {other}"
    if work_of(trace) != work_of(base):
        return "they had different requests"
    return ""


def work_of(trace: Trace) -> tuple[frozenset[str], frozenset[tuple[str, object]]]:
    """Who was served, and how many tokens each got, as far as the trace says."""
    served = frozenset(rid for item in trace.slices for rid in item.rids)
    outputs = frozenset(
        (str(mark.attrs.get("rid", "")), mark.attrs.get("outputs", 0))
        for mark in trace.marks
        if mark.name == "finish" and mark.attrs.get("side") != "prefill"
    )
    return served, outputs


def _row(tag: str, cells: Sequence[str], heads: Sequence[str]) -> str:
    """A row; each cell says its column too, for a screen that is too narrow for a table."""
    named = zip(heads, cells, strict=True)
    return (
        "<tr>"
        + "".join(f'<{tag} data-name="{name}">{escape(cell)}</{tag}>' for name, cell in named)
        + "</tr>"
    )


def _speedup(base: OverlapReport, report: OverlapReport) -> str:
    speedup = speedup_over(base, report)
    return NONE if speedup is None else f"{speedup:.2f}×"


def _cells(name: str, report: OverlapReport, speedup: str) -> tuple[str, ...]:
    return (
        name,
        str(report.steps),
        str(report.tokens or NONE),
        f"{ms(report.makespan_ns)} ms",
        f"{report.device_busy_percent:.1f} %",
        f"{ms(report.bubble_ns)} ms",
        f"{ms(report.host_busy_ns)} ms",
        f"{report.host_hidden_percent:.1f} %",
        str(report.wasted_rows),
        speedup,
    )


# -- The page: ``stepper.html`` with its places filled --------------------------------------------

STYLES = ("stepper.css", "stepper_panels.css")
SCRIPTS = (
    "stepper_data.js",  # the runs, what is true when, links to a moment
    "stepper_draw.js",  # lanes, slices, arrows, flags, the axis
    "stepper_panels.js",  # lists, KV map, source, counters, a request's life
    "stepper_page.js",  # the page's state and what changes it; starts everything
)


PLACE = re.compile(r"\{\{(\w+)\}\}")


def to_html(
    traces: Sequence[Trace], reports: Sequence[OverlapReport] | None = None, title: str = ""
) -> str:
    """The page. ``reports`` may bring what a trace does not know (tokens); else they are measured.

    The first run is the baseline that speed-ups refer to.

    Raises:
        ValueError: there is no trace, or not one report a trace, or a mark says too little.
    """
    reports = [measure(trace) for trace in traces] if reports is None else list(reports)
    if not traces or len(reports) != len(traces):
        raise ValueError(
            f"a page needs at least 1 trace and a report for each, "
            f"but got {len(traces)} and {len(reports)}."
        )
    states, names = [panels(trace) for trace in traces], run_names(traces)
    said = [""] * len(traces) if are_alike(traces) else [f"{setting(run)}: " for run in traces]
    places = {
        "title": escape(title or title_of(traces)),
        "style": "\n".join([variables(), *map(_part, STYLES)]),
        "about": escape(what_it_is(traces)),
        "chooser": _chooser(names),
        "runs": "\n".join(map(_run, range(len(names)), names, said, reports)),
        "legend": legend(traces),
        "moments": "\n".join(map(moment, range(len(names)), names, traces, states)),
        "metrics": metrics_table(traces, reports),
        "data": page_data(traces, states),
        "scripts": "\n".join(f"<script>\n{_part(name)}</script>" for name in SCRIPTS),
    }
    return PLACE.sub(lambda found: places[found[1]], _part("stepper.html"))


def _chooser(names: Sequence[str]) -> str:
    """Which of several runs are shown; nothing to choose of two."""
    if len(names) < 3:
        return ""
    buttons = "".join(
        f'<button data-toggle="{at}" aria-pressed="true">{escape(name)}</button>'
        for at, name in enumerate(names)
    )
    return (
        f'<div id="chooser" role="group" aria-label="runs shown"><span>show</span>{buttons}'
        '<button data-do="all-runs">all</button></div>'
    )


def _run(at: int, name: str, said: str, report: OverlapReport) -> str:
    busy = f"device busy {report.device_busy_percent:.1f} %, {ms(report.makespan_ns)} ms"
    loop, about = escape(name), escape(said) + busy
    return (
        f'<section class="run"><h2><button data-activate="{at}" '
        f'title="step through the events of {loop}">{loop}</button> <span>{about}</span></h2>'
        f'<canvas class="run" role="img" aria-label="{loop}: {about}"></canvas></section>'
    )


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
