"""Reads traces of other programs: torch.profiler, Nsight Systems; and this one's Chrome export.

What they hold becomes a trace in ``profiled.py``.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from io import BufferedIOBase
from pathlib import Path
from shutil import copyfileobj
from sys import intern
from tempfile import NamedTemporaryFile
from typing import Any

from ..trace import Counter, Edge, Mark, Slice, Trace
from ..trace.files import GZIP, DamagedGzip, Hear, unheard, unpacked
from ..trace.marks import BadMark, check_events
from .profiled import (
    KERNEL,
    TO_DEVICE,
    TO_HOST,
    Call,
    DeviceOp,
    Foreign,
    NoSuchRange,
    Range,
    Seen,
    build,
)

OWN_STEPS = "--step is for traces of other programs: this one's own numbers its steps itself."


class NotAProfile(ValueError):
    """A file that no reader understands; the message is one sentence that says why."""


def read_foreign(path: Path, step: str = "", hear: Hear = unheard) -> Foreign:
    """The trace in a file of torch.profiler, of Nsight Systems, or of ``export/chrome.py``.

    What a file is, is seen by how it begins, whatever its name; it may be compressed with gzip.
    ``step`` is the name of the ranges that are steps, with ``*`` for any text, and ``hear`` is told
    how many bytes were read.

    Raises:
        NotATrace: it is none of them, or damaged, or has no such range; the message is one
            sentence.
        OSError: it cannot be read.
    """
    try:
        return _read(path, step, hear)
    except NoSuchRange as error:
        raise NotAProfile(f"{path}: {error}") from None


def _read(path: Path, step: str, hear: Hear) -> Foreign:
    try:
        with unpacked(path) as file:
            start = file.read(len(MAGIC))
    except DamagedGzip as error:
        raise NotAProfile(f"{path} is no trace: {error.strerror}.") from None
    if start == MAGIC:
        return read_nsys(path, step, hear)
    if start.lstrip()[:1] in (b"{", b"["):
        return read_chrome(path, step, hear)
    if path.suffix == ".nsys-rep":
        raise NotAProfile(
            f"{path} is a report of Nsight Systems: export it first, with "
            f"nsys export --type sqlite {path.name}."
        )
    raise NotAProfile(
        f"{path} is no trace: neither a minisched trace, nor a Chrome trace (JSON, perhaps in "
        "gzip), nor an SQLite export of Nsight Systems."
    )


# -- Reads the JSON of a Chrome trace event by event, so that a large one need not be held whole
#
# A file of 200 MB has 600,000 events. As a list of dictionaries they take ten times the file; one
# at a time they take nothing, and whoever reads them keeps what he needs.

PIECE = 1 << 18  # bytes that are read at once; a value longer than that is read in more
NOT_OVER = 3  # characters at the end with which a number may go on: 1.5e-
SPACE = re.compile(r"[ \t\n\r]*")
EVENTS = "traceEvents"


class Damaged(ValueError):
    """It is not JSON; the message says why, and at which character."""


class JsonEvents:
    """The members of the list ``traceEvents``, or of the whole file where that is a list.

    It can be iterated over once. ``about`` has what else the object holds, as far as it was read;
    ``has_events`` says whether there was such a list.

    Raises:
        Damaged: while iterating.
    """

    def __init__(self, file: BufferedIOBase) -> None:
        self.about: dict[str, Any] = {}
        self.has_events = False
        self._file = file
        self._decoder: codecs.IncrementalDecoder | None = None
        self._text, self._at, self._gone = "", 0, 0  # what is held, and what was before it
        self._decode = json.JSONDecoder().raw_decode

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._whole()
            if self._peek():
                raise self._damage("Extra data")
        except UnicodeDecodeError as error:
            raise Damaged(f"{error.reason} after character {self._gone + self._at}") from None
        except RecursionError:
            raise Damaged("its brackets are nested too deeply") from None

    def _whole(self) -> Iterator[Any]:
        if self._peek() == "[":
            yield from self._list()
        elif self._peek() != "{":
            self._value()
        else:
            for _ in self._members("}"):
                if self._peek() != '"':
                    raise self._damage("Expecting property name enclosed in double quotes")
                name = self._value()
                if self._peek() != ":":
                    raise self._damage("Expecting ':' delimiter")
                self._at += 1
                if name == EVENTS and self._peek() == "[":
                    yield from self._list()
                else:
                    self.about[name] = self._value()

    def _list(self) -> Iterator[Any]:
        self.has_events = True
        for _ in self._members("]"):
            yield self._value()

    def _members(self, closes: str) -> Iterator[None]:
        """Go through a bracket; it stands at each member in turn, which has to be read."""
        self._at += 1
        found = self._peek()
        while found != closes:
            yield
            found = self._peek()
            if found not in (",", closes):
                raise self._damage("Expecting ',' delimiter")
            self._at += found == ","
        self._at += 1

    def _value(self) -> Any:
        """The value that comes next, whatever it is."""
        self._peek()
        while True:
            try:
                found, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                at, said = error.pos + self._gone, error.msg
                if not self._more():
                    raise Damaged(f"{said} at character {at + 1}") from None
                continue
            is_cut = end + NOT_OVER >= len(self._text) and isinstance(found, int | float)
            if is_cut and self._more():
                continue
            self._at = end
            return found

    def _peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            match = SPACE.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Read on, twice as much each time that it was not enough; whether there was any more."""
        piece = self._file.read(max(PIECE, len(self._text) - self._at))
        if self._decoder is None:
            encoding = json.detect_encoding(piece)
            self._decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
        text = self._decoder.decode(piece, final=not piece)
        if not piece:
            return False
        self._gone += self._at
        self._text, self._at = self._text[self._at :] + text, 0
        return True

    def _damage(self, what: str) -> Damaged:
        return Damaged(f"{what} at character {self._gone + self._at + 1}")


