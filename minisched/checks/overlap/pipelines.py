"""One workload through two pipelines, line by line: what a second layer costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...trace import Trace
from ...trace.events import is_host
from .overlap import OverlapReport, measure

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
