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
bytes. The README of the folder ``traces`` describes the format for files of other engines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

from ..checks.answers import Recorded
from ..checks.foreign import OWN_STEPS, read_foreign
from ..trace import Act, Counter, Edge, Mark, Slice, Trace
from ..trace.cells import spans_of
from ..trace.files import Hear, read_text, unheard, unpacked, write_whole
from ..trace.marks import BadMark, check_events

# -- Whether a program is well formed, so that whoever writes one hears what is wrong with it ------

KINDS = ("launch", "begin", "end", "wait", "say", "read", "write", "free")
TOUCHES = ("read", "write", "free")


class BadProgram(ValueError):
    """What is wrong, in a few words that begin with the act's place: ``program[3] ...``."""


def check_program(program: Iterable[Act]) -> None:
    """Look at each act, and at each op: launched once, begun once, ended once where it began.

    An op that never ends and a wait for what never comes are no mistakes of the file: the race
    check tells of them.

    Raises:
        BadProgram: see the README of the folder ``traces``.
    """
    acts = list(program)
    launched = {act.op for act in acts if act.kind == "launch"}
    seen: dict[tuple[str, int], str] = {}  # kind and op -> lane
    running: dict[str, int] = {}  # lane -> op
    for index, act in enumerate(acts):
        wrong = _wrong_by_itself(act) or _wrong_in_its_place(act, launched, seen, running)
        if wrong:
            raise BadProgram(f"program[{index}] {wrong}")
        seen[act.kind, act.op] = act.lane
        if act.kind == "begin":
            running[act.lane] = act.op
        elif act.kind == "end":
            del running[act.lane]


def _wrong_by_itself(act: Act) -> str:
    """What is wrong with an act, whatever stands around it; empty: nothing."""
    if act.kind not in KINDS:
        return f"has kind = {act.kind!r}, but it must be one of {', '.join(KINDS)}"
    if not act.lane:
        return "has no lane"
    if act.kind not in TOUCHES:
        if act.resource or act.at:
            return f"is a {act.kind} and touches nothing, but it has a resource or cells"
        return "" if act.op > 0 else f"has op = {act.op}, but an op is a number above 0"
    if not act.resource or not act.at:
        return f"is a {act.kind}, but it lacks {'cells (at)' if act.resource else 'a resource'}"
    try:
        if spans_of(act.at) and act.at == " ".join(act.at.split()):
            return ""
    except ValueError:
        pass
    return f"has at = {act.at[:40]!r}, but cells are written in order, as in '3-7 9'"


def _wrong_in_its_place(
    act: Act, launched: set[int], seen: dict[tuple[str, int], str], running: dict[str, int]
) -> str:
    """What is wrong with an act behind those before it; empty: nothing."""
    is_again = (act.kind, act.op) in seen
    if act.kind in ("launch", "begin", "end") and is_again:
        return f"is a second {act.kind} of op {act.op}"
    if act.kind == "say" and is_again and seen[act.kind, act.op] != act.lane:
        return f"says signal {act.op}, which lane {seen[act.kind, act.op]!r} says too"
    if act.kind == "begin" and act.op not in launched:
        return f"is a begin of op {act.op}, which nobody launches"
    if act.kind == "begin" and act.lane in running:
        return f"is a begin of op {act.op}, but op {running[act.lane]} has not ended on its lane"
    if act.kind == "end" and running.get(act.lane) != act.op:
        return f"is an end of op {act.op}, which has not begun on its lane"
    return ""


FORMAT, VERSION = "minisched trace", 1
HEADER = ("loop", "device", "model", "clock")
OPTIONAL = "dtype"  # of a real model: behind the others
EVENTS: dict[str, Any] = {
    "slices": Slice,
    "edges": Edge,
    "counters": Counter,
    "marks": Mark,
    "program": Act,
}
TYPES: dict[str, type] = {
    "str": str,
    "int": int,
    "tuple[str, ...]": list,
    "dict[str, Value]": dict,
}  # the JSON type of a field, by its annotation


def _columns(kind: type) -> tuple[tuple[str, bool, type], ...]:
    """The fields of a kind of events: name, whether it must be there, and its JSON type."""
    return tuple((field.name, _required(field), TYPES[str(field.type)]) for field in fields(kind))


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


COLUMNS = {kind: _columns(kind) for kind in EVENTS.values()}


class NotATrace(ValueError):
    """A file that is not a minisched trace; the message is one sentence that says why."""


