"""Reads the Chrome trace that ``torch.profiler`` exports, and this program's own Chrome export.

``export_chrome_trace`` writes ``X`` events with ``cat``: ``kernel``, ``gpu_memcpy`` and
``gpu_memset`` on streams (``args``: ``device``, ``stream``, ``correlation``), ``cuda_runtime`` and
``cuda_driver`` calls on threads with the same ``correlation``, and ``cpu_op``,
``user_annotation``, ``python_function`` around them. Times are microseconds.
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from ...trace import Trace
from ...trace.known_marks import BadMark, check_marks, check_slices
from .calls import Call
from .event import BadEvent, check_span
from .own_export import is_own, own_trace
from .phases import Range
from .steps import OWN_STEPS, NoSuchRange
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

OPS = {"kernel", "gpu_memcpy", "gpu_memset"}
CALLS = {"cuda_runtime", "cuda_driver", "hip_runtime", "runtime", "driver"}
RANGES = {"cpu_op", "user_annotation", "python_function", "operator"}
GZIP = b"\x1f\x8b"
NEITHER = (
    '{} is neither a minisched trace (it lacks "format": "minisched trace") nor a Chrome trace of '
    "a profiler ({})."
)


def read_chrome(path: Path, step: str = "") -> Foreign:
    """The trace in a Chrome trace file, perhaps compressed with gzip; ``step`` as in ``build``.

    Raises:
        NotATrace: it is not one; the message is one sentence.
        NoSuchRange: ``step`` names nothing in it.
        OSError: it cannot be read.
    """
    data = _json(path)
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise NotATrace(NEITHER.format(path, "it lacks a list of traceEvents"))
    try:
        if isinstance(data, dict) and is_own(data):
            if step:
                raise NoSuchRange(OWN_STEPS)
            return Foreign(_own(data), ())
        if (seen := seen_in(events)).ops or seen.calls or seen.ranges:
            return build(seen, step)
    except KeyError as error:
        raise NotATrace(f"{path} is a damaged Chrome trace: an event lacks {error}.") from None
    except (BadEvent, BadMark) as error:
        raise NotATrace(f"{path} is a damaged Chrome trace: {error}.") from None
    except (TypeError, ValueError, AttributeError, OverflowError):
        what = "an event has a value that cannot be read"
        raise NotATrace(f"{path} is a damaged Chrome trace: {what}.") from None
    raise NotATrace(NEITHER.format(path, "it has no op, call or range"))


def _own(data: dict[str, Any]) -> Trace:
    """The trace in this program's own export, its events checked.

    Raises:
        KeyError, TypeError, ValueError: an event is not as it was written.
    """
    for index, event in enumerate(data["traceEvents"]):
        if event.get("ph") == "X":
            check_span(event, index)
    trace = own_trace(data)
    check_slices(trace.slices)
    check_marks(trace.marks)
    return trace


def seen_in(events: list[dict[str, Any]]) -> Seen:
    """What a profiler's events say.

    Raises:
        BadEvent: one has no time, or no duration, or is of no thread.
    """
    seen = Seen("torch.profiler")
    for index, event in enumerate(events):
        cat = str(event.get("cat", "")).lower()
        if event.get("ph") != "X" or cat not in OPS | CALLS | RANGES:
            continue
        check_span(event, index)
        if cat not in OPS and "tid" not in event:
            raise BadEvent(f"traceEvents[{index}] lacks 'tid'")
        start = round(event["ts"] * 1000)
        end = start + round(event["dur"] * 1000)
        args, name = event.get("args") or {}, str(event.get("name", ""))
        correlation = str(args.get("correlation", args.get("Correlation ID", "")))
        if cat in OPS:
            place = f"device {args.get('device', event.get('pid'))}"
            place += f" stream {args.get('stream', event.get('tid'))}"
            seen.ops.append(DeviceOp(place, _kind(cat, name), name, start, end, correlation))
        elif cat in CALLS:
            seen.calls.append(Call(f"{event['tid']}", name, start, end, correlation))
        else:
            is_annotation = cat == "user_annotation"
            seen.ranges.append(Range(f"{event['tid']}", name, start, end, is_annotation))
    return seen


def _kind(cat: str, name: str) -> str:
    if cat == "kernel":
        return KERNEL
    if "DtoH" in name or "Device -> Host" in name or "DeviceToHost" in name:
        return TO_HOST
    return TO_DEVICE if "HtoD" in name or "HostToDevice" in name else cat.removeprefix("gpu_")


def _json(path: Path) -> Any:
    raw = path.read_bytes()
    try:
        text = gzip.decompress(raw) if raw.startswith(GZIP) else raw
        return json.loads(text)
    except (ValueError, OSError, EOFError, RecursionError, zlib.error) as error:
        raise NotATrace(f"{path} is not a Chrome trace: it is not JSON ({error}).") from None
