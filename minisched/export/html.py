"""One page for two or more whole runs on one time axis: zoom, pan, hover. Needs no network.

The page is made of the ``compare_*`` files beside this one, with the runs as JSON. It draws only
what is visible, so ten thousand slices stay smooth.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from ..checks.overlap import OverlapReport, ideal_speedup, measure
from ..checks.waits import num_waits
from ..trace import Trace
from .html_data import page_data
from .loops_shown import loops_shown
from .palette import ARROWS, PAINTS
from .svg_style import variables
from .svg_waits import wait_variable
from .units import ms

SCRIPTS = ("compare_scale.js", "compare_draw.js", "compare_page.js")


def to_html(
    traces: Sequence[Trace], reports: Sequence[OverlapReport] | None = None, title: str = ""
) -> str:
    """The page. ``reports`` may bring what a trace does not know (tokens); else they are measured.

    The first run is the baseline that speed-ups refer to.

    Raises:
        ValueError: there is no trace, or not one report a trace.
    """
    reports = [measure(trace) for trace in traces] if reports is None else list(reports)
    if not traces or len(reports) != len(traces):
        raise ValueError(
            f"a page needs at least 1 trace and a report for each, "
            f"but got {len(traces)} and {len(reports)}."
        )
    title = title or loops_shown(traces)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{variables()}\n{wait_variable()}\n{_part('compare_page.css')}</style>",
            "</head>\n<body>",
            *_body(traces, reports, title),
            f'<script id="data" type="application/json">{page_data(traces)}</script>',
            *(f"<script>\n{_part(name)}</script>" for name in SCRIPTS),
            "</body>\n</html>\n",
        ]
    )


def _body(traces: Sequence[Trace], reports: Sequence[OverlapReport], title: str) -> list[str]:
    clock = "simulated" if traces[0].clock == "virtual" else "measured"
    buttons = {"all": "whole run", "few": "a few steps", "in": "zoom in", "out": "zoom out"}
    buttons |= {"left": "◀", "right": "▶"}
    return [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(traces[0].model)} model on {escape(traces[0].device)}, {clock} time. "
        "Wheel or + and - to zoom, drag or arrow keys to move, point at a slice to see its "
        "edges.</p>",
        "<nav>"
        + "".join(f'<button data-do="{do}">{text}</button>' for do, text in buttons.items())
        + "</nav>",
        *(_canvas(report) for report in reports),
        '<canvas class="axis"></canvas>',
        _legend(traces),
        _table(reports),
        '<div id="tip" hidden></div>',
    ]


def _canvas(report: OverlapReport) -> str:
    about = f"device busy {report.device_busy_percent:.1f} %, {ms(report.makespan_ns)} ms"
    return (
        f"<h2>{escape(report.loop)} <span>{about}</span></h2>"
        f'<canvas class="run" role="img" aria-label="{escape(report.loop)}: {about}"></canvas>'
    )


def _legend(traces: Sequence[Trace]) -> str:
    seen = {item.name for trace in traces for item in trace.slices if item.duration}
    items = [
        f'<span><i class="{name}"'
        + ("" if name == "wait" else f' style="background:{PAINTS[name].fill}"')
        + f"></i>{name}</span>"
        for name in PAINTS
        if name in seen
    ]
    items.append('<span><i class="bubble"></i>bubble: the device idles</span>')
    if reasons := dict.fromkeys(reason for trace in traces for reason in num_waits(trace)):
        waits = f"the device waits for {escape(', '.join(reasons))}"
        items.append(f'<span><i class="waited"></i>{waits}</span>')
    items += [
        f'<span><i class="arrow" style="background:var(--{kind})"></i>{text}</span>'
        for kind, text in ARROWS.items()
    ]
    if any(trace.marks for trace in traces):
        items.append('<span class="mark">▼ a mark: a wasted row, a retraction, a wait</span>')
    return f'<div class="legend">{"".join(items)}</div>'


def _table(reports: Sequence[OverlapReport]) -> str:
    """The metrics, one run a row."""
    base = reports[0]
    heads = ["loop", "steps", "tokens", "makespan", "device busy", "bubbles", "host busy"]
    heads += ["host hidden", "wasted rows", "speed-up"]
    rows = []
    for report in reports:
        speedup = base.makespan_ns / report.makespan_ns if report.makespan_ns else 1.0
        cells = [
            report.loop,
            report.steps,
            report.tokens or "–",
            f"{ms(report.makespan_ns)} ms",
            f"{report.device_busy_percent:.1f} %",
            f"{ms(report.bubble_ns)} ms",
            f"{ms(report.host_busy_ns)} ms",
            f"{report.host_hidden_percent:.1f} %",
            report.wasted_rows,
            f"{speedup:.2f}×",
        ]
        rows.append("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>")
    return (
        '<div class="scroll"><table><tr>'
        + "".join(f"<th>{head}</th>" for head in heads)
        + "</tr>"
        + "".join(rows)
        + "</table></div>"
        + f"<p>Ideal speed-up over {escape(base.loop)}, with the shorter of host and device hidden "
        f"behind the longer: {ideal_speedup(base):.2f}×.</p>"
    )


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
