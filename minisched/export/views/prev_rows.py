"""Where each step took its input from, row by row, read from a trace."""

from __future__ import annotations

from dataclasses import dataclass

from ...checks.overlap import forwards
from ...trace import Trace
from .marks import lacking, named, number, word


@dataclass(frozen=True)
class StepInput:
    """One step's input: its requests, its path, and which row of the step before each goes on."""

    step: int
    rids: tuple[str, ...]
    path: str  # full, slice or scatter
    new: int  # tokens that came from the CPU
    sources: dict[str, int]  # request -> its row in the step before


def inputs_of(trace: Trace) -> list[StepInput]:
    """Every step that ran, in order.

    Raises:
        NothingToShow: a mark names more rows than its step has.
    """
    rids = {item.step: item.rids for item in forwards(trace)}
    found: list[StepInput] = []
    for mark in named(trace, "prev sampled"):
        step = number(mark, "step")
        if step not in rids:
            continue  # it never ran, or is cut off
        before = rids.get(step - 1, ())
        places = [int(part) for part in word(mark, "sources").split() if part.isdecimal()]
        if any(place >= len(before) for place in places):
            raise lacking(mark, "rows that the step before has")
        sources = {before[place]: place for place in places}
        found.append(StepInput(step, rids[step], word(mark, "path"), number(mark, "new"), sources))
    return found
