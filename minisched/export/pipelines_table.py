"""MindIE's two layers and the pipeline in their place: a table with every figure read off a run."""

from __future__ import annotations

from ..checks.overlap import measure
from ..trace import Trace
from ..trace.events import is_host
from .recipes import a_bit_of_everything, run_of
from .tables import filled, table

BOOKS = ("ledger", "context")  # marks; whoever keeps a book of requests records it under its name


def pipelines_table() -> str:
    """The comparison as a markdown page, the same every time."""
    columns = {
        "two layers": run_of("mindie_dual"),
        "two layers, filled on the device": a_bit_of_everything("mindie_dual", "fill_device").run(),
        "one pipeline": run_of("mindie_single"),
    }
    counted = [pipeline_figures(trace) for trace in columns.values()]
    rows = [[name, *(f"{figures[name]:g}" for figures in counted)] for name in counted[0]]
    return filled("mindie_pipeline_refactor", {"table": table(["", *columns], rows)})


def pipeline_figures(trace: Trace) -> dict[str, float]:
    """The table's column of one run.

    ``host work`` is that of all host threads together, without what they wait. ``books`` counts
    what is kept on requests beside the scheduler's own state: the ledger of placeholders, the
    plugin's context.
    """
    report = measure(trace)
    return {
        "steps": report.steps,
        "makespan (ms)": in_ms(report.makespan_ns),
        "device busy (%)": round(report.device_busy_percent, 1),
        "host work (ms)": in_ms(report.host_busy_ns),
        "host work a step (ms)": in_ms(report.host_busy_ns / max(1, report.steps)),
        "wasted rows": report.wasted_rows,
        "host threads": len({item.lane for item in trace.slices if is_host(item.lane)}),
        "books of requests": len({mark.name for mark in trace.marks if mark.name in BOOKS}),
    }


def in_ms(nanoseconds: float) -> float:
    """Milliseconds, to a hundredth."""
    return round(nanoseconds / 1e6, 2)
