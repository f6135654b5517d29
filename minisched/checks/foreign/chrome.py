"""Reads the Chrome trace that ``torch.profiler`` exports, and this program's own Chrome export.

``export_chrome_trace`` writes ``X`` events with ``cat``: ``kernel``, ``gpu_memcpy`` and
``gpu_memset`` on streams (``args``: ``device``, ``stream``, ``correlation``), ``cuda_runtime`` and
``cuda_driver`` calls on threads with the same ``correlation``, and ``cpu_op``,
``user_annotation``, ``python_function`` around them. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from sys import intern
from typing import Any

from ...trace import Trace
from ...trace.files import DamagedGzip, Hear, unheard, unpacked
from ..known_marks import BadMark, check_marks, check_slices
from .calls import Call
from .event import BadEvent, check_span
from .json_events import EVENTS, Damaged, JsonEvents
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
                    raise NotATrace(NEITHER.format(path, "it lacks a list of traceEvents"))
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
    except (NotATrace, NoSuchRange):
        raise
    except Damaged as error:
        raise NotATrace(f"{path} is not a Chrome trace: it is not JSON ({error}).") from None
    except DamagedGzip as error:
        raise NotATrace(f"{path} is not a Chrome trace: {error.strerror}.") from None
    except KeyError as error:
        raise NotATrace(f"{path} is a damaged Chrome trace: an event lacks {error}.") from None
    except (BadEvent, BadMark) as error:
        raise NotATrace(f"{path} is a damaged Chrome trace: {error}.") from None
    except (TypeError, ValueError, AttributeError, OverflowError):
        what = "an event has a value that cannot be read"
        raise NotATrace(f"{path} is a damaged Chrome trace: {what}.") from None
    lack = "it has no op, call or range" if events.has_events else "it lacks a list of traceEvents"
    raise NotATrace(NEITHER.format(path, lack))


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
