"""minisched's own trace format: JSON with one event a line, so that a diff can be read.

    {
    "format": "minisched trace", "version": 1,
    "loop": "overlap", "device": "sim", "model": "hash", "clock": "virtual",
    "slices": [
    {"id": 1, "lane": "host", "name": "receive", "start": 0, "end": 300000, ...},
    ...
    ],
    "edges": [...], "counters": [...], "marks": [...]
    }

Events have the fields of ``trace/events.py``, in that order; times are integer nanoseconds. A
field at its default (step 0, no requests, no attributes) is left out. The same trace gives the same
bytes. The README of the folder ``traces`` describes the format for files of other engines. A file
that breaks it is refused in one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any

from .. import record
from ..record import FORMAT, MAY_LACK, VERSION
from . import Act, Counter, Edge, Mark, Slice, Trace
from .cells import spans_of
from .files import UNPACKED_MIB, read_text, write_whole
from .marks import BadMark, check_events, parse

CLOCKS = ("virtual", "wall")
EDGES = ("launch", "copy", "result", "token", "upload", "recv", "transfer")
HEADER = ("loop", "device", "model", "clock")
OPTIONAL: dict[str, Any] = {"dtype": str, "apart": (int, float)}  # of a real model, after those
EVENTS: dict[str, Any] = {  # by the name of their list, in the order of the file
    "slices": (Slice, ("start", "end", "id")),
    "edges": (Edge, ("src", "dst", "kind")),
    "counters": (Counter, ("time", "name")),
    "marks": (Mark, ()),
    "program": (Act, ()),
}
TYPES: dict[str, type] = {  # the JSON type of a field, by its annotation
    "str": str, "int": int, "tuple[str, ...]": list, "dict[str, Value]": dict,
    "dict[str, Any]": dict,
}  # fmt: skip
COLUMNS = {  # by kind of event: each field's name, whether it is required, and its JSON type
    kind: tuple(
        (field.name, field.name not in MAY_LACK, TYPES[str(field.type)])
        for field in fields(kind)
    )
    for kind, _ in EVENTS.values()
}  # fmt: skip


LARGEST = 1 << 63  # above every number of a trace; 292 years in nanoseconds


class NotATrace(ValueError):
    """A file that is not a minisched trace; the message is one sentence with the reason."""


# -- Written ---------------------------------------------------------------------------------------


def to_json(trace: Trace) -> str:
    """Return a trace as text, ending in a newline."""
    names = [*HEADER, *["dtype"] * bool(trace.dtype), *["apart"] * (trace.apart is not None)]
    header = {name: getattr(trace, name) for name in names}
    return record.to_json(header, {name: getattr(trace, name) for name in EVENTS})


def write(trace: Trace, path: Path) -> None:
    """Write a trace to a file.

    Raises:
        ValueError: it can't be written; one sentence.
    """
    write_whole(path, to_json(trace))


# -- Reading, with checks --------------------------------------------------------------------------


def read(path: Path, unpacked_mib: int = UNPACKED_MIB) -> Trace:
    """Return the trace in a file; in gzip it may unpack to ``unpacked_mib`` MiB.

    Raises:
        NotATrace: see ``from_json``.
        ValueError: it can't be read.
    """
    return from_json(read_text(path, most_mib=unpacked_mib), str(path))


def from_json(text: str, source: str = "this text") -> Trace:
    """Return the trace in ``text``; ``source`` names it in errors.

    Raises:
        NotATrace: it is not JSON, not a trace, of another version, or an event is wrong.
    """
    try:
        data = json.loads(text)
    except RecursionError:
        raise NotATrace(f"{source} is not a minisched trace: it is nested too deep.") from None
    except ValueError as error:
        raise NotATrace(f"{source} is not a minisched trace: it is not JSON ({error}).") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise NotATrace(f'{source} is not a minisched trace: it lacks "format": "{FORMAT}".')
    if type(version := data.get("version")) is not int or version != VERSION:
        raise NotATrace(
            f"{source} is a trace of version {version!r}; this program reads {VERSION}."
        )
    try:
        return _trace(data)
    except RecursionError:
        raise NotATrace(f"{source} is a damaged minisched trace: it is nested too deep.") from None
    except (NotATrace, BadMark) as error:
        raise NotATrace(f"{source} is a damaged minisched trace: {error}.") from None


def _trace(data: dict[str, Any]) -> Trace:
    header = {name: _typed(data, name, str, "the trace") for name in HEADER}
    header |= {
        name: _typed(data, name, kind, "the trace")
        for name, kind in OPTIONAL.items()
        if name in data
    }
    events = dict[str, Any]()
    for name, (_, order) in EVENTS.items():
        found = _events(data, name)
        events[name] = tuple(sorted(found, key=attrgetter(*order)) if order else found)
    ids = {item.id for item in events["slices"]}
    if len(ids) < len(events["slices"]):
        raise NotATrace("two slices have the same id")
    for item in events["slices"]:
        if item.end < item.start:
            raise NotATrace(f"slice {item.id} ends at {item.end}, before it starts")
        if item.start < 0:
            raise NotATrace(f"slice {item.id} starts at {item.start}, but no time is below 0")
    for kind in ("counters", "marks"):
        for index, event in enumerate(events[kind]):
            if event.time < 0:
                raise NotATrace(f"{kind}[{index}] is at {event.time}, but no time is below 0")
    for counter in events["counters"]:
        if counter.value < 0:
            raise NotATrace(f"the counter {counter.name!r} is {counter.value}, below 0")
    if header["clock"] not in CLOCKS:
        raise NotATrace(f"the clock is {header['clock']!r}, but it must be {' or '.join(CLOCKS)}")
    for edge in events["edges"]:
        if edge.kind not in EDGES or edge.src == edge.dst:
            raise NotATrace(
                f"edge {edge.src} to {edge.dst} of kind {edge.kind!r} must join two slices, and "
                f"its kind must be one of {', '.join(EDGES)}"
            )
        if edge.src not in ids or edge.dst not in ids:
            raise NotATrace(f"edge {edge.src} to {edge.dst} names a slice that is not there")
    check_events(events["slices"], events["marks"])
    parse(events["marks"])
    events["marks"] = tuple(sorted(events["marks"], key=attrgetter("time")))
    check_program(events["program"])
    return Trace(**header, **events)


def _events(data: dict[str, Any], name: str) -> list[Any]:
    """Return the events of one kind, with checked fields."""
    events, (made, _) = [], EVENTS[name]
    if name == "program" and name not in data:
        return []  # a trace may lack it
    for index, raw in enumerate(_typed(data, name, list, "the trace")):
        where = f"{name}[{index}]"
        if not isinstance(raw, dict):
            raise NotATrace(f"{where} is not an object")
        values = {}
        for field, needed, kind in COLUMNS[made]:
            if needed or field in raw:
                value: Any = raw.get(field)
                is_plain = type(value) is kind and kind in (int, str)
                if not is_plain or (kind is int and not -LARGEST < value < LARGEST):
                    value = _typed(raw, field, kind, where)
                values[field] = tuple(value) if kind is list else value
        events.append(made(**values))
    return events


def _typed(holder: dict[str, Any], name: str, kind: type, where: str) -> Any:
    """Return ``holder[name]``, which must have that JSON type; the ids of requests are strings."""
    if name not in holder:
        raise NotATrace(f"{where} lacks {name}")
    value = holder[name]
    is_right = isinstance(value, kind) and not isinstance(value, bool)
    if is_right and name == "rids":
        is_right = all(isinstance(rid, str) for rid in holder[name])
    if not is_right:
        raise NotATrace(f"{where} has {name} = {json.dumps(value)[:60]}")
    for number in value.values() if kind is dict else (value,):
        if type(number) is int and not -LARGEST < number < LARGEST:
            large = f"{str(number)[:20]}..., but no number may reach 2**63"
            raise NotATrace(f"{where} has {name} = {large}")
    return value


KINDS = ("launch", "begin", "end", "wait", "say", "read", "write", "free", "release")


def check_program(program: Iterable[Act]) -> None:
    """Check each act and each op: launched once, begun once, and ended once on its lane.

    An op or a wait without an end is no fault of the file: the race check reports it.

    Raises:
        NotATrace: see the README of the folder ``traces``.
    """
    acts = list(program)
    launched = {act.op for act in acts if act.kind == "launch"}
    seen: dict[tuple[str, int], str] = {}  # kind and op -> lane
    running: dict[str, int] = {}  # lane -> op
    for index, act in enumerate(acts):
        kind, op, lane = act.kind, act.op, act.lane
        wrong = ""
        if kind not in KINDS:
            wrong = f"has kind = {kind!r}, but it must be one of {', '.join(KINDS)}"
        elif not lane:
            wrong = "has no lane"
        elif kind in ("read", "write", "free", "release"):
            if not act.resource or not act.at:
                wrong = (
                    f"is a {kind}, but it lacks {'cells (at)' if act.resource else 'a resource'}"
                )
            elif not _are_cells(act.at):
                wrong = f"has at = {act.at[:40]!r}, but cells are written in order, as in '3-7 9'"
        elif act.resource or act.at:
            wrong = f"is a {kind} and touches nothing, but it has a resource or cells"
        elif op < 1:
            wrong = f"has op = {op}, but an op is a number above 0"
        elif kind in ("launch", "begin", "end") and (kind, op) in seen:
            wrong = f"is a second {kind} of op {op}"
        elif kind == "say" and seen.get((kind, op), lane) != lane:
            wrong = f"gives signal {op}, which is also a signal of lane {seen[kind, op]!r}"
        elif kind == "begin" and op not in launched:
            wrong = f"is a begin of op {op}, which no act launches"
        elif kind == "begin" and lane in running:
            wrong = f"is a begin of op {op}, but op {running[lane]} has not ended on its lane"
        elif kind == "end" and running.get(lane) != op:
            wrong = f"is an end of op {op}, which has not begun on its lane"
        if wrong:
            raise NotATrace(f"program[{index}] {wrong}")
        seen[kind, op] = lane
        if kind == "begin":
            running[lane] = op
        elif kind == "end":
            del running[lane]


def _are_cells(text: str) -> bool:
    try:
        return bool(spans_of(text)) and text == " ".join(text.split())
    except ValueError:
        return False
