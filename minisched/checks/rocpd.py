"""Read the database of AMD's rocprofv3 (``--output-format rocpd``, SQLite).

The tables have a suffix in each file, and views without it: ``rocpd_region`` (calls of HIP, and
ranges of ROCTx), ``rocpd_kernel_dispatch``, ``rocpd_memory_copy``, ``rocpd_event`` (category, and
``stack_id``, which an op has in common with the call that launched it), ``rocpd_string`` and
``rocpd_info_kernel_symbol``. Times are nanoseconds. Some versions keep them, and the places, in
tables of their own: ``rocpd_timestamp`` and ``rocpd_track``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from sys import intern
from typing import Any

from .profiled import ANNOTATION, CALL, KERNEL, RANGE, TO_DEVICE, TO_HOST, SeenEvent

PREFIX = "rocpd_"
NEEDED = f"{PREFIX}kernel_dispatch"
COPIES = {"DEVICE_TO_HOST": TO_HOST, "HOST_TO_DEVICE": TO_DEVICE}
Row = dict[str, Any]


def is_rocpd(tables: set[str]) -> bool:
    """Return whether these are the tables of such a database."""
    return any(name.startswith(NEEDED) for name in tables)


def rocpd_events(database: sqlite3.Connection, tables: set[str]) -> Iterator[SeenEvent]:
    """Yield the ops, calls and ranges; rows of the connection are ``sqlite3.Row``.

    Raises:
        KeyError: a table lacks a column.
        TypeError: a time is no whole number.
    """

    def rows(name: str) -> list[Row]:
        """Return the rows of a view; without it, those of all tables of that name."""
        view = PREFIX + name
        names = [view] if view in tables else sorted(
            table for table in tables if table.startswith(f"{view}_")
        )  # fmt: skip
        return [
            dict(row) for table in names for row in database.execute(f'SELECT * FROM "{table}"')
        ]

    texts = {(row["guid"], row["id"]): str(row["string"]) for row in rows("string")}
    events = {(row["guid"], row["id"]): row for row in rows("event")}
    kernels = {
        (row["guid"], row["id"]): str(row["display_name"] or row["kernel_name"])
        for row in rows("info_kernel_symbol")
    }
    times = {(row["guid"], row["id"]): row["value"] for row in rows("timestamp")}
    tracks = {(row["guid"], row["id"]): row for row in rows("track")}

    def timed(name: str) -> Iterator[Row]:
        """Yield the rows of a view, each with its times and its place."""
        for row in rows(name):
            if "start" in row:
                yield row
            else:
                ends = {end: times[row["guid"], row[f"{end}_id"]] for end in ("start", "end")}
                yield tracks[row["guid"], row["track_id"]] | row | ends

    regions, launchers = list(timed("region")), set[str]()
    for row in regions:
        event = events.get((row["guid"], row["event_id"]), {})
        category = texts.get((row["guid"], event.get("category_id")), "")
        name = texts.get((row["guid"], row["name_id"]), "")
        place, key, kind = f"{row['pid']}:{row['tid']}", "", RANGE
        if category.startswith("MARKER"):
            kind, name = ANNOTATION, _message(event, name)
        elif category.startswith("HIP"):
            kind, key = CALL, f"{row['guid']}:{event.get('stack_id')}"
            launchers.add(key)
        yield SeenEvent(intern(place), kind, intern(name), row["start"], row["end"], key)
    for row in timed("kernel_dispatch"):
        name = kernels.get((row["guid"], row["kernel_id"]), "kernel")
        key = _launcher(row, events, launchers)
        yield SeenEvent(
            _stream(row, "agent_id"), KERNEL, intern(name), row["start"], row["end"], key
        )
    for row in timed("memory_copy"):
        name = texts.get((row["guid"], row["name_id"]), "")
        kind = next((kind for way, kind in COPIES.items() if way in name), "memcpy")
        agent = "src_agent_id" if kind == TO_HOST else "dst_agent_id"
        key = _launcher(row, events, launchers)
        yield SeenEvent(_stream(row, agent), kind, intern(name), row["start"], row["end"], key)


def _message(event: Row, name: str) -> str:
    """Return the text of a ROCTx range, which is in the event's further data."""
    try:
        message = json.loads(event.get("extdata") or "{}").get("message")
    except (ValueError, AttributeError):
        message = None
    return str(message) if message else name


def _stream(row: Row, agent: str) -> str:
    """Return the stream of an op; a copy without a stream is on the device's own."""
    return intern(f"device {row[agent]} stream {row['stream_id'] or 0}")


def _launcher(row: Row, events: dict[tuple[str, int], Row], launchers: set[str]) -> str:
    """Return the key of the call that launched an op: its own id, or its parent's."""
    event = events.get((row["guid"], row["event_id"]), {})
    for name in ("stack_id", "parent_stack_id"):
        key = f"{row['guid']}:{event.get(name)}"
        if key in launchers:
            return key
    return ""
