"""``minisched view`` and ``stepper``: a recorded run as one topic's picture, or as a page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..export.html import to_html
from ..export.native import read_recorded
from ..export.scene_text import LEAST
from ..export.views import FORMS, NothingToShow, draw, parts_of
from ..topics import TOPICS
from ..trace.files import write_whole
from .layout import columns


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
    parts_of(topic)  # whether there is such a topic
    if form not in FORMS:
        raise ValueError(f"--form is {form!r}, but it must be one of {', '.join(FORMS)}.")
    try:
        drawn = draw(topic, read_recorded(trace).trace, form, part, max(LEAST, columns()))
    except NothingToShow as error:
        raise ValueError(f"{trace} can't be shown as {topic}: {error}") from error
    name = f"{topic}_{part}" if part and part != parts_of(topic)[0] else topic
    name = name.replace(":", "-")  # a loop with its relay, as its trace file is called
    target = out or ("-" if form == "text" else f"{name}.{form}")
    if target != "-":
        write_whole(Path(target), drawn)
        print(target)
    else:
        sys.stdout.write(drawn + "\n" * (not drawn.endswith("\n")))


def stepper(
    traces: Annotated[list[Path], typer.Argument(help="Recorded runs; the first is the baseline.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("out/stepper.html"),
) -> None:
    """Write one page that plays, steps and drags recorded runs: source, queue, KV map, tree."""
    try:
        html = to_html([read_recorded(source).trace for source in traces])
    except NothingToShow as error:
        names = ", ".join(map(str, traces))
        raise ValueError(f"{names} can't be stepped through: {error}") from error
    write_whole(out, html, with_folders=True)
    print(out)
