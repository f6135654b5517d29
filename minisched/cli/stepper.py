"""``minisched stepper``: recorded runs as one page that plays them."""

from __future__ import annotations

from pathlib import Path

import typer

from ..export.html import to_html
from ..export.native import read_recorded
from ..export.views import NothingToShow
from ..trace.files import write_whole
from .options import setting


def stepper(
    traces: list[Path] = typer.Argument(help="Recorded runs; the first is the baseline."),
    out: Path = setting(Path("out/stepper.html"), "The page."),
) -> None:
    """Write one page that plays, steps and drags recorded runs: source, queue, KV map, tree."""
    try:
        html = to_html([read_recorded(source).trace for source in traces])
    except NothingToShow as error:
        names = ", ".join(map(str, traces))
        raise ValueError(f"{names} can't be stepped through: {error}") from error
    write_whole(out, html, with_folders=True)
    print(out)
