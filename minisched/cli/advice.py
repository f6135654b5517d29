"""``--advise``: a run beside the published targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..engine.advise import Advice, advise
from ..loops.run import Run
from ..scheduler import SchedulerConfig
from .layout import Fitted


def print_advice(console: Console, runs: Sequence[Run], config: SchedulerConfig) -> None:
    """One table for each run."""
    for run in runs:
        console.print(Fitted(table(run.loop, advise(run.metrics, config))))


def table(loop: str, advice: Sequence[Advice]) -> Table:
    """The figures, their targets, and what to change."""
    result = Table(
        box=SIMPLE_HEAD, pad_edge=False, title=f"Advice for {loop}", title_justify="left"
    )
    for column in ("figure", "here", "target", "", "advice"):
        result.add_column(column, justify="right" if column in ("here", "target") else "left")
    for item in advice:
        here = f"{item.value:.0f} {item.unit}"
        result.add_row(item.name, here, f"{item.target} {item.unit}", item.verdict, item.sentence)
    return result


def as_json(run: Run, config: SchedulerConfig) -> list[dict[str, Any]]:
    """The same for ``--json``."""
    return [vars(item) for item in advise(run.metrics, config)]
