"""MindIE's two layers and the pipeline in their place: a table with every figure read off a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..checks.overlap import OverlapReport, measure
from ..trace import Trace
from ..trace.events import is_host
from .recipes import a_bit_of_everything, run_of
from .tables import filled, table


def pipelines_table() -> str:
    """The comparison as a markdown page, the same every time."""
    columns = {
        "two layers": run_of("mindie_dual"),
        "two layers, filled on the device": a_bit_of_everything("mindie_dual", "fill_device").run(),
        "one pipeline": run_of("mindie_single"),
    }
    rows = compare_pipelines(list(columns.values()))
    figures = {"table": table(["", *columns], map(cells, rows))}
    return filled("mindie_pipeline_refactor", figures)


def cells(row: ComparedRow) -> list[str]:
    """A line of the table."""
    name = f"{row.name} ({row.unit})" if row.unit else row.name
    return [name, *(f"{value:g}" for value in row.values)]


# -- The lines of the table, each read off the runs ------------------------------------------------

BOOKS = ("ledger", "context")  # marks; whoever keeps a book of requests records it under its name


class ComparedRow(NamedTuple):
    """One line of the comparison: what is compared, its unit, and a value for each run."""

    name: str
    unit: str
    values: tuple[float, ...]


def compare_pipelines(traces: Sequence[Trace]) -> list[ComparedRow]:
    """The lines of ``mindie_pipeline_refactor_compare``, a column for each trace.

    All of it is read from the traces, which have to be of one workload. ``host work`` is that of
    all host threads together, without what they wait. ``books`` counts what is kept on requests
    beside the scheduler's own state: the ledger of placeholders, the plugin's context.
    """
    reports = [measure(trace) for trace in traces]

    def row(name: str, unit: str, *values: float) -> ComparedRow:
        return ComparedRow(name, unit, values)

    return [
        row("steps", "", *(report.steps for report in reports)),
        row("makespan", "ms", *(in_ms(report.makespan_ns) for report in reports)),
        row("device busy", "%", *(round(report.device_busy_percent, 1) for report in reports)),
        row("host work", "ms", *(in_ms(report.host_busy_ns) for report in reports)),
        row("host work a step", "ms", *map(host_work_of_a_step, reports)),
        row("wasted rows", "", *(report.wasted_rows for report in reports)),
        row("host threads", "", *map(host_threads, traces)),
        row("books of requests", "", *map(books_kept, traces)),
    ]


def in_ms(nanoseconds: float) -> float:
    """Milliseconds, to a hundredth."""
    return round(nanoseconds / 1e6, 2)


def host_work_of_a_step(report: OverlapReport) -> float:
    """Milliseconds of host work for each step."""
    return in_ms(report.host_busy_ns / max(1, report.steps))


def host_threads(trace: Trace) -> int:
    """Threads of the host that ran something."""
    return len({item.lane for item in trace.slices if is_host(item.lane)})


def books_kept(trace: Trace) -> int:
    """Books of requests that were recorded."""
    return len({mark.name for mark in trace.marks if mark.name in BOOKS})
