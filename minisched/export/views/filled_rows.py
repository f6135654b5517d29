"""Which rows of each step were filled from which rows of the step before, read from a trace."""

from __future__ import annotations

from dataclasses import dataclass

from ...trace import Mark, Trace
from .marks import lacking, named, number, word
from .steps import steps_of

KNOWN = -1  # no row: the host knows the tokens


@dataclass(frozen=True)
class FilledStep:
    """One step: its rows, and where the token of each came from.

    ``kinds``: prompt or again, known (a decode whose token the host knows), hit, or wasted (a hit
    of a request that had ended).
    """

    step: int
    start: int  # nanoseconds: when its forward pass began
    rids: tuple[str, ...]
    kinds: tuple[str, ...]
    sources: tuple[int, ...]  # a row of the last step, or KNOWN


def filled_steps(trace: Trace) -> list[FilledStep]:
    """Every step that ran, from the ``placeholder fill`` marks; empty where there are none.

    Raises:
        NothingToShow: a mark is not what it should be.
    """
    marks = {number(mark, "step"): mark for mark in named(trace, "placeholder fill")}
    found: list[FilledStep] = []
    for work in steps_of(trace):
        if work.step not in marks:
            continue
        rids = tuple(part.rid for part in work.parts)
        before = len(found[-1].rids) if found else 0
        sources = rows_of(marks[work.step], len(rids), before)
        kinds = tuple(
            kind_of(part.kind, source) for part, source in zip(work.parts, sources, strict=True)
        )
        found.append(FilledStep(work.step, work.start, rids, kinds, sources))
    return found


def kind_of(kind: str, source: int) -> str:
    """What a row is to the fill."""
    return kind if kind != "decode" else "known" if source == KNOWN else "hit"


def rows_of(mark: Mark, num_rows: int, num_last: int) -> tuple[int, ...]:
    """The row that each row is filled from.

    Raises:
        NothingToShow: there are not as many as rows, or one is not a row of the last step.
    """
    words = word(mark, "rows").split()
    try:
        rows = tuple(map(int, words))
    except ValueError:
        rows = ()
    if len(rows) != num_rows or not all(KNOWN <= row < num_last for row in rows):
        raise lacking(mark, "for each row of its step the row that it is filled from")
    return rows
