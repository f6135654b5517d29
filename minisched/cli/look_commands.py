"""The commands that show a recorded run: ``view`` and ``stepper``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..topics import TOPICS


def view(
    topic: Annotated[
        str, typer.Argument(help=f"What to show: {', '.join(TOPICS)}, or a loop by name.")
    ],
    trace: Annotated[Path, typer.Argument(help="A recorded run, such as traces/prefill.json.")],
    form: Annotated[str, typer.Option(help="svg, puml (PlantUML) or text.")] = "svg",
    part: Annotated[
        str,
        typer.Option(
            help="Of a loop: timing, sequence or steps; vllm_batch_queue has queue, too, and "
            "mindie_placeholder ledger; else the first."
        ),
    ] = "",
    out: Annotated[
        str | None, typer.Option(help="A file, or - for stdout, as for text; else TOPIC.FORM.")
    ] = None,
) -> None:
    """Draw one topic's picture of a recorded run: the radix tree, the budget, the running set.

    Of a loop: who works when (timing), who tells whom (sequence), and step under step (steps).
    """
    from .view import run_view

    run_view(topic, trace, form, part, out)


def stepper(
    traces: Annotated[list[Path], typer.Argument(help="Recorded runs; the first is the baseline.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("out/stepper.html"),
) -> None:
    """Write one page that plays, steps and drags recorded runs: source, queue, KV map, tree."""
    from .view import run_stepper

    run_stepper(traces, out)
