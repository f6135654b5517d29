"""The metrics of the runs on the page, one run a row."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..checks.overlap import OverlapReport, ideal_speedup
from .units import ms

HEADS = (
    "loop", "steps", "tokens", "makespan", "device busy", "bubbles", "host busy", "host hidden",
    "wasted rows", "speed-up",
)  # fmt: skip


def metrics_table(reports: Sequence[OverlapReport]) -> str:
    """The table; speed-ups refer to the first run."""
    base = reports[0]
    rows = [
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(report, base)) + "</tr>"
        for report in reports
    ]
    return (
        '<div class="scroll"><table><tr>'
        + "".join(f"<th>{head}</th>" for head in HEADS)
        + "</tr>"
        + "".join(rows)
        + "</table></div>"
        + f"<p>Ideal speed-up over {escape(base.loop)}, with the shorter of host and device hidden "
        f"behind the longer: {ideal_speedup(base):.2f}×.</p>"
    )


def _cells(report: OverlapReport, base: OverlapReport) -> tuple[str, ...]:
    speedup = base.makespan_ns / report.makespan_ns if report.makespan_ns else 1.0
    return (
        report.loop,
        str(report.steps),
        str(report.tokens or "–"),
        f"{ms(report.makespan_ns)} ms",
        f"{report.device_busy_percent:.1f} %",
        f"{ms(report.bubble_ns)} ms",
        f"{ms(report.host_busy_ns)} ms",
        f"{report.host_hidden_percent:.1f} %",
        str(report.wasted_rows),
        f"{speedup:.2f}×",
    )
