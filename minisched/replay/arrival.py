"""One line of a recorded workload, and the checks that its numbers must pass."""

from __future__ import annotations

from decimal import Decimal
from reprlib import repr as short
from typing import NamedTuple

MOST_TOKENS = 10_000_000  # of one prompt, and of one answer: above any published context
LATEST = 10**19  # nanoseconds, about 300 years: seconds since 1970 still fit


class Arrival(NamedTuple):
    """A request as a trace describes it: when it came and how long it was, but not what it said.

    ``hash_ids`` names the prompt's blocks: equal names at the same place mean equal tokens. It is
    empty where the trace tells nothing about content; such a prompt shares nothing.
    """

    time: int  # nanoseconds
    prompt_len: int
    output_len: int
    hash_ids: tuple[int, ...] = ()


def token_count(name: str, value: object) -> int:
    """A length that is one.

    Raises:
        ValueError: it is no whole number, or outside its limits. Of the 31,397 requests in Azure's
            and Mooncake's conversation traces none has an empty prompt or an empty answer, so 0 is
            refused rather than guessed at.
    """
    if type(value) is not int or not 1 <= value <= MOST_TOKENS:
        raise ValueError(
            f"{name} is {shown(value)}, but it must be a whole number from 1 to {MOST_TOKENS}."
        )
    return value


def nanoseconds(name: str, value: object, unit: int) -> int:
    """A time of so many ``unit`` (in nanoseconds), to the nearest nanosecond.

    Raises:
        ValueError: it is no number, negative, or later than ``LATEST``.
    """
    if type(value) not in (int, Decimal) or not 0 <= value <= LATEST // unit:  # type: ignore[operator]
        raise ValueError(
            f"{name} is {shown(value)}, but it must be a number from 0 to {LATEST // unit}."
        )
    return int((Decimal(value) * unit).to_integral_value())  # type: ignore[arg-type]


def shown(value: object) -> str:
    """A value as a sentence can name it: short, and text in quotes."""
    return str(value) if isinstance(value, Decimal) else short(value)
