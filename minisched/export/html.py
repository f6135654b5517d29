"""The player: one page in which whole runs on one time axis can be played, stepped and dragged.

It needs no network: the page is ``stepper.html`` with the other ``stepper*`` files beside it and
the runs (``html_data.py``) in its places. At each moment it shows where in its source each loop
is, and what the engine's state is. It draws only what is visible, so ten thousand slices stay
smooth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from ..checks.causes import num_waits
from ..checks.overlap import OverlapReport, ideal_speedup, measure, speedup_over
from ..loops.design import LoopSource
from ..trace import Trace
from ..trace.sides import PAIR
from .html_data import FLAGS, page_data, run_names, sources
from .looks import ARROWS, PHASES, flat
from .runs import MOST_NAMES, loops_shown
from .state import Panel, panels
from .svg_style import variables
from .units import busy, ms

# -- The page: ``stepper.html`` with its places filled ---------------------------------------------

STYLES = ("stepper.css", "stepper_panels.css")
SCRIPTS = (
    "stepper_data.js",  # the runs, what is true when, links to a moment
    "stepper_draw.js",  # lanes, slices, arrows, flags, the axis
    "stepper_panels.js",  # lists, KV map, source, counters, a request's life
    "stepper_page.js",  # the page's state and what changes it; starts everything
)
PLACE = re.compile(r"\{\{(\w+)\}\}")
CLOCKS = {"virtual": "simulated", "wall": "measured"}


def to_html(traces: Sequence[Trace], title: str = "") -> str:
    """The page. The first run is the baseline that speed-ups refer to.

    Raises:
        ValueError: there is no trace, or a mark says too little.
    """
    if not traces:
        raise ValueError("a page needs at least 1 trace, but got 0.")
    reports = [measure(trace) for trace in traces]
    states, names = [panels(trace) for trace in traces], run_names(traces)
    settings = [f"{run.what_ran}, {CLOCKS.get(run.clock, run.clock)} time" for run in traces]
    is_one = len(set(settings)) == 1
    what = "One run" if len(traces) == 1 else f"{len(traces)} runs on one time axis"
    named = loops_shown(traces) if len(traces) > MOST_NAMES else " against ".join(names)
    told = [
        ("" if is_one else f"{said}: ") + f"{busy(report)}, {ms(report.makespan_ns)} ms"
        for said, report in zip(settings, reports, strict=True)
    ]
    places = {
        "title": escape(title or named),
        "style": "\n".join([variables(), *map(part, STYLES)]),
        "about": escape(f"{what}: {settings[0]}." if is_one else f"{what}."),
        "chooser": chooser(names),
        "runs": "\n".join(map(run_frame, range(len(names)), names, told)),
        "legend": legend(traces),
        "moments": "\n".join(map(moment, range(len(names)), names, traces, states)),
        "metrics": metrics_table(traces, reports, names),
        "data": page_data(traces, states),
        "scripts": "\n".join(
            f'<script type="text/plain" class="later">\n{part(name)}</script>' for name in SCRIPTS
        ),
    }
    return PLACE.sub(lambda found: places[found[1]], part("stepper.html"))


def part(name: str) -> str:
    """One of the files beside this one."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def chooser(names: Sequence[str]) -> str:
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


def run_frame(at: int, name: str, about: str) -> str:
    """A run's heading, and what its lanes are drawn on."""
    loop, about = escape(name), escape(about)
    return (
        f'<section class="run"><h2><button data-activate="{at}" '
        f'title="step through the events of {loop}">{loop}</button> <span>{about}</span></h2>'
        f'<canvas class="run" role="img" aria-label="{loop}: {about}"></canvas></section>'
    )


def swatch(look: str, words: str, style: str = "") -> str:
    """A sample of a look, and what it means."""
    paint = f' style="background:{style}"' if style else ""
    return f'<span><i class="{look}"{paint}></i>{words}</span>'


