"""Checked reads of marks, for traces of any origin.

Each function raises ``NothingToShow`` where a mark is missing, or lacks an attribute.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from ...trace import Mark, Trace
from ..scene import GridCell
from ..units import ms


class NothingToShow(ValueError):
    """A trace without the events that a view needs; the message is one sentence."""


def named(trace: Trace, *names: str) -> list[Mark]:
    """Return the marks of these names, by time."""
    return [mark for mark in trace.marks if mark.name in names]


def needed(trace: Trace, name: str, why: str, steps: Container[object] | None = None) -> list[Mark]:
    """Return the marks of a name, of these steps if any are given.

    Without one there is no picture, and the error contains ``why``.
    """
    found = named(trace, name)
    if steps is not None:
        found = [mark for mark in found if number(mark, "step") in steps]
    if found:
        return found
    raise NothingToShow(f"the trace has no {name} mark: {why}.")


def number(mark: Mark, name: str) -> int:
    """Return a whole number from a mark's attributes."""
    if isinstance(value := mark.attrs.get(name), int):
        return value
    raise lacking(mark, f"{name} as a whole number")


def word(mark: Mark, name: str) -> str:
    """Return a text from a mark's attributes."""
    if isinstance(value := mark.attrs.get(name), str):
        return value
    raise lacking(mark, f"{name} as a text")


def words(mark: Mark, name: str) -> list[str]:
    """Return texts from a mark's attributes."""
    found = mark.attrs.get(name)
    if not isinstance(found, tuple) or not all(isinstance(one, str) for one in found):
        raise lacking(mark, f"{name} as texts")
    return list(found)


def numbers(mark: Mark, name: str, least: int = 0) -> list[int]:
    """Return whole numbers from a mark's attributes, each at least ``least``."""
    found = mark.attrs.get(name)
    if not isinstance(found, tuple) or not all(isinstance(one, int) for one in found):
        raise lacking(mark, f"{name} as whole numbers")
    if min(found, default=least) < least:
        raise lacking(mark, f"{name} as whole numbers")
    return list(found)


def lacking(mark: Mark, what: str) -> NothingToShow:
    """Return the error of a mark without the attribute ``what``."""
    return NothingToShow(f"the mark {mark.name!r} at {ms(mark.time)} ms lacks {what}.")


# -- Words that fit their place --------------------------------------------------------------------


def short(words: str, most: int) -> str:
    """Return the part of a text that fits into ``most`` characters."""
    return words if len(words) <= most else words[: most - 1] + "…"


def short_end(words: str, most: int) -> str:
    """Return the end of a name, its distinctive part, for a narrow box."""
    return words if len(words) <= most else "…" + words[len(words) - most + 1 :]


def first_of(most: int, count: int, noun: str = "") -> str:
    """Return ``the first 3 of 7 steps``; empty where all are shown."""
    return f"the first {most} of {count} {noun}{'s' * bool(noun)}".rstrip() * (count > most)


def first_rows(
    most: int, cells: Mapping[tuple[int, int], GridCell]
) -> dict[tuple[int, int], GridCell]:
    """Return the cells of a grid's first ``most`` rows."""
    return {at: cell for at, cell in cells.items() if at[0] < most}


def ordinal(number: int) -> str:
    """Return ``1st``, ``2nd``, ``3rd``, ``4th``."""
    special = {1: "st", 2: "nd", 3: "rd"} if number % 100 not in (11, 12, 13) else {}
    return f"{number}{special.get(number % 10, 'th')}"
