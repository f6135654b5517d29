"""Writes a comparison's pictures and traces into a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..comparison import Comparison
from ..export.chrome import to_chrome
from ..export.html import to_html
from ..export.native import to_json
from ..export.puml_sequence import to_sequence
from ..export.puml_timing import to_timing
from ..export.svg import to_svg
from ..trace import Trace
from ..trace.files import write_whole


def write_pictures(comparison: Comparison, out: Path) -> list[Path]:
    """The page, the picture, and for each loop its diagrams and its trace, in two forms.

    ``LOOP.trace.json`` is for Perfetto, ``LOOP.json`` for ``minisched view``.

    Raises:
        ValueError: a file can't be written.
    """
    traces = [run.trace for run in comparison.runs]
    files = {"compare.html": to_html(traces, comparison.reports), "compare.svg": to_svg(traces)}
    for report, trace in zip(comparison.reports, traces, strict=True):
        name = stem(trace)
        if report.steps:  # nothing to draw where every request was refused
            files[f"{name}_timing.puml"] = to_timing(trace)
            files[f"{name}_sequence.puml"] = to_sequence(trace)
        files[f"{name}.trace.json"] = to_chrome(trace)
        files[f"{name}.json"] = to_json(trace)
    return write(files, out)


def write_traces(traces: Sequence[Trace], out: Path) -> list[Path]:
    """The traces alone, as of runs of which the last one stopped with an error.

    Raises:
        ValueError: a file can't be written.
    """
    return write({f"{stem(trace)}.json": to_json(trace) for trace in traces}, out)


def stem(trace: Trace) -> str:
    """What a run's files are called: not every system takes a colon in a file's name."""
    return trace.loop.replace(":", "-")


def write(files: Mapping[str, str], out: Path) -> list[Path]:
    """Texts by the name of their file.

    Raises:
        ValueError: a file can't be written.
    """
    for name, text in files.items():
        write_whole(out / name, text)
    return [out / name for name in files]
