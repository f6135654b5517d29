"""The metrics of the runs on the page, one run a row."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..checks.overlap import OverlapReport, beats_ideal, ideal_speedup, speedup_over, versus_ideal
from ..trace import Trace
from .html_runs import CLOCKS, run_names
from .units import ms

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
            _row(tag, [cell for cell, is_filled in zip(row, filled, strict=True) if is_filled])
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


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


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