def legend(traces: Sequence[Trace]) -> str:
    """One line of what occurs in these runs: phases, idle time, arrows and flags."""
    seen = {item.name for trace in traces for item in trace.slices if item.duration}
    items = [swatch(name, name, "" if name == "wait" else flat(name))
             for name in PHASES if name in seen]  # fmt: skip
    items.append(swatch("bubble", "bubble: the device idles"))
    if reasons := dict.fromkeys(reason for trace in traces for reason in num_waits(trace)):
        items.append(swatch("waited", f"the device waits for {escape(', '.join(reasons))}"))
    marks = {mark.name for trace in traces for mark in trace.marks}
    kinds = {edge.kind for trace in traces for edge in trace.edges}
    kinds |= {"wrong"} if "wrong token" in marks else set()
    items += [swatch("arrow", text, f"var(--{kind})") for kind, text in ARROWS.items()
              if kind in kinds]  # fmt: skip
    for colour in dict.fromkeys(FLAGS.values()):
        if found := [name for name in FLAGS if name in marks and FLAGS[name] == colour]:
            flag = f'<b style="color:var(--{colour})">▼</b>'
            items.append(f'<span class="mark">{flag} {", ".join(found)}</span>')
    return f'<div class="legend">{"".join(items)}</div>'


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
LOOKS = {  # what the looks of a panel's entries mean, by panel and kind of stay
    "set": {
        "admitted": "holds memory",
        "sending": "framed: its KV moves from prefill to decode",
        "wasted": "crossed (zombie): has ended or was retracted, but a launched step names it",
    },
    "ring": {
        "promised": "promised: its step has not sampled it yet",
        "stored": "stored: somebody will read it",
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
NOBODY = {"ring": "not listed: empty, or stale (nobody reads it any more)", "pages": "free"}


def moment(at: int, name: str, trace: Trace, state: Sequence[Panel]) -> str:
    """The frames of one run: source, state, counters. A part that the run never had is left out."""
    listings = "".join(source_frame(lane, source) for lane, source in sources(trace).items())
    counted = frame("counters", "Counters", "", "<table></table>")
    shown = [panel for panel in state if panel.stays]
    if any(panel.side for panel in shown):
        groups = [
            f'<h4 class="side">{side.capitalize()} side</h4>'
            + panel_frames(panel for panel in shown if panel.side == side)
            for side in PAIR
        ]
        listings += counted
    else:
        left, right = (panel_frames(p for p in shown if p.name in some) for some in GROUPS)
        groups = [left + counted, right]
    return (
        f'<section class="moment" data-run="{at}" aria-label="{escape(name)} at the cursor">'
        f'<h3>{escape(name)} <span class="doing"></span></h3><div class="groups">'
        + "".join(f"<div>{group}</div>" for group in (listings, *groups) if group)
        + "</div></section>"
    )


def panel_frames(shown: Iterable[Panel]) -> str:
    """A frame for each panel, with what its looks mean where there is more than one."""
    found = ""
    for panel in shown:
        seen = {stay.kind for stay in panel.stays}
        looks = {kind: text for kind, text in LOOKS.get(panel.name, {}).items() if kind in seen}
        looks |= {"nobody": NOBODY[panel.name]} if panel.name in NOBODY else {}
        samples = "".join(swatch(*look) for look in looks.items()) if len(looks) > 1 else ""
        inside = f'<div class="looks">{samples}</div>' * bool(samples)
        if panel.name == "pages":
            inside += '<canvas role="img" aria-label="KV map"></canvas>'
        inside += '<div class="entries"></div>'
        found += frame(panel.name, *ABOUT[panel.name], inside, f' data-side="{panel.side}"')
    return found


def frame(name: str, title: str, about: str, inside: str, more: str = "") -> str:
    """A part of what is shown of a moment."""
    note = f'<p class="about">{about}</p>' if about else ""
    return (
        f'<div class="panel" data-panel="{name}"{more}><h4>{title} <span class="count"></span></h4>'
        f"{note}{inside}</div>"
    )


def source_frame(lane: str, source: LoopSource) -> str:
    """A loop's source with its docstring folded; ``data-line`` counts from the ``def``."""
    lines = []
    for number, text in enumerate(source.lines):
        faint = ' class="faint"' if text.lstrip().startswith("#") else ""
        hang = len(text) - len(text.lstrip()) + 4  # where a line that is too long goes on
        lines.append(
            f'<code data-line="{number}"{faint} style="--in:{hang}ch">'
            f"<i>{source.first_line + number}</i>{escape(text) or ' '}</code>"
        )
    quotes = [at for at, line in enumerate(source.lines) if '"""' in line]
    if len(quotes) > 1 and source.lines[quotes[0]].count('"""') == 1:
        first, last = quotes[:2]
        folded = f"<summary>{lines[first]}</summary>{''.join(lines[first + 1 : last + 1])}"
        lines[first : last + 1] = [f"<details>{folded}</details>"]
    return frame(
        "source",
        "Source of the loop",
        f"{escape(source.path)}:{escape(source.name)}; the {escape(lane)} is at the marked line",
        f'<div class="code" tabindex="0">{"".join(lines)}</div>',
        f' data-lane="{escape(lane)}"',
    )


# -- The metrics of the runs on the page, one run a row --------------------------------------------

NONE = "–"


def metrics_table(
    traces: Sequence[Trace], reports: Sequence[OverlapReport], names: Sequence[str]
) -> str:
    """The table. There is a speed-up over the first run where both served the same on one clock."""
    base, same, rows = reports[0], work_of(traces[0]), list[dict[str, str]]()
    for trace, report, name in zip(traces, reports, names, strict=True):
        work = work_of(trace)
        factor = speedup_over(base, report) if work == same else None
        rows.append(
            {
                "loop": name,
                "steps": str(report.steps),
                "tokens": str(sum(count for _, count in work[2]) or NONE),
                "makespan": f"{ms(report.makespan_ns)} ms",
                "device busy": f"{report.device_busy_percent:.1f} %",
                "bubbles": f"{ms(report.bubble_ns)} ms",
                "host busy": f"{ms(report.host_busy_ns)} ms",
                "host hidden": f"{report.host_hidden_percent:.1f} %",
                "wasted rows": str(report.wasted_rows),
                "speed-up": NONE if factor is None else f"{factor:.2f}×",
            }
        )
    heads = [head for head in rows[0] if any(row[head] != NONE for row in rows)]
    heads = heads[: len(heads) - (len(rows) == 1)]
    lines = [f"<tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"]
    for row in rows:  # each cell says its column too, for a screen too narrow for a table
        cells = (f'<td data-name="{head}">{escape(row[head])}</td>' for head in heads)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    ideal = (
        f"<p>Ideal speed-up over {escape(names[0])}, with everything hidden behind the longest of "
        f"host, device and copies: {ideal_speedup(base):.2f}×.</p>"
    )
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>' + ideal * (len(rows) > 1)


def work_of(trace: Trace) -> tuple[str, set[str], list[tuple[str, int]]]:
    """On which clock, who was served, and how many tokens each got, as far as the trace says."""
    outputs = [
        (str(mark.attrs.get("rid", "")), int(mark.attrs.get("outputs", 0)))
        for mark in trace.marks
        if mark.name == "finish" and mark.attrs.get("side") != "prefill"
    ]
    return trace.clock, {rid for item in trace.slices for rid in item.rids}, sorted(outputs)
