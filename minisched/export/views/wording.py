"""Words that fit where they are to stand."""

from __future__ import annotations


def short(words: str, most: int) -> str:
    """As much of a text as there is room for."""
    return words if len(words) <= most else words[: most - 1] + "…"


def short_end(words: str, most: int) -> str:
    """The end of a name, where it tells itself from others, for a narrow box."""
    return words if len(words) <= most else "…" + words[len(words) - most + 1 :]


def many(number: int, noun: str) -> str:
    """``1 page``, ``2 pages``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def ordinal(number: int) -> str:
    """``1st``, ``2nd``, ``3rd``, ``4th``."""
    special = {1: "st", 2: "nd", 3: "rd"} if number % 100 not in (11, 12, 13) else {}
    return f"{number}{special.get(number % 10, 'th')}"
