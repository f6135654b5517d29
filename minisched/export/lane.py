"""The lanes of a picture: which there are, what they are called, and in what order they stand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..trace import Slice, Trace
from ..trace.events import is_forward, is_host


@dataclass(frozen=True)
class Lane:
    """One line of a picture. ``key`` is one word that every format accepts as an identifier."""

    key: str
    name: str
    side: str  # "host" or "device"

    @property
    def title(self) -> str:
        """What the reader sees."""
        return f"{self.name} ({self.side})"


SCHEDULER = Lane("scheduler", "Scheduler", "host")
PROCESS = Lane("process", "Process", "host")
FORWARD = Lane("forward", "Forward stream", "device")
COPY = Lane("copy", "Copy stream", "device")
PROCESS_PHASES = frozenset({"wait", "postprocess", "process", "output"})  # or the scheduler's
ORDER = (  # how keys begin, from top to bottom: the hosts, then the way of a token on the devices
    "scheduler", "process", "thread_prefill", "thread_",
    "stream_prefill_forward", "stream_prefill", "stream_kv", "stream_decode_forward",
    "stream_decode", "forward", "stream_stage", "copy", "stream_",
)  # fmt: skip


def lane_of(item: Slice) -> Lane:
    """The lane that shows a slice."""
    if item.lane == "host":
        return PROCESS if item.name in PROCESS_PHASES else SCHEDULER
    if item.lane in (FORWARD.key, COPY.key):
        return FORWARD if item.lane == FORWARD.key else COPY
    key = "".join(char if char.isalnum() else "_" for char in item.lane)
    name = item.lane.capitalize().replace("Kv", "KV")
    if is_host(item.lane):
        return Lane(f"thread_{key}", name, "host")
    suffix = "" if is_forward(item.lane) or name == "KV transfer" else " stream"
    return Lane(f"stream_{key}", f"{name}{suffix}", "device")


def lanes_of(trace: Trace) -> tuple[Lane, ...]:
    """The lanes every picture has, and one for each further thread and stream; the host's first.

    Where forward passes run on other lanes (pipeline stages, two devices), there is no forward
    stream to show.
    """
    usual = (SCHEDULER, PROCESS, FORWARD, COPY)
    found = {lane_of(item) for item in trace.slices}
    elsewhere = any(is_forward(item.lane) and item.lane != FORWARD.key for item in trace.slices)
    shown = {lane for lane in usual if lane in found or not elsewhere}
    return in_order(found | shown)


def in_order(lanes: Iterable[Lane]) -> tuple[Lane, ...]:
    """Lanes as they stand in a picture."""
    return tuple(sorted(lanes, key=lambda lane: (_rank(lane), lane.key)))


def _rank(lane: Lane) -> int:
    return next(rank for rank, start in enumerate(ORDER) if lane.key.startswith(start))
