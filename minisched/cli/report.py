"""What ``compare`` says: a table, the verdict, and why it is faster."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..comparison import COLUMNS, Comparison, cells, sentences, verdict
from ..export.pd_or_mixed import Row, find_runs, rows
from .layout import Fitted


def print_report(console: Console, comparison: Comparison) -> None:
    """The table, the verdict and the reason."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 0))
    for column in COLUMNS:
        is_name = column == "loop"  # which may be long: it is folded before a figure is cut
        table.add_column(
            column, justify="left" if is_name else "right", no_wrap=not is_name, overflow="fold"
        )
    for report in comparison.reports:
        table.add_row(*cells(comparison, report))
    console.print(Fitted(table))
    bold = verdict(comparison)
    for line in sentences(comparison):
        console.print(f"[bold]{line}[/bold]" if line == bold else line, highlight=False)
    if pair := find_runs(comparison.runs):
        print_pd_or_mixed(console, rows(*pair))


def print_pd_or_mixed(console: Console, compared: Sequence[Row]) -> None:
    """The guides' comparison of PD separation and mixed chunks."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for column in ("", "PD separation", "mixed chunks"):
        table.add_column(column)
    for row in compared:
        table.add_row(*row)
    console.print(Fitted(table))


def print_errors(errors: Mapping[str, str]) -> None:
    """Say on stderr which requests ended badly, and why."""
    for rid, error in errors.items():
        print(f"request {rid}: {error}", file=sys.stderr)
