"""The stepper: one page in which whole runs on one time axis can be played, stepped and dragged.

It needs no network: the page is made of the ``stepper*`` files beside this one, with the runs as
JSON. At each moment it shows where in its source each loop is, and what the engine's state is. It
draws only what is visible, so ten thousand slices stay smooth.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from ..checks.overlap import OverlapReport, measure
from ..trace import Trace
from .html_data import page_data
from .html_legend import legend
from .html_moment import moment
from .html_runs import are_alike, run_names, setting, title_of, what_it_is
from .html_table import metrics_table
from .html_tools import KEYS, POSITION, TOOLBAR
from .state import panels
from .svg_style import variables
from .svg_waits import wait_variable
from .units import ms

STYLES = ("stepper.css", "stepper_panels.css")
SCRIPTS = (
    "stepper_scale.js",  # pixels and colours
    "stepper_data.js",  # the runs
    "stepper_moment.js",  # what is true when
    "stepper_lanes.js",  # drawing: slices
    "stepper_arrows.js",  # drawing: edges and flags
    "stepper_entries.js",  # panels: queue, set, ring, rows, tree
    "stepper_pages.js",  # panels: the KV map
    "stepper_source.js",  # panels: source and counters
    "stepper_life.js",  # a request's whole life
    "stepper_tip.js",  # what is said of what is pointed at
    "stepper_address.js",  # links to a moment
    "stepper_page.js",  # the page's state, and drawing it again
    "stepper_play.js",  # time goes by
    "stepper_pointer.js",  # mouse and fingers
    "stepper_keys.js",  # buttons and keys; starts everything
)


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
    title = title or title_of(traces)
    states = [panels(trace) for trace in traces]
    frames = [moment(at, name, traces[at], states[at]) for at, name in enumerate(run_names(traces))]
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{variables()}\n{wait_variable()}",
            *(_part(name) for name in STYLES),
            "</style>\n</head>\n<body>",
            *_lanes(traces, reports, title),
            *_below(traces, reports, frames),
            f'<script id="data" type="application/json">{page_data(traces, states)}</script>',
            *(f"<script>\n{_part(name)}</script>" for name in SCRIPTS),
            "</body>\n</html>\n",
        ]
    )


def _lanes(traces: Sequence[Trace], reports: Sequence[OverlapReport], title: str) -> list[str]:
    """What it is, the buttons, and the runs over time."""
    said = [""] * len(traces) if are_alike(traces) else [f"{setting(run)}: " for run in traces]
    return [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(what_it_is(traces))} The vertical line is <strong>now</strong>: drag "
        "it, press → for the next event, or space to play. Below is what is true at that moment. "
        "Click a slice to follow its request.</p>",
        TOOLBAR,
        '<div id="lanes">',
        *(_run(at, name, said[at], reports[at]) for at, name in enumerate(run_names(traces))),
        '<canvas class="axis" role="img" aria-label="time axis, in ms"></canvas>'
        '<div id="cursor"><span></span></div></div>',
        POSITION,
        legend(traces),
    ]


def _below(
    traces: Sequence[Trace], reports: Sequence[OverlapReport], frames: Sequence[str]
) -> list[str]:
    """The chosen request's life, the state at the cursor, and what the runs come to."""
    return [
        '<section id="life" aria-label="the chosen requests" hidden></section>',
        '<div id="tabs" role="group" aria-label="run"></div>',
        '<div id="moments">',
        *frames,
        "</div>",
        metrics_table(traces, reports),
        KEYS,
        '<div id="tip" hidden></div>',
    ]


def _run(at: int, name: str, said: str, report: OverlapReport) -> str:
    busy = f"device busy {report.device_busy_percent:.1f} %, {ms(report.makespan_ns)} ms"
    loop, about = escape(name), escape(said) + busy
    return (
        f'<h2><button data-activate="{at}" title="step through the events of {loop}">{loop}'
        f"</button> <span>{about}</span></h2>"
        f'<canvas class="run" role="img" aria-label="{loop}: {about}"></canvas>'
    )


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