# -- Whether an event of a Chrome trace can be read; if not, a file is refused in a sentence -------


class BadEvent(ValueError):
    """What is wrong, in a few words that begin with the place: ``traceEvents[3] has ...``."""


def check_span(event: dict[str, Any], index: int) -> None:
    """Look at an ``X`` event: a beginning, a duration that is not negative, and arguments.

    Raises:
        BadEvent: one of them is missing or is something else.
    """
    for name, least in (("ts", -math.inf), ("dur", 0)):
        value: Any = event.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (math.isfinite(value) and value >= least):
            what = "a number" if name == "ts" else "a number of microseconds from 0"
            raise BadEvent(_said(event, index, name, what))
    if not isinstance(event.get("args") or {}, dict):
        raise BadEvent(_said(event, index, "args", "an object"))


def _said(event: dict[str, Any], index: int, name: str, what: str) -> str:
    if name not in event:
        return f"traceEvents[{index}] lacks {name!r}"
    shown = json.dumps(event[name])[:60]
    return f"traceEvents[{index}] has {name} = {shown}, but it must be {what}"


# -- Reads the Chrome trace that ``torch.profiler`` exports, and this program's own Chrome export
#
# ``export_chrome_trace`` writes ``X`` events with ``cat``: ``kernel``, ``gpu_memcpy`` and
# ``gpu_memset`` on streams (``args``: ``device``, ``stream``, ``correlation``), ``cuda_runtime``
# and ``cuda_driver`` calls on threads with the same ``correlation``, and ``cpu_op``,
# ``user_annotation``, ``python_function`` around them. Times are microseconds.

DEVICE_OPS = {"kernel", "gpu_memcpy", "gpu_memset"}
CALLS = {"cuda_runtime", "cuda_driver", "hip_runtime", "runtime", "driver"}
RANGES = {"cpu_op", "user_annotation", "python_function", "operator"}
NEITHER = (
    '{} is neither a minisched trace (it lacks "format": "minisched trace") nor a Chrome trace of '
    "a profiler ({})."
)


def read_chrome(path: Path, step: str = "", hear: Hear = unheard) -> Foreign:
    """The trace in a Chrome trace file, perhaps compressed with gzip; ``step`` as in ``build``.

    Only what is used of an event is kept; this program's own export is read whole. ``hear`` is told
    how many bytes of the file were read.

    Raises:
        NotATrace: it is not one; the message is one sentence.
        NoSuchRange: ``step`` names nothing in it.
        OSError: it cannot be read.
    """
    own: list[dict[str, Any]] = []
    seen = Seen("torch.profiler")
    try:
        with unpacked(path, hear) as file:
            events = JsonEvents(file)
            for index, event in enumerate(events):
                if not isinstance(event, dict):
                    raise NotAProfile(NEITHER.format(path, "it lacks a list of traceEvents"))
                if is_own(events.about):
                    own.append(event)
                else:
                    see(event, index, seen)
        if is_own(events.about) and events.has_events:
            if step:
                raise NoSuchRange(OWN_STEPS)
            return Foreign(_own({**events.about, EVENTS: own}), ())
        if seen.ops or seen.calls or seen.ranges:
            return build(seen, step)
    except (NotAProfile, NoSuchRange):
        raise
    except Damaged as error:
        raise NotAProfile(f"{path} is not a Chrome trace: it is not JSON ({error}).") from None
    except DamagedGzip as error:
        raise NotAProfile(f"{path} is not a Chrome trace: {error.strerror}.") from None
    except KeyError as error:
        raise NotAProfile(f"{path} is a damaged Chrome trace: an event lacks {error}.") from None
    except (BadEvent, BadMark) as error:
        raise NotAProfile(f"{path} is a damaged Chrome trace: {error}.") from None
    except (TypeError, ValueError, AttributeError, OverflowError):
        what = "an event has a value that cannot be read"
        raise NotAProfile(f"{path} is a damaged Chrome trace: {what}.") from None
    lack = "it has no op, call or range" if events.has_events else "it lacks a list of traceEvents"
    raise NotAProfile(NEITHER.format(path, lack))


