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

from .calls import Call
from .own_export import is_own, own_trace
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

OPS = {"kernel", "gpu_memcpy", "gpu_memset"}
CALLS = {"cuda_runtime", "cuda_driver", "hip_runtime", "runtime", "driver"}
RANGES = {"cpu_op", "user_annotation", "python_function", "operator"}
GZIP = b"\x1f\x8b"


def read_chrome(path: Path) -> Foreign:
    """The trace in a Chrome trace file, which may be compressed with gzip.

    Raises:
        NotATrace: it is not one; the message is one sentence.
        OSError: it cannot be read.
    """
    data = _json(path)
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise NotATrace(f"{path} is not a Chrome trace: it lacks a list of traceEvents.")
    try:
        if isinstance(data, dict) and is_own(data):
            return Foreign(own_trace(data), ())
        if (seen := seen_in(events)).ops or seen.calls or seen.ranges:
            return build(seen)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"{type(error).__name__}: {error}"
        raise NotATrace(f"{path} is a damaged Chrome trace: an event is wrong ({what}).") from None
    raise NotATrace(f"{path} is not a Chrome trace of a profiler: it has no op, call or range.")


def seen_in(events: list[dict[str, Any]]) -> Seen:
    """What a profiler's events say."""
    seen = Seen("torch.profiler")
    for event in events:
        cat = str(event.get("cat", "")).lower()
        if event.get("ph") != "X" or cat not in OPS | CALLS | RANGES:
            continue
        start = round(event["ts"] * 1000)
        end = start + round(event.get("dur", 0) * 1000)
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
