"""Reads what ``nsys export --type sqlite`` writes, with the standard library's sqlite3.

Tables are there only if the profile has such events: ``CUPTI_ACTIVITY_KIND_KERNEL``, ``_MEMCPY``
(``copyKind`` 1 is host to device, 2 device to host), ``_MEMSET``, ``_GRAPH_TRACE`` (one row a
launch, where graphs were not traced node by node), ``_RUNTIME`` (calls, with the ``correlationId``
of what they launched), ``NVTX_EVENTS`` and ``StringIds``. Times are nanoseconds; a ``globalTid``
has the process in bits 24 to 47 and the thread below.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shutil import copyfileobj
from tempfile import NamedTemporaryFile
from typing import Any

from ...trace.files import GZIP, Hear, unheard, unpacked
from .calls import Call
from .phases import Range
from .trace import (
    KERNEL,
    TO_DEVICE,
    TO_HOST,
    DeviceOp,
    Foreign,
    NotATrace,
    Seen,
    build,
)

MAGIC = b"SQLite format 3\x00"
CUPTI = "CUPTI_ACTIVITY_KIND_"
COPIES = {1: TO_DEVICE, 2: TO_HOST}
TABLES = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")


def read_nsys(path: Path, step: str = "", hear: Hear = unheard) -> Foreign:
    """The trace in an exported report, perhaps compressed with gzip; ``step`` as in ``build``.

    Raises:
        NotATrace: it is not one; the message is one sentence.
        NoSuchRange: ``step`` names nothing in it.
        OSError: it cannot be read, or not be unpacked beside temporary files.
    """
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
    if start.startswith(GZIP):
        with unpacked(path, hear) as packed, NamedTemporaryFile(suffix=".sqlite") as plain:
            copyfileobj(packed, plain)
            plain.flush()
            return _in_database(Path(plain.name), path, step)
    if start != MAGIC:
        raise NotATrace(f"{path} is not an SQLite database.")
    return _in_database(path, path, step)


def seen_by_nsys(path: Path) -> Seen:
    """What is in an exported report, call by call.

    Raises:
        NotATrace: it is not one; the message is one sentence.
    """
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        return _seen(Tables(database), path)


def _in_database(file: Path, path: Path, step: str) -> Foreign:
    """The trace in a database; ``path`` is what the user calls it."""
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return build(_seen(Tables(database), path), step)
    except KeyError as error:
        what = f"a table lacks column {error}"
        raise NotATrace(f"{path} is a damaged Nsight Systems export: {what}.") from None
    except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
        raise NotATrace(f"{path} is a damaged Nsight Systems export: {error}.") from None


class Tables:
    """Rows of tables that may not be there, as dictionaries."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        database.row_factory = sqlite3.Row
        rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.names = {str(row["name"]) for row in rows}

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Every row of a table; nothing if there is no such table."""
        if name in self.names:
            for row in self.database.execute(f'SELECT * FROM "{name}"'):
                yield dict(row)


def _seen(tables: Tables, path: Path) -> Seen:
    if not any(name.startswith(CUPTI) or name == "NVTX_EVENTS" for name in tables.names):
        raise NotATrace(
            f"{path} is no Nsight Systems export: it has no {CUPTI}* table and no NVTX_EVENTS."
        )
    texts = {row["id"]: str(row["value"]) for row in tables.rows("StringIds")}
    seen = Seen("nsys")
    for kind in TABLES:
        seen.ops += [_op(row, kind, texts) for row in tables.rows(CUPTI + kind)]
    for row in tables.rows(CUPTI + "RUNTIME"):
        name = texts.get(row.get("nameId"), "")
        thread, key = _thread(row), _correlation(row, "globalTid")
        seen.calls.append(Call(thread, name, *_span(row), key))
    for row in tables.rows("NVTX_EVENTS"):
        if row.get("end") is not None:
            name = row.get("text") or texts.get(row.get("textId"), "")
            seen.ranges.append(Range(_thread(row), str(name), row["start"], row["end"], True))
    return seen


def _op(row: dict[str, Any], kind: str, texts: dict[int, str]) -> DeviceOp:
    name = texts.get(row.get("shortName") or row.get("demangledName") or -1, kind.lower())
    stream = f"device {row.get('deviceId', 0)} stream {row.get('streamId', 0)}"
    is_copy = kind == "MEMCPY"
    what = COPIES.get(row.get("copyKind", 0), "memcpy") if is_copy else KERNEL
    what = "memset" if kind == "MEMSET" else what
    return DeviceOp(stream, what, name, *_span(row), _correlation(row, "globalPid"))


def _span(row: dict[str, Any]) -> tuple[int, int]:
    """When a row starts and ends.

    Raises:
        KeyError: it has no such column.
        ValueError: they are no whole numbers, or it ends before it starts.
    """
    start, end = row["start"], row["end"]
    if not (isinstance(start, int) and isinstance(end, int) and start <= end):
        raise ValueError(f"a row has start = {start!r:.60} and end = {end!r:.60}")
    return start, end


def _thread(row: dict[str, Any]) -> str:
    return str((row.get("globalTid") or 0) & 0xFFFFFF)


def _correlation(row: dict[str, Any], process: str) -> str:
    """Correlation ids count from 1 in every process."""
    number = row.get("correlationId")
    return f"{(row.get(process) or 0) >> 24 & 0xFFFFFF}:{number}" if number else ""
