"""Lengths as CSV, one's own or Azure's: arrival time and two lengths a line.

Two headers are in use. Azure's own (AzurePublicDataset, "AzureLLMInferenceDataset2023") has dates
with seven fractional digits; the form in which simulators pass it on (Vidur) has seconds since
the trace began, and is what one's own file has. Columns may be quoted and in any order, and
further ones are left alone. Neither tells what the prompts said, so no prompt shares anything with
another.
"""

from __future__ import annotations

import csv
import re
from datetime import UTC, datetime
from decimal import Decimal

from .arrival import Arrival, nanoseconds, shown, token_count

SECONDS_HEADER = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
DATES_HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
SECOND = 1_000_000_000
WHOLE = re.compile(r"[0-9]{1,30}")
FRACTION = re.compile(r"[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
DATE = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})?"
)


def read_seconds(line: str, header: tuple[str, ...] = SECONDS_HEADER) -> Arrival:
    """A line under ``SECONDS_HEADER``, or under a ``header`` that has these columns and others.

    Raises:
        ValueError: it is not what it should be.
    """
    time, prompt, output = fields(line, SECONDS_HEADER, header)
    return Arrival(
        nanoseconds(SECONDS_HEADER[0], number(time), SECOND),
        token_count(SECONDS_HEADER[1], number(prompt)),
        token_count(SECONDS_HEADER[2], number(output)),
    )


def read_dates(line: str, header: tuple[str, ...] = DATES_HEADER) -> Arrival:
    """A line under ``DATES_HEADER``; its time counts from 1970, in UTC unless it says otherwise.

    Raises:
        ValueError: it is not what it should be.
    """
    time, prompt, output = fields(line, DATES_HEADER, header)
    return Arrival(
        date(time),
        token_count(DATES_HEADER[1], number(prompt)),
        token_count(DATES_HEADER[2], number(output)),
    )


def fields(line: str, names: tuple[str, ...], header: tuple[str, ...]) -> list[str]:
    """The fields called ``names`` of a line under ``header``.

    Raises:
        ValueError: it has more or fewer than the header.
    """
    found = cells(line)
    if len(found) != len(header):
        raise ValueError(f"it has {len(found)} fields, but it must have {','.join(header)}.")
    return [found[header.index(name)] for name in names]


def cells(line: str) -> list[str]:
    """What is between the commas of a line, without quotes and the space around it.

    Raises:
        ValueError: it is no CSV.
    """
    try:
        return [field.strip() for field in next(csv.reader([line], skipinitialspace=True), [])]
    except csv.Error as error:
        raise ValueError(f"it is not CSV: {error}.") from error


def number(text: str) -> int | Decimal | str:
    """The number that a field is; a field that is none stays as it is, to be named."""
    if WHOLE.fullmatch(text):
        return int(text)
    return Decimal(text) if FRACTION.fullmatch(text) else text


def date(text: str) -> int:
    """Nanoseconds since 1970 of a date such as ``2023-11-16 18:17:03.9799600``.

    Raises:
        ValueError: it is none.
    """
    problem = f"TIMESTAMP is {shown(text)}, but it must be like 2023-11-16 18:17:03.9799600."
    if not (match := DATE.fullmatch(text)):
        raise ValueError(problem)
    day, clock, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}{zone or 'Z'}")
    except ValueError as error:
        raise ValueError(problem) from error
    whole = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (whole.days * 86_400 + whole.seconds) * SECOND + int((fraction or "").ljust(9, "0"))
