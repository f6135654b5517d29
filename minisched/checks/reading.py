"""Read a recorded run of any program: a trace in our own format, or a file of a profiler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..record import FORMAT
from ..trace import Trace
from ..trace.events import is_forward
from ..trace.files import UNPACKED_MIB, Hear, unheard, unpacked
from ..trace.native import read
from .answers import Recorded
from .foreign import OWN_STEPS, read_foreign

BEGINNING = 4096  # bytes that contain the name of our own format


def is_own_format(path: Path) -> bool:
    """Return whether a file is a trace in our own format.

    Raises:
        ValueError: the file can't be read.
    """
    try:
        with unpacked(path) as file:
            return f'"{FORMAT}"'.encode() in file.read(BEGINNING)
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}.") from error


def read_recorded(
    path: Path, step: str = "", hear: Hear = unheard, device_lane: str = "",
    unpacked_mib: int = UNPACKED_MIB,
) -> Recorded:  # fmt: skip
    """Return a run in our own format, or of another program's profiler.

    ``step`` is the name of the ranges that are steps in a profiler's trace. ``device_lane`` is the
    lane that is the device's; in a profiler's trace also a thread, or a range. ``hear`` receives
    the number of bytes read. A file in gzip may unpack to ``unpacked_mib`` MiB.

    Raises:
        ValueError: the file can't be read, is none of them, or has no such range or lane.
    """
    is_own = is_own_format(path)
    try:
        if is_own and step:
            raise ValueError(f"{path}: {OWN_STEPS}")
        if is_own:
            trace = read(path, unpacked_mib)
            return Recorded(str(path), with_device_lane(trace, device_lane, str(path)))
        return read_foreign(path, step, hear, device_lane, unpacked_mib)
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}.") from error


def with_device_lane(trace: Trace, lane: str, source: str) -> Trace:
    """Rename a lane of a trace, so that it is the device's; without a name it stays as it is.

    Raises:
        ValueError: ``source`` has no such lane.
    """
    lanes = sorted({item.lane for item in trace.slices} | {act.lane for act in trace.program})
    if not lane or (lane in lanes and is_forward(lane)):
        return trace
    if lane not in lanes:
        here = ", ".join(lanes)
        raise ValueError(f"{source}: --device-lane {lane} names no lane; the lanes are {here}.")
    name = f"{lane} forward" if any(map(is_forward, lanes)) else "forward"
    slices = (replace(it, lane=name) if it.lane == lane else it for it in trace.slices)
    program = (replace(act, lane=name) if act.lane == lane else act for act in trace.program)
    return replace(trace, slices=tuple(slices), program=tuple(program))
