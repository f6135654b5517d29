"""The commands that show a recorded run: ``view``, ``watch`` and ``stepper``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..topics import TOPICS
from .exit import exit_with


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


def watch(
    trace: Annotated[
        Path | None, typer.Argument(help="A recorded run; a small one is made if none is named.")
    ] = None,
    loop: Annotated[
        str | None, typer.Option(help="The loop of the run that is made; overlap.")
    ] = None,
    at: Annotated[float, typer.Option(help="Begin at this moment, in milliseconds.")] = 0.0,
    delay: Annotated[float, typer.Option(help="Play, with so many seconds between events.")] = 0.0,
    frames: Annotated[int, typer.Option(help="How many moments where it is no terminal.")] = 8,
) -> None:
    """Step through a run in the terminal: its lanes, its source, its queue, set, slots and pages.

    Keys: right, space or n: next event; left or b: the one before; down or N: next step;
    up or P: the one before; home, end; p: play and pause; q: quit.
    Where it is no terminal, some moments are printed.
    """
    from .watch import run_watch

    exit_with(lambda: run_watch(trace, loop, at, delay, frames))


def stepper(
    traces: Annotated[list[Path], typer.Argument(help="Recorded runs; the first is the baseline.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("out/stepper.html"),
) -> None:
    """Write one page that plays, steps and drags recorded runs: source, queue, KV map, tree."""
    from .stepper import run_stepper

    run_stepper(traces, out)