def _own(data: dict[str, Any]) -> Trace:
    """The trace in this program's own export, its events checked.

    Raises:
        KeyError, TypeError, ValueError: an event is not as it was written.
    """
    for index, event in enumerate(data["traceEvents"]):
        if event.get("ph") == "X":
            check_span(event, index)
    trace = own_trace(data)
    check_events(trace.slices, trace.marks)
    return trace


def seen_in(events: Iterable[dict[str, Any]]) -> Seen:
    """What a profiler's events say.

    Raises:
        BadEvent: one has no time, or no duration, or is of no thread.
    """
    seen = Seen("torch.profiler")
    for index, event in enumerate(events):
        see(event, index, seen)
    return seen


def see(event: dict[str, Any], index: int, seen: Seen) -> None:
    """Add what one event says, if it is of use; texts that come again are kept once.

    Raises:
        BadEvent: it has no time, or no duration, or is of no thread.
    """
    cat = str(event.get("cat", "")).lower()
    if event.get("ph") != "X" or cat not in DEVICE_OPS | CALLS | RANGES:
        return
    check_span(event, index)
    if cat not in DEVICE_OPS and "tid" not in event:
        raise BadEvent(f"traceEvents[{index}] lacks 'tid'")
    start = round(event["ts"] * 1000)
    end = start + round(event["dur"] * 1000)
    args, name = event.get("args") or {}, intern(str(event.get("name", "")))
    correlation = intern(str(args.get("correlation", args.get("Correlation ID", ""))))
    if cat in DEVICE_OPS:
        place = f"device {args.get('device', event.get('pid'))}"
        place += f" stream {args.get('stream', event.get('tid'))}"
        kind = _kind(cat, name)
        seen.ops.append(DeviceOp(intern(place), kind, name, start, end, correlation))
    elif cat in CALLS:
        seen.calls.append(Call(intern(f"{event['tid']}"), name, start, end, correlation))
    else:
        is_annotation = cat == "user_annotation"
        seen.ranges.append(Range(intern(f"{event['tid']}"), name, start, end, is_annotation))


def _kind(cat: str, name: str) -> str:
    if cat == "kernel":
        return KERNEL
    if "DtoH" in name or "Device -> Host" in name or "DeviceToHost" in name:
        return TO_HOST
    return TO_DEVICE if "HtoD" in name or "HostToDevice" in name else cat.removeprefix("gpu_")


# -- Reads back what ``export/chrome.py`` writes: slices, edges, counters and events of one run ----
#
# A program (what each lane did in its own order) is not in that format, so races can't be looked
# for.

HEADER = ("loop", "device", "model", "clock")
KNOWN = ("id", "phase", "step", "mode", "rids")
COUNTERS = {"next future slot": "future slots"}  # titles that are not the counter's name


def is_own(data: dict[str, Any]) -> bool:
    """Whether a Chrome trace is this program's."""
    about = data.get("otherData")
    return isinstance(about, dict) and set(HEADER) <= about.keys()


def own_trace(data: dict[str, Any]) -> Trace:
    """The trace in one.

    Raises:
        KeyError, TypeError, ValueError: an event is not as it was written.
    """
    about, events = data["otherData"], data["traceEvents"]
    lanes = {
        event["tid"]: lane_named(event["args"]["name"])
        for event in events
        if event.get("name") == "thread_name"
    }
    slices, edges, counters, marks = [], set(), [], []
    for event in events:
        if event["ph"] == "X":
            slices.append(_slice(event, lanes[event["tid"]]))
        elif event["ph"] == "s":
            ends = int(event["args"]["src"]), int(event["args"]["dst"])
            edges.add(Edge(*ends, str(event["name"])))
        elif event["ph"] == "C":
            counters.append(_counter(event))
        elif event["ph"] == "i":
            marks.append(_mark(event))
    slices.sort(key=lambda item: (item.start, item.end, item.id))
    ids = {item.id for item in slices}
    if lost := [edge for edge in edges if not {edge.src, edge.dst} <= ids]:
        raise ValueError(f"{lost[0]} names a slice that is not there")
    loop, device, model, clock = (str(about[name]) for name in HEADER)
    return Trace(
        loop, device, model, clock,
        tuple(slices), tuple(sorted(edges)), tuple(counters), tuple(marks),
        dtype=str(about.get("dtype", "")),
    )  # fmt: skip


