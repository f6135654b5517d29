"""``minisched stepper``: recorded runs as one page that plays them."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import typer

from ..checks.reading import read_recorded
from ..export.html import to_html
from ..export.views import NothingToShow
from ..loops.design import LOOPS, find_loop, own_line
from ..own_loops import add_loop
from ..recipes import a_bit_of_everything
from ..trace import Trace
from ..trace.files import write_whole
from .options import setting


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


def run_named(source: str) -> Trace:
    """Return a loop's run of the pictures' usual requests, or the recorded run in a file.

    Raises:
        ValueError: it is neither, or a loop of one's own stops with an error.
    """
    name, path = add_loop(source), Path(source)
    if name.partition(":")[0] not in LOOPS:
        if not (path.suffix or path.exists()):
            near = get_close_matches(name, LOOPS, 1, cutoff=0)
            raise ValueError(
                f"{source!r} is no loop and no recorded run (.json). The most similar loop is "
                f"{near[0]!r}; minisched compare --loops all lists the published ones."
            )
        return read_recorded(path).trace
    design = find_loop(name)
    try:
        return a_bit_of_everything(name).run()
    except Exception as error:
        if place := own_line(error, design)[0]:
            what = f"{name} stopped with {type(error).__name__}: {error}"
            raise ValueError(f"{what.rstrip('.')}{place}.") from error
        raise