def to_json(trace: Trace) -> str:
    """A trace as text, ending in a newline."""
    parts = [f'"format": {json.dumps(FORMAT)}, "version": {VERSION}']
    names = [*HEADER, *[OPTIONAL] * bool(trace.dtype)]
    parts.append(", ".join(f'"{name}": {json.dumps(getattr(trace, name))}' for name in names))
    for name in EVENTS if trace.program else [name for name in EVENTS if name != "program"]:
        events = ",".join("\n" + line_of(event) for event in getattr(trace, name))
        parts.append(f'"{name}": [{events}\n]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def from_json(text: str, source: str = "this text") -> Trace:
    """The trace in ``text``; ``source`` names it in errors.

    Raises:
        NotATrace: it is not JSON, not a trace, of another version, or an event is wrong.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise NotATrace(f"{source} is not a minisched trace: it is not JSON ({error}).") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise NotATrace(f'{source} is not a minisched trace: it lacks "format": "{FORMAT}".')
    if data.get("version") != VERSION:
        raise NotATrace(
            f"{source} is a trace of version {data.get('version')!r}; this program reads {VERSION}."
        )
    try:
        return _trace(data)
    except NotATrace as error:
        raise NotATrace(f"{source} is a damaged minisched trace: {error}.") from None


def write(trace: Trace, path: Path) -> None:
    """Write a trace to a file.

    Raises:
        ValueError: it can't be written; one sentence.
    """
    write_whole(path, to_json(trace))


def read(path: Path) -> Trace:
    """The trace in a file, which may be compressed with gzip.

    Raises:
        NotATrace: see ``from_json``; or the file is not text.
        OSError: it cannot be read.
    """
    try:
        text = read_text(path)
    except UnicodeDecodeError:
        raise NotATrace(f"{path} is not a minisched trace: it is not text.") from None
    return from_json(text, str(path))


def line_of(event: Any) -> str:
    """An event as one line: its fields, without those that are at their default."""
    columns = COLUMNS[type(event)]
    values = ((name, required, getattr(event, name)) for name, required, _ in columns)
    return json.dumps({name: value for name, required, value in values if value or required})


def _trace(data: dict[str, Any]) -> Trace:
    header = {name: _typed(data, name, str, "the trace") for name in HEADER}
    events: dict[str, Any] = {name: tuple(_events(data, name)) for name in EVENTS}
    _put_in_order(events)
    ids = {item.id for item in events["slices"]}
    if len(ids) < len(events["slices"]):
        raise NotATrace("two slices have the same id")
    for item in events["slices"]:
        if item.end < item.start:
            raise NotATrace(f"slice {item.id} ends at {item.end}, before it starts")
    for edge in events["edges"]:
        if edge.src not in ids or edge.dst not in ids:
            raise NotATrace(f"edge {edge.src} to {edge.dst} names a slice that is not there")
    try:
        check_events(events["slices"], events["marks"])
        events["marks"] = tuple(sorted(events["marks"], key=attrgetter("time")))
        check_program(events["program"])
    except (BadMark, BadProgram) as error:
        raise NotATrace(str(error)) from None
    dtype = _typed(data, OPTIONAL, str, "the trace") if OPTIONAL in data else ""
    return Trace(**header, **events, dtype=dtype)


def _put_in_order(events: dict[str, Any]) -> None:
    """As ``trace/events.py:Trace`` has them, whatever order a file has."""
    events["slices"] = tuple(sorted(events["slices"], key=attrgetter("start", "end", "id")))
    events["edges"] = tuple(sorted(events["edges"], key=attrgetter("src", "dst", "kind")))
    events["counters"] = tuple(sorted(events["counters"], key=attrgetter("time", "name")))


def _events(data: dict[str, Any], name: str) -> list[Any]:
    """The events of one kind, their fields checked."""
    events = []
    if name == "program" and name not in data:
        return []  # a trace that says nothing about it
    made, columns = EVENTS[name], COLUMNS[EVENTS[name]]
    for index, raw in enumerate(_typed(data, name, list, "the trace")):
        where = f"{name}[{index}]"
        if not isinstance(raw, dict):
            raise NotATrace(f"{where} is not an object")
        values = {}
        for field, required, kind in columns:
            if required or field in raw:
                value: Any = raw.get(field)
                if type(value) is not kind or kind is list:  # what is right needs no second look
                    value = _typed(raw, field, kind, where)
                values[field] = tuple(value) if kind is list else value
        events.append(made(**values))
    return events


def _typed(holder: dict[str, Any], name: str, kind: type, where: str) -> Any:
    """``holder[name]``, if it has that JSON type; the ids of requests must be strings."""
    value = holder.get(name)
    is_right = isinstance(value, kind) and not isinstance(value, bool)
    if is_right and name == "rids":
        is_right = all(isinstance(rid, str) for rid in holder[name])
    if not is_right:
        raise NotATrace(f"{where} has {name} = {json.dumps(value)[:60]}")
    return value


# -- Reads a recorded run, whoever recorded it -----------------------------------------------------

BEGINNING = 4096  # bytes in which a file of this program says what it is


def read_recorded(path: Path, step: str = "", hear: Hear = unheard) -> Recorded:
    """A run in this program's own format, or from another one's profiler.

    ``step`` is the name of the ranges that are steps in a profiler's trace, and ``hear`` is told
    how many bytes were read.

    Raises:
        ValueError: the file can't be read, or is none of them.
    """
    try:
        if is_native(path):
            if step:
                raise ValueError(f"{path}: {OWN_STEPS}")
            return Recorded(str(path), read(path))
        foreign = read_foreign(path, step, hear)
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}.") from error
    return Recorded(str(path), foreign.trace, foreign.lacks, foreign.steps)


def is_native(path: Path) -> bool:
    """Whether a file begins as ``native.py`` writes it."""
    with unpacked(path) as file:
        return f'"{FORMAT}"'.encode() in file.read(BEGINNING)
