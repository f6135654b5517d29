"""Reading the marks of a trace that anybody may have written."""

from __future__ import annotations

from ...trace import Mark, Trace
from ..units import ms


class NothingToShow(ValueError):
    """A trace without the events that a view needs; the message is one sentence."""


def named(trace: Trace, *names: str) -> list[Mark]:
    """The marks of these names, in order of time."""
    return [mark for mark in trace.marks if mark.name in names]


def number(mark: Mark, name: str) -> int:
    """A whole number among a mark's attributes.

    Raises:
        NothingToShow: it is not there.
    """
    value = mark.attrs.get(name)
    if not isinstance(value, int):
        raise lacking(mark, f"{name} as a whole number")
    return value


def word(mark: Mark, name: str) -> str:
    """A text among a mark's attributes.

    Raises:
        NothingToShow: it is not there.
    """
    value = mark.attrs.get(name)
    if not isinstance(value, str):
        raise lacking(mark, f"{name} as a text")
    return value


def lacking(mark: Mark, what: str) -> NothingToShow:
    """The error of a mark that does not say enough."""
    return NothingToShow(f"the mark {mark.name!r} at {ms(mark.time)} ms lacks {what}.")
