"""Read the files of other programs' profilers: torch.profiler, Nsight Systems, and rocprofv3.

Their events become a trace in ``profiled.py``.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shutil import copyfileobj
from sys import intern
from tempfile import TemporaryDirectory
from typing import Any

from ..trace.files import GZIP, PIECE, UNPACKED_MIB, DamagedGzip, Hear, unheard, unpacked
from .answers import Recorded
from .profiled import (
    ANNOTATION,
    CALL,
    KERNEL,
    RANGE,
    TO_DEVICE,
    TO_HOST,
    NoSuchRange,
    SeenEvent,
    build,
)
from .rocpd import is_rocpd, rocpd_events

OWN_STEPS = "--step is for traces of other programs: this one's own numbers its steps itself."
PERFETTO, PACKET = (".pftrace", ".perfetto-trace"), b"\x0a"  # names, and the first byte
LARGEST = 9e15  # microseconds, 285 years; their nanoseconds fit into 64 bits


class NotAProfile(ValueError):
    """A file that no reader understands; the message is one sentence with the reason."""


class BadEvent(ValueError):
    """The fault in a few words that begin with the place: ``traceEvents[3] has ...``."""


def read_foreign(
    path: Path, step: str = "", hear: Hear = unheard, device_lane: str = "",
    unpacked_mib: int = UNPACKED_MIB,
) -> Recorded:  # fmt: skip
    """Return the trace in a file of torch.profiler, of Nsight Systems or of rocprofv3.

    The first bytes decide what a file is, whatever its name. In gzip it may unpack to
    ``unpacked_mib`` MiB. ``step`` is the name of the ranges that are steps, with ``*`` for any
    text. ``device_lane`` is the stream, thread or range that is the device. ``hear`` receives the
    number of bytes read.

    Raises:
        NotAProfile: it is none of them, or damaged, or has no such range; the message is one
            sentence.
        OSError: it cannot be read.
    """
    categories = Counter[str]()
    try:
        with unpacked(path) as file:
            start = file.read(len(MAGIC))
        if start == MAGIC:
            profiler, seen = seen_by_sqlite(path, hear, unpacked_mib)
            return build(path, profiler, seen, step, device_lane)
        if start.lstrip()[:1] in (b"{", b"["):
            seen = seen_by_torch(path, hear, unpacked_mib, categories)
            devices = [name for cat, name in DEVICES.items() if cat in categories]
            unread = {cat: count for cat, count in categories.items() if cat not in READ}
            return build(path, "torch.profiler", seen, step, device_lane, devices, unread)
    except DamagedGzip as error:
        raise NotAProfile(f"{path} is no trace: {error.strerror}.") from None
    except NoSuchRange as error:
        raise NotAProfile(f"{path}: {error}") from None
    if path.suffix == ".nsys-rep":
        raise NotAProfile(
            f"{path} is a report of Nsight Systems: export it first, with "
            f"nsys export --type sqlite {path.name}."
        )
    is_binary = any(byte < 9 or byte > 127 for byte in start)
    if path.suffix in PERFETTO or (start.startswith(PACKET) and is_binary):
        raise NotAProfile(
            f"{path} is a Perfetto trace in protobuf: convert it to JSON first, with "
            f"traceconv json {path.name} {path.stem}.json, or let rocprofv3 write rocpd."
        )
    raise NotAProfile(
        f"{path} is no trace: neither a minisched trace, nor a Chrome trace (JSON, perhaps in "
        "gzip), nor an SQLite file of Nsight Systems or rocprofv3."
    )


# -- Read the Chrome trace that ``torch.profiler`` exports
#
# ``export_chrome_trace`` writes ``X`` events with ``cat``: ``kernel``, ``gpu_memcpy`` and
# ``gpu_memset`` on streams (``args``: ``device``, ``stream``, ``correlation``), ``cuda_runtime``
# and ``cuda_driver`` calls on threads with the same ``correlation``, and ``cpu_op``,
# ``user_annotation``, ``python_function`` around them. Intel's GPUs have ``xpu_runtime`` calls, and
# devices that register as PrivateUse1 (Ascend, and others) ``privateuse1_runtime``. Times are
# microseconds. Ops of MTIA (``mtia_ccp_events``) have no ``correlation``: an arrow (``ac2g``) ends
# at their start, and its id is the correlation of the call (``mtia_runtime``).
#
# A file of 200 MB has 600,000 events. As a list of dictionaries they take five times the file. So
# the used part of each is taken while ``json`` reads, and the dictionary is dropped.

MTIA_OPS = "mtia_ccp_events"
NO_WORK = ("event_wait", "event_record")  # of MTIA: moments and waits of a stream
DEVICE_OPS = {"kernel", "gpu_memcpy", "gpu_memset", MTIA_OPS}
DEVICES = {  # categories of calls, and the device that they are of
    "xpu_runtime": "XPU", "xpu_driver": "XPU",
    "privateuse1_runtime": "PrivateUse1", "privateuse1_driver": "PrivateUse1",
    "mtia_runtime": "MTIA", MTIA_OPS: "MTIA",
}  # fmt: skip
CALLS = {"cuda_runtime", "cuda_driver", "hip_runtime", "runtime", "driver", *DEVICES} - DEVICE_OPS
RANGES = {"cpu_op", "user_annotation", "python_function", "operator"}
ASIDE = {"", "trace", "overhead", "gpu_user_annotation", "cuda_sync", "cpu_instant_event"}
READ = DEVICE_OPS | CALLS | RANGES | ASIDE
OTHER_TOOLS = {  # a key of the whole object, and the tool that writes it
    "rocprofiler-sdk-tool": "the JSON of rocprofv3",
    "resourceSpans": "an export of OpenTelemetry",
}
WAYS = {  # of copies, by parts of their names
    TO_HOST: ("DtoH", "Device -> Host", "DeviceToHost", "DEVICE_TO_HOST"),
    TO_DEVICE: ("HtoD", "HostToDevice", "HOST_TO_DEVICE"),
}
OWN_EXPORT = {"loop", "device", "model", "clock"}  # ``export/chrome.py`` writes them of a run


def seen_by_torch(
    path: Path, hear: Hear = unheard, unpacked_mib: int = UNPACKED_MIB,
    categories: Counter[str] | None = None,
) -> list[SeenEvent]:  # fmt: skip
    """Return the events of a Chrome trace, perhaps in gzip; ``categories`` counts all there are.

    Raises:
        NotAProfile: it is none, or damaged; the message is one sentence.
        OSError: it cannot be read.
    """
    seen, count = list[SeenEvent](), 0

    def take(found: dict[str, Any]) -> Any:
        """Keep an object of the file if it is an event that is needed."""
        nonlocal count
        if "ph" not in found:
            return found
        if categories is not None and found["ph"] == "X":
            categories[str(found.get("cat", "")).lower()] += 1
        seen.extend(see(found, count))
        count += 1
        return True

    try:
        with unpacked(path, hear, unpacked_mib) as file:
            text = b"".join(iter(lambda: file.read(PIECE), b""))
        whole = json.loads(text, object_hook=take)
    except RecursionError:
        raise NotAProfile(f"{path} is not a Chrome trace: it is nested too deep.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise NotAProfile(f"{path} is not a Chrome trace: it is not JSON ({error}).") from None
    except DamagedGzip as error:
        raise NotAProfile(f"{path} is not a Chrome trace: {error.strerror}.") from None
    except BadEvent as error:
        raise NotAProfile(f"{path} is a damaged Chrome trace: {error}.") from None
    except (TypeError, ValueError, AttributeError, OverflowError):
        what = "an event has a value that cannot be read"
        raise NotAProfile(f"{path} is a damaged Chrome trace: {what}.") from None
    if any(item.correlation.startswith(ARROW) for item in seen):
        ends = arrow_ends(text)
        seen = [
            item._replace(correlation=ends.get(item.correlation, ""))
            if item.correlation.startswith(ARROW) else item
            for item in seen
        ]  # fmt: skip
    if seen:
        return seen
    about = whole.get("otherData") if isinstance(whole, dict) else None
    if isinstance(about, dict) and about.keys() >= OWN_EXPORT:
        raise NotAProfile(
            f"{path} is this program's Chrome export, which is for viewers: name the run's own "
            "JSON, which is in the same folder."
        )
    for key, tool in OTHER_TOOLS.items():
        if isinstance(whole, dict) and key in whole:
            raise NotAProfile(
                f"{path} is {tool}, which is not read: record the engine with torch.profiler, or "
                "write the format of traces/README.md."
            )
    has_events = isinstance(whole if isinstance(whole, list) else whole.get("traceEvents"), list)
    lack = "it has no op, call or range" if has_events else "it lacks a list of traceEvents"
    raise NotAProfile(
        f'{path} is neither a minisched trace (it lacks "format": "minisched trace") nor a Chrome '
        f"trace of a profiler ({lack})."
    )


ARROW = "arrow to "  # in place of a correlation that an op does not have itself


def arrow_end(event: dict[str, Any]) -> str:
    """Return the place at which an arrow ends, or an op begins."""
    return f"{ARROW}{event.get('pid')} {event.get('tid')} {event.get('ts')}"


def arrow_ends(text: bytes) -> dict[str, str]:
    """Return the id of each arrow from a call to an op, by the place of its end."""
    found = dict[str, str]()

    def take(event: dict[str, Any]) -> Any:
        """Keep the end of an arrow, and drop the object."""
        if event.get("ph") == "f" and event.get("cat") == "ac2g":
            found[arrow_end(event)] = str(event.get("id", ""))
        return True if "ph" in event else event

    json.loads(text, object_hook=take)
    return found


def see(event: dict[str, Any], index: int) -> Iterator[SeenEvent]:
    """Yield the used part of one event; equal texts are kept once.

    Raises:
        BadEvent: it has no time, or no duration.
    """
    cat = str(event.get("cat", "")).lower()
    if event.get("ph") != "X" or cat not in DEVICE_OPS | CALLS | RANGES:
        return
    for field, least in (("ts", -math.inf), ("dur", 0)):
        what = "a number of microseconds" + " from 0" * (field == "dur")
        if field not in event:
            raise BadEvent(f"traceEvents[{index}] lacks {field}, {what}")
        value: Any = event[field]
        is_number = type(value) in (int, float) and abs(value) < LARGEST  # not a NaN either
        if not is_number or value < least:
            shown = json.dumps(value)[:60]
            raise BadEvent(f"traceEvents[{index}] has {field} = {shown}, but it must be {what}")
    start = round(event["ts"] * 1000)
    end = start + round(event["dur"] * 1000)
    args, name = event.get("args") or {}, intern(str(event.get("name", "")))
    correlation = intern(str(args.get("correlation", args.get("Correlation ID", ""))))
    place, kind = str(event.get("tid")), RANGE
    if cat in DEVICE_OPS:
        place = f"device {args.get('device', event.get('pid'))}"
        place += f" stream {args.get('stream', event.get('tid'))}"
        if cat == MTIA_OPS:
            if name in NO_WORK:
                return
            correlation = correlation or arrow_end(event)
            name = intern(f"{name} ({args['direction']})" if "direction" in args else name)
        kind = KERNEL if cat in ("kernel", MTIA_OPS) else cat.removeprefix("gpu_")
        kind = "memcpy" if name.startswith("dma_request") else kind
        if kind == "memcpy":
            kind = next((way for way, said in WAYS.items() if any(it in name for it in said)), kind)
    elif cat in CALLS or cat == "user_annotation":
        kind = CALL if cat in CALLS else ANNOTATION
    yield SeenEvent(intern(place), kind, name, start, end, correlation)


# -- Read the output of ``nsys export --type sqlite``, with the standard library's sqlite3 ---------
#
# Tables are there only if the profile has such events: ``CUPTI_ACTIVITY_KIND_KERNEL``, ``_MEMCPY``
# (``copyKind`` 1 is host to device, 2 device to host), ``_MEMSET``, ``_GRAPH_TRACE`` (one row a
# launch, where graphs were not traced node by node), ``_RUNTIME`` (calls, with the
# ``correlationId`` of what they launched), ``NVTX_EVENTS`` and ``StringIds``. Times are
# nanoseconds; a ``globalTid`` has the process in bits 24 to 47 and the thread below.

MAGIC = b"SQLite format 3\x00"
CUPTI = "CUPTI_ACTIVITY_KIND_"
COPIES = {1: TO_DEVICE, 2: TO_HOST}
TABLES = {"KERNEL": KERNEL, "MEMCPY": "memcpy", "MEMSET": "memset", "GRAPH_TRACE": KERNEL}


def seen_by_sqlite(
    path: Path, hear: Hear = unheard, unpacked_mib: int = UNPACKED_MIB
) -> tuple[str, list[SeenEvent]]:
    """Return the profiler, and the events of a report exported as SQLite, perhaps in gzip.

    Raises:
        NotAProfile: it is none, or damaged; the message is one sentence.
        OSError: it cannot be read, or cannot be unpacked into the folder of temporary files.
    """
    with TemporaryDirectory() as folder:
        name, kind = path, "Nsight Systems export"
        if path.open("rb").read(len(GZIP)) == GZIP:
            name = Path(folder) / "unpacked.sqlite"
            with unpacked(path, hear, unpacked_mib) as packed, name.open("wb") as plain:
                copyfileobj(packed, plain)
        try:
            where = f"{name.resolve().as_uri()}?mode=ro"
            with closing(sqlite3.connect(where, uri=True)) as database:
                database.row_factory = sqlite3.Row
                names = database.execute("SELECT name FROM sqlite_master")
                tables = {str(row["name"]) for row in names}
                if is_rocpd(tables):
                    kind = "rocprofv3 database"
                    return "rocprofv3", list(map(checked, rocpd_events(database, tables)))
                return "nsys", list(_seen(database, path, tables))
        except (KeyError, IndexError) as error:
            what = f"a table lacks column {error}"
            raise NotAProfile(f"{path} is a damaged {kind}: {what}.") from None
        except (sqlite3.Error, TypeError, OverflowError, BadEvent) as error:
            raise NotAProfile(f"{path} is a damaged {kind}: {error}.") from None


def checked(event: SeenEvent) -> SeenEvent:
    """Return an event of a database, if its times are whole numbers in order.

    Raises:
        BadEvent: they are not.
    """
    _span({"start": event.start, "end": event.end})
    return event


def _seen(database: sqlite3.Connection, path: Path, names: set[str]) -> Iterator[SeenEvent]:
    def rows(name: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a table, if the file has it."""
        if name not in names:
            return
        found = database.execute(f'SELECT * FROM "{name}"')
        if name != "StringIds":  # an empty table lacks a column without any row that shows it
            columns = {column for column, *_ in found.description}
            for needed in ("start", "end"):
                if needed not in columns:
                    raise KeyError(needed)
        yield from map(dict, found)

    if not any(name.startswith(CUPTI) or name == "NVTX_EVENTS" for name in names):
        raise NotAProfile(
            f"{path} is no Nsight Systems export: it has no {CUPTI}* table and no NVTX_EVENTS; and "
            "it is no rocprofv3 database: it has no rocpd_kernel_dispatch."
        )
    texts = {row["id"]: str(row["value"]) for row in rows("StringIds")}
    for kind, what in TABLES.items():
        for row in rows(CUPTI + kind):
            name = texts.get(row.get("shortName") or row.get("demangledName") or -1, kind.lower())
            stream = f"device {row.get('deviceId', 0)} stream {row.get('streamId', 0)}"
            what = COPIES.get(row.get("copyKind", 0), "memcpy") if kind == "MEMCPY" else what
            key = _correlation(row, "globalPid")
            yield SeenEvent(stream, what, name, *_span(row), key)
    for row in rows(CUPTI + "RUNTIME"):
        name, key = texts.get(row.get("nameId"), ""), _correlation(row, "globalTid")
        yield SeenEvent(_thread(row), CALL, name, *_span(row), key)
    for row in rows("NVTX_EVENTS"):
        if row.get("end") is not None:
            name = row.get("text") or texts.get(row.get("textId"), "")
            times = row["start"], row["end"]
            yield SeenEvent(_thread(row), ANNOTATION, str(name), *times)


def _span(row: dict[str, Any]) -> tuple[int, int]:
    """Return the start and end of a row.

    Raises:
        KeyError: it has no such column.
        BadEvent: they are no whole numbers, or it ends before it starts.
    """
    start, end = row["start"], row["end"]
    if not (isinstance(start, int) and isinstance(end, int) and start <= end):
        raise BadEvent(f"a row has start = {start!r:.60} and end = {end!r:.60}")
    return start, end


def _thread(row: dict[str, Any]) -> str:
    return str((row.get("globalTid") or 0) & 0xFFFFFF)


def _correlation(row: dict[str, Any], process: str) -> str:
    """Return a correlation id with its process: the ids count from 1 in every process."""
    number = row.get("correlationId")
    return f"{(row.get(process) or 0) >> 24 & 0xFFFFFF}:{number}" if number else ""