def lane_named(title: str) -> str:
    """The lane that a picture calls so: ``Forward stream (device)`` is ``forward``."""
    name, _, side = title.rpartition(" (")
    if side == "host)" and name in ("Scheduler", "Process"):
        return "host"
    return name.lower().removesuffix(" stream")


def _slice(event: dict[str, Any], lane: str) -> Slice:
    args, start = event["args"], _ns(event["ts"])
    attrs = {key: value for key, value in args.items() if key not in KNOWN}
    # a schedule is shown with the step that it led to, but has none of its own
    step = 0 if args["phase"] == "schedule" else int(args["step"])
    rids = tuple(map(str, args["rids"]))
    duration = max(0, _ns(event["dur"]))
    return Slice(int(args["id"]), lane, str(args["phase"]), start, start + duration, step,
                 str(args["mode"]), rids, attrs)  # fmt: skip


def _mark(event: dict[str, Any]) -> Mark:
    attrs = dict(event["args"])
    if event["name"] == "wait":
        attrs["step"] = int(attrs["step"])  # what reads marks of this name relies on it
    return Mark(str(event["name"]), _ns(event["ts"]), attrs)


def _counter(event: dict[str, Any]) -> Counter:
    ((unit, value),) = event["args"].items()
    recorded = round(value * 1000) if unit == "ratio" else round(value)
    name = str(event["name"])
    return Counter(COUNTERS.get(name, name), _ns(event["ts"]), recorded)


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


# -- Reads what ``nsys export --type sqlite`` writes, with the standard library's sqlite3 ----------
#
# Tables are there only if the profile has such events: ``CUPTI_ACTIVITY_KIND_KERNEL``, ``_MEMCPY``
# (``copyKind`` 1 is host to device, 2 device to host), ``_MEMSET``, ``_GRAPH_TRACE`` (one row a
# launch, where graphs were not traced node by node), ``_RUNTIME`` (calls, with the
# ``correlationId`` of what they launched), ``NVTX_EVENTS`` and ``StringIds``. Times are
# nanoseconds; a ``globalTid`` has the process in bits 24 to 47 and the thread below.

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
        raise NotAProfile(f"{path} is not an SQLite database.")
    return _in_database(path, path, step)


def seen_by_nsys(path: Path) -> Seen:
    """What is in an exported report, call by call.

    Raises:
        NotATrace: it is not one; the message is one sentence.
    """
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        return _seen(database, path)


def _in_database(file: Path, path: Path, step: str) -> Foreign:
    """The trace in a database; ``path`` is what the user calls it."""
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return build(_seen(database, path), step)
    except KeyError as error:
        what = f"a table lacks column {error}"
        raise NotAProfile(f"{path} is a damaged Nsight Systems export: {what}.") from None
    except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
        raise NotAProfile(f"{path} is a damaged Nsight Systems export: {error}.") from None


def _seen(database: sqlite3.Connection, path: Path) -> Seen:
    database.row_factory = sqlite3.Row
    names = {row["name"] for row in database.execute("SELECT name FROM sqlite_master")}

    def rows(name: str) -> Iterator[dict[str, Any]]:
        if name in names:
            yield from map(dict, database.execute(f'SELECT * FROM "{name}"'))

    if not any(name.startswith(CUPTI) or name == "NVTX_EVENTS" for name in names):
        raise NotAProfile(
            f"{path} is no Nsight Systems export: it has no {CUPTI}* table and no NVTX_EVENTS."
        )
    texts = {row["id"]: str(row["value"]) for row in rows("StringIds")}
    seen = Seen("nsys")
    for kind in TABLES:
        seen.ops += [_op(row, kind, texts) for row in rows(CUPTI + kind)]
    for row in rows(CUPTI + "RUNTIME"):
        name = texts.get(row.get("nameId"), "")
        thread, key = _thread(row), _correlation(row, "globalTid")
        seen.calls.append(Call(thread, name, *_span(row), key))
    for row in rows("NVTX_EVENTS"):
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
