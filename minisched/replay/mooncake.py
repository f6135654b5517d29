"""Mooncake's traces: JSON lines in which prompts are lists of block hashes.

Mooncake, "FAST25-release/traces": ``{"timestamp": 27482, "input_length": 6955, "output_length":
52, "hash_ids": [46, 47, ...]}``. A hash id stands for 512 tokens and everything before them; the
last one may stand for fewer.
"""

from __future__ import annotations

import json
from decimal import Decimal

from .arrival import Arrival, nanoseconds, shown, token_count

BLOCK = 512  # tokens to a hash id
FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
MILLISECOND = 1_000_000


def read_mooncake(line: str) -> Arrival:
    """One line. Times are milliseconds, not necessarily whole; further fields are left alone.

    Raises:
        ValueError: it is not what it should be.
    """
    record = read_object(line)
    for name in FIELDS:
        if name not in record:
            raise ValueError(f"the field {name!r} is missing; a Mooncake line has {list(FIELDS)}.")
    length = token_count("input_length", record["input_length"])
    return Arrival(
        nanoseconds("timestamp", record["timestamp"], MILLISECOND),
        length,
        token_count("output_length", record["output_length"]),
        block_hashes(record["hash_ids"], length),
    )


def read_object(line: str) -> dict[str, object]:
    """The JSON object that a line is, its fractions exact.

    Raises:
        ValueError: it is something else.
    """
    try:
        record = json.loads(line, parse_float=Decimal)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error.msg} at column {error.colno}.") from error
    except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
        raise ValueError(f"it is not a Mooncake line but {shown(line)}.") from error
    if not isinstance(record, dict):
        raise ValueError(f"it is not a JSON object but {shown(record)}.")
    return record


def block_hashes(value: object, length: int) -> tuple[int, ...]:
    """The hash ids of a prompt of ``length`` tokens.

    Raises:
        ValueError: they are no list of whole numbers, or not one for each 512 tokens begun.
    """
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        raise ValueError(
            f"hash_ids is {shown(value)}, but it must be a list of whole numbers from 0 on."
        )
    needed = -(-length // BLOCK)
    if len(value) != needed:
        raise ValueError(
            f"hash_ids has {len(value)} ids, but {length} tokens take {needed} of {BLOCK} each."
        )
    return tuple(value)
