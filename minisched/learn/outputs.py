"""Outputs of a lesson's cell: a table, and lines of the package."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import dedent
from typing import Any

from ..export.looks import ORANGE

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Table:
    """Rows of words, shown as a table."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def _repr_html_(self) -> str:
        lines = [f"<tr>{''.join(f'<th>{escape(head)}</th>' for head in self.heads)}</tr>"]
        lines += [f"<tr>{''.join(f'<td>{escape(x)}</td>' for x in row)}</tr>" for row in self.rows]
        return f"<table>{''.join(lines)}</table>"

    def __repr__(self) -> str:
        columns = list(zip(self.heads, *self.rows, strict=True))
        widths = [max(map(len, column)) for column in columns]
        return "\n".join(
            "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
            for row in (self.heads, *self.rows)
        )


@dataclass(frozen=True)
class Excerpt:
    """Lines of a file; ``marked`` are the numbers of the lines to look at."""

    path: str  # from the repository's root
    first_line: int
    lines: tuple[str, ...]
    marked: frozenset[int] = frozenset()

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<span style='display:block;border-left:4px solid "
            f"{f'{ORANGE};background:{ORANGE}2e' if number in self.marked else 'transparent'}'>"
            f"<i style='opacity:.7;user-select:none'>{number:4}  </i>{escape(line) or ' '}\n</span>"
            for number, line in enumerate(self.lines, self.first_line)
        )
        return (
            "<figure class=minisched-source style='margin:0;background:#8881;border-radius:6px'>"
            "<figcaption style='font:12px system-ui,sans-serif;padding:6px 10px 0;opacity:.75'>"
            f"{escape(self.path)}, from line {self.first_line}</figcaption>"
            "<pre style='margin:0;padding:6px 0;overflow-x:auto;background:none;border:0;"
            f"color:inherit;font:12.5px/1.45 ui-monospace,monospace'>{rows}</pre></figure>"
        )

    def __repr__(self) -> str:
        rows = (
            f"{'>' if number in self.marked else ' '}{number:4}  {line}".rstrip()
            for number, line in enumerate(self.lines, self.first_line)
        )
        return "\n".join([f"{self.path}, from line {self.first_line}", *rows])


def excerpt(
    thing: Callable[..., Any] | type,
    from_text: str = "",
    to_text: str = "",
    look_at: tuple[str, ...] = (),
) -> Excerpt:
    """Return the source of a function, method or class, with its path and line numbers.

    ``from_text`` and ``to_text`` occur in the first and the last line wanted. A line that contains
    one of the words ``look_at`` is marked.

    Raises:
        ValueError: words occur in no line.
    """
    source, first = inspect.getsourcelines(thing)
    path = Path(inspect.getsourcefile(thing) or "").resolve()
    where = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    lines = [line.rstrip() for line in dedent("".join(source)).splitlines()]

    def line_with(words: str, start: int) -> int:
        """Return the index of the first line from ``start`` that contains ``words``."""
        for at in range(start, len(lines)):
            if words in lines[at]:
                return at
        raise ValueError(f"no line of {where} has {words!r} in it.")

    start = line_with(from_text, 0)
    end = line_with(to_text, start) + 1 if to_text else len(lines)
    marked = frozenset(first + line_with(words, start) for words in look_at)
    return Excerpt(where, first + start, tuple(lines[start:end]), marked)
