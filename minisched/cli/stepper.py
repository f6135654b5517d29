"""``minisched stepper``: recorded runs as one page to play, step and drag."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..export.html import to_html
from ..export.views import NothingToShow
from ..trace.files import write_whole
from .trace_file import read_trace


def run_stepper(sources: Sequence[Path], out: Path) -> None:
    """Read traces and write the page; the first is the baseline that speed-ups refer to.

    Raises:
        ValueError: a file is no trace or says too little, or the page can't be written.
    """
    traces = [read_trace(source) for source in sources]
    names = ", ".join(str(source) for source in sources)
    try:
        html = to_html(traces)
    except NothingToShow as error:
        raise ValueError(f"{names} can't be stepped through: {error}") from error
    write_whole(out, html, with_folders=True)
    print(out)
