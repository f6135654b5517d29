"""Writes runs of our own as other profilers would have seen them: torch.profiler, Nsight Systems.

The fields are those of real files: kineto's ``X`` events with ``cat``, ``args.correlation``,
``args.stream`` and ``ac2g`` flows; nsys's tables with ``globalTid``, ``nameId`` and ``StringIds``.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from minisched.trace import Trace
from minisched.trace.lanes import is_host

ZERO = 4_435_969_168_245_134  # nanoseconds: profilers do not begin at 0
PID, GPU, STREAMS = 4370, 0, {"forward": 7, "copy": 20}
CALL = 4_000  # nanoseconds that a launch takes
SYNC = "cudaStreamSynchronize"


class Event(NamedTuple):
    """``kind``: kernel, DtoH, call, op or annotation; ``place``: a stream or a thread."""

    kind: str
    name: str
    place: int
    start: int
    end: int
    correlation: int = 0


def events_of(trace: Trace) -> Iterator[Event]:
    """What a profiler would have seen of a run on one device, whose launches end with a slice."""
    numbers = count(1)
    launched: defaultdict[int, list[int]] = defaultdict(list)
    for act in trace.program:
        if act.kind == "launch":
            launched[act.during].append(act.op)
    correlation: dict[int, int] = {}
    threads = {lane: PID + at for at, lane in enumerate(sorted({s.lane for s in trace.slices}))}
    for item in trace.slices:
        if not is_host(item.lane):
            continue
        here = threads[item.lane]
        if item.name == "wait":
            if within := item.attrs.get("within"):
                yield Event("op", str(within), here, item.start, item.end)
                yield Event("op", "aten::_local_scalar_dense", here, item.start, item.end)
            yield Event("call", SYNC, here, item.start, item.end)
            continue
        yield Event("annotation", item.name, here, item.start, item.end)
        ops = launched[item.id]
        for back, op in zip(range(len(ops), 0, -1), ops, strict=True):
            correlation[op] = next(numbers)
            start = item.end - back * CALL
            name = "cudaLaunchKernel"
            yield Event("call", name, here, start, start + CALL, correlation[op])
    for item in trace.slices:
        if not is_host(item.lane) and item.duration:
            kind = "DtoH" if item.lane == "copy" else "kernel"
            yield Event(kind, f"{item.name}_kernel", STREAMS[item.lane], item.start, item.end,
                        correlation.get(item.id, 0))  # fmt: skip


def to_kineto(trace: Trace, **more: Any) -> str:
    """As ``torch.profiler`` exports it."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": PID, "tid": 0, "ts": 0, "args": {"name": "p"}},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "ts": 1,
         "tid": "PyTorch Profiler", "dur": 9, "args": {"Op count": 0}},
    ]  # fmt: skip
    cats = {"kernel": "kernel", "DtoH": "gpu_memcpy", "call": "cuda_runtime", "op": "cpu_op",
            "annotation": "user_annotation"}  # fmt: skip
    for event in events_of(trace):
        on_device = event.kind in ("kernel", "DtoH")
        name = "Memcpy DtoH (Device -> Pinned)" if event.kind == "DtoH" else event.name
        args: dict[str, Any] = {"External id": 1}
        if event.correlation:
            args["correlation"] = event.correlation
        if on_device:
            args |= {"device": GPU, "stream": event.place, "context": 1}
        place = {"pid": GPU if on_device else PID, "tid": event.place}
        start = (ZERO + event.start) / 1000
        events.append({"ph": "X", "cat": cats[event.kind], "name": name, **place, "ts": start,
                       "dur": (event.end - event.start) / 1000, "args": args})  # fmt: skip
        if on_device or event.correlation:
            flow = {"ph": "f", "bp": "e"} if on_device else {"ph": "s"}
            events.append({**flow, "id": event.correlation, **place, "ts": start, "cat": "ac2g",
                           "name": "ac2g"})  # fmt: skip
    return json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events, **more})


TABLES = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER, shortName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
  bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
  eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER,
  returnValue INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
  graphId INTEGER, graphExecId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER, text TEXT,
  textId INTEGER, globalTid INTEGER);
"""


def to_nsys(trace: Trace, path: Path, graphs: bool = False) -> None:
    """As ``nsys export --type sqlite`` does; with ``graphs``, kernels are graphs, one a launch."""
    texts: dict[str, int] = {}

    def text(value: str) -> int:
        return texts.setdefault(value, len(texts) + 1)

    with closing(sqlite3.connect(path)) as database:
        database.executescript(TABLES)

        def insert(table: str, *values: object) -> None:
            marks = ", ".join("?" * len(values))
            database.execute(f"INSERT INTO {table} VALUES ({marks})", values)

        for event in events_of(trace):
            time = ZERO + event.start, ZERO + event.end
            tid, pid = (PID << 24) | event.place, PID << 24
            place = GPU, 1, event.place, event.correlation, pid
            name = "cudaGraphLaunch" if graphs and event.correlation else event.name
            if event.kind == "call":
                insert("CUPTI_ACTIVITY_KIND_RUNTIME", *time, 0, tid, event.correlation or None,
                       text(f"{name}_v7000"), 0)  # fmt: skip
            elif event.kind == "DtoH":
                insert("CUPTI_ACTIVITY_KIND_MEMCPY", *time, *place, 8, 2, 2, 1)
            elif event.kind == "kernel" and graphs:
                insert("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", *time, *place, 1, 1)
            elif event.kind == "kernel":
                insert("CUPTI_ACTIVITY_KIND_KERNEL", *time, *place, text(event.name),
                       text(event.name))  # fmt: skip
            else:
                insert("NVTX_EVENTS", *time, 59, event.name, None, tid)
        database.executemany(
            "INSERT INTO StringIds VALUES (?, ?)",
            [(0, "GpuMetrics"), *((number, word) for word, number in texts.items())],
        )
        database.commit()
