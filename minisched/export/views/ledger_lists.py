"""The ledger's lists, one after the other, read from a trace."""

from __future__ import annotations

from dataclasses import dataclass

from ...trace import Mark, Trace
from .marks import lacking, named, number, word


@dataclass(frozen=True)
class Entry:
    """The ledger at one moment: every sequence's output tokens, placeholders (-1) and all."""

    time: int  # nanoseconds
    after: str  # schedule: step ``step`` is on its way; response: its tokens came; dummy: none did
    step: int  # 0 for a dummy
    lists: dict[str, list[int]]


def entries_of(trace: Trace) -> list[Entry]:
    """The ``ledger`` marks.

    Raises:
        NothingToShow: one is not what it should be.
    """
    return [
        Entry(mark.time, word(mark, "after"), number(mark, "step"), lists_of(mark))
        for mark in named(trace, "ledger")
    ]


def lists_of(mark: Mark) -> dict[str, list[int]]:
    """``a: 5 -1; b: -1``.

    Raises:
        NothingToShow: it says something else.
    """
    found: dict[str, list[int]] = {}
    for item in filter(None, word(mark, "lists").split("; ")):
        rid, _, tokens = item.rpartition(":")
        try:
            found[rid] = [int(token) for token in tokens.split()]
        except ValueError:
            raise lacking(mark, "lists of token ids") from None
    return found
