"""When each op of a device was launched, and in which calls the host was blocked before."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import NamedTuple

from ...trace import Slice, Trace
from ...trace.events import is_host
from .course import WAIT


class Launch(NamedTuple):
    """The lane of the host that launched an op, and when it was launched at the latest.

    A profiler saw the ``call`` itself, from ``since`` to ``over``: a device can begin an op before
    it returns. Of other launches no more is known than that time.
    """

    lane: str
    time: int
    since: int
    over: int
    call: str = ""


def launches(trace: Trace) -> dict[int, Launch]:
    """The launch of each op, by id: from the program, and from edges where that says nothing.

    A launch is over when its slice is; an op that started before was launched by its start.
    """
    slices = {item.id: item for item in trace.slices}
    by = {edge.dst: edge.src for edge in trace.edges if edge.kind == "launch"}
    by |= {act.op: act.during for act in trace.program if act.kind == "launch" and act.during}
    return {
        op: _launch(slices[src], slices[op])
        for op, src in by.items()
        if op in slices and src in slices
    }


def _launch(item: Slice, op: Slice) -> Launch:
    time, call = min(item.end, op.start), str(item.attrs.get("call", ""))
    return Launch(item.lane, time, item.start if call else time, item.end, call)


class Blocked:
    """The slices in which threads of the host were blocked."""

    def __init__(self, trace: Trace) -> None:
        self.on: defaultdict[str, list[Slice]] = defaultdict(list)
        for item in trace.slices:
            if item.name == WAIT and is_host(item.lane):
                self.on[item.lane].append(item)
        self.ends = {lane: [item.end for item in items] for lane, items in self.on.items()}

    def before(self, launch: Launch, since: int) -> Slice | None:
        """What a lane was blocked in last before a launch, if that lasted until ``since``."""
        at = bisect_right(self.ends.get(launch.lane, []), launch.time) - 1
        if at < 0 or self.ends[launch.lane][at] < since:
            return None
        return self.on[launch.lane][at]


def call_of(item: Slice) -> str:
    """What blocked the host: ``cudaStreamSynchronize (aten::item)``; in our traces, a copy."""
    call = str(item.attrs.get("call", "the wait for a step's tokens"))
    within = item.attrs.get("within", "")
    return f"{call} ({within})" if within else call
