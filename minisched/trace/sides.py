"""The events of one scheduler in a run with a pair of them (``loops/pd.py``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..record import Mark, Slice
from .events import Trace

PAIR = ("prefill", "decode")  # in the order of their lanes


def sides(trace: Trace) -> tuple[str, ...]:
    """Return the sides of a pair of schedulers; a single scheduler is a side without a name."""
    return PAIR if any("side" in mark.attrs for mark in trace.marks) else ("",)


def own_attrs(mark: Mark) -> dict[str, Any]:
    """Return a mark's attributes without the name of its side."""
    return {name: value for name, value in mark.attrs.items() if name != "side"}


def one_side(trace: Trace, side: str) -> Trace:
    """Return one side's events, without the side's name in lanes, counters and marks.

    It ends when the whole run does.
    """
    if not side:
        return trace
    before = f"{side} "
    own = [replace(item, lane=item.lane.removeprefix(before))
           for item in trace.slices if item.lane.startswith(before)]  # fmt: skip
    end = Slice(0, "the other side", "end", trace.end, trace.end)
    counters = [replace(item, name=item.name.removeprefix(before))
                for item in trace.counters if item.name.startswith(before)]  # fmt: skip
    marks = [
        replace(mark, attrs=own_attrs(mark))
        for mark in trace.marks
        if mark.attrs.get("side") == side
    ]
    return replace(trace, slices=(*own, end), edges=(), counters=tuple(counters),
                   marks=tuple(marks))  # fmt: skip


def shown_side(trace: Trace) -> Trace:
    """Return the side for a picture with room for one scheduler: of a pair the decoding one."""
    return one_side(trace, sides(trace)[-1])


def side_words(trace: Trace) -> str:
    """Return the name of ``shown_side`` for the line under a title; empty for a single one."""
    return f"the {side} side" if (side := sides(trace)[-1]) else ""
