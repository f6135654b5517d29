"""``minisched stepper``: recorded runs as one page that plays them."""

from __future__ import annotations

from pathlib import Path

import typer

from ..export.html import to_html
from ..export.views import NothingToShow
from ..trace.files import write_whole
from .options import setting
from .sources import run_named


def stepper(
    sources: list[str] = typer.Argument(
        help="Recorded runs, or loops (also FILE.py:NAME); the first is the baseline."
    ),
    out: Path = setting(Path("out/stepper.html"), "The page."),
) -> None:
    """Write one page that plays, steps and drags runs: source, queue, KV map, tree.

    A loop runs the pictures' usual five requests.
    """
    try:
        html = to_html([run_named(source) for source in sources])
    except NothingToShow as error:
        raise ValueError(f"{', '.join(sources)} can't be stepped through: {error}") from error
    write_whole(out, html, with_folders=True)
    print(out)
