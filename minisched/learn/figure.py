"""Pictures of runs, for notebooks and pages: an image that brings its own paper and styles."""

from __future__ import annotations

import base64
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any

from ..export.palette import DARK, LIGHT, ORANGE
from ..export.runs import compare
from ..export.scene_svg import to_svg
from ..export.views import draw
from ..loops.run import Run
from ..trace import Trace


@dataclass(frozen=True)
class LessonFigure:
    """An SVG. It is shown as an image, so that its styles stay its own, light and dark."""

    svg: str

    @property
    def title(self) -> str:
        """What it shows, in words: for those who hear the page."""
        found = re.search(r"<title>(.*?)</title>", self.svg, re.S)
        return unescape(found[1]) if found else "a picture"

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.svg.encode()).decode()
        return (
            f'<img alt="{escape(self.title, quote=True)}" style="max-width:100%;height:auto" '
            f'src="data:image/svg+xml;base64,{data}"/>'
        )

    def __repr__(self) -> str:
        return f"<picture: {self.title}>"


def trace_of(run: Run | Trace) -> Trace:
    """The trace of a run, or the trace itself."""
    return run.trace if isinstance(run, Run) else run


def timing(
    *runs: Run | Trace, steps: int = 3, whole: bool = False, title: str = ""
) -> LessonFigure:
    """Runs above each other on one time axis: a few settled steps, or all of them.

    Unless there is a ``title``, the picture says what it finds.

    Raises:
        ValueError: there is no run.
    """
    traces = [trace_of(run) for run in runs]
    return LessonFigure(to_svg(compare(traces, steps, whole, title)))


def view(topic: str, run: Run | Trace) -> LessonFigure:
    """A topic's own view of a run.

    Raises:
        ValueError: there is no such topic, or the run has nothing of it.
    """
    return LessonFigure(draw(topic, trace_of(run)))


# -- The few lines of the package that a lesson is about: read where they are, never copied --------

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Excerpt:
    """Lines of a file; ``marked`` are the numbers of those to look at."""

    path: str  # from the repository's root
    first_line: int
    lines: tuple[str, ...]
    marked: frozenset[int] = frozenset()

    @property
    def numbered(self) -> list[tuple[int, str]]:
        """Each line with its number."""
        return list(enumerate(self.lines, self.first_line))

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<span{' class=look' if number in self.marked else ''}><i>{number:4}</i>"
            f"{escape(line) or ' '}\n</span>"
            for number, line in self.numbered
        )
        return (
            f"<style>{STYLE}</style><figure class=minisched-source><figcaption>"
            f"{escape(self.path)}, from line {self.first_line}</figcaption>"
            f"<pre>{rows}</pre></figure>"
        )

    def __repr__(self) -> str:
        rows = (
            f"{'>' if number in self.marked else ' '}{number:4}  {line}".rstrip()
            for number, line in self.numbered
        )
        return "\n".join([f"{self.path}, from line {self.first_line}", *rows])


STYLE = (
    f".minisched-source{{margin:0;color:{LIGHT.ink};background:{LIGHT.lane};border-radius:6px}}"
    ".minisched-source figcaption{font:12px system-ui,sans-serif;padding:6px 10px 0;opacity:.75}"
    ".minisched-source pre{margin:0;padding:6px 0;overflow-x:auto;background:none;border:0;"
    "color:inherit;font:12.5px/1.45 ui-monospace,Menlo,Consolas,monospace}"
    ".minisched-source span{display:block;white-space:pre;padding:0 10px 0 6px;"
    "border-left:4px solid transparent;min-width:max-content}"
    ".minisched-source i{font-style:normal;opacity:.5;margin-right:1.2em;user-select:none}"
    f".minisched-source .look{{border-color:{ORANGE};background:{ORANGE}2e}}"
    f"@media(prefers-color-scheme:dark){{.minisched-source{{color:{DARK.ink};"
    f"background:{DARK.lane}}}}}"
)


def show(
    thing: Callable[..., Any] | type,
    from_text: str | None = None,
    to_text: str | None = None,
    look_at: tuple[str, ...] = (),
) -> Excerpt:
    """The source of a function, method or class, with its path and the numbers of its lines.

    ``from_text`` and ``to_text`` are words in the first and the last line wanted; a line that
    has one of the words ``look_at`` in it is marked.

    Raises:
        ValueError: words occur in no line.
    """
    lines, first = inspect.getsourcelines(thing)
    path = Path(inspect.getsourcefile(thing) or "").resolve()
    where = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    texts = _flush(lines)
    start = _line_with(from_text, texts, 0, where) if from_text else 0
    end = _line_with(to_text, texts, start, where) + 1 if to_text else len(texts)
    marked = {first + _line_with(words, texts, start, where) for words in look_at}
    return Excerpt(where, first + start, tuple(texts[start:end]), frozenset(marked))


def _flush(lines: list[str]) -> list[str]:
    """Without what the first line is indented by."""
    indent = len(lines[0]) - len(lines[0].lstrip())
    return [line[indent:].rstrip() if line.strip() else "" for line in lines]


def _line_with(words: str, lines: list[str], start: int, where: str) -> int:
    """The first line, from ``start`` on, in which the words stand."""
    for at in range(start, len(lines)):
        if words in lines[at]:
            return at
    raise ValueError(f"no line of {where} has {words!r} in it.")
