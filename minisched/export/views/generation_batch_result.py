"""The copy path: each step's inputs on their way to the device, and its tokens on the way back."""

from __future__ import annotations

from itertools import pairwise

from ...checks.history import many
from ...trace import Slice, Trace
from ...trace.events import is_copy, is_host
from ...trace.sides import shown_side, side_words
from ..scene import Data, LaneItem, LaneRow, Lanes, Part, Scene, about_run
from ..units import ms
from .marks import NothingToShow, named, number
from .steps import opening

MOST_STEPS = 16
LEGEND = {
    "prepare": "prepare: inputs laid out and sent to the device",
    "upload": "upload: prompts to the device",
    "forward": "forward",
    "sample": "sample",
    "verify": "verify",
    "draft": "draft",
    "copy": "copy to a pinned host buffer",
    "read": "copy_done, the event",
    "ready": "the tokens lie ready: the host is busy",
    "wait": "the host waits for copy_done",
    "process": "process: the host takes them",
}


def scene(trace: Trace) -> Scene:
    """Draw two lanes for each step, device and host, and a lane for each pinned host buffer."""
    own = shown_side(trace)
    first, shown = opening(own, MOST_STEPS)
    steps: dict[int, list[Slice]] = {
        item.step: [] for item in first.slices if item.name == "forward"
    }
    for item in sorted(own.slices, key=lambda item: item.start):
        if item.step in steps and item.name in LEGEND:
            steps[item.step].append(item)
    copies = {step: item for step, items in steps.items() for item in items if is_copy(item.lane)}
    if not copies:
        raise NothingToShow("the trace has no copy slice, so no token went to the host.")
    taken = {item.step: item.start for item in own.slices if item.name == "process"}
    rows, late = list[LaneRow](), 0  # copies that the host waited for
    for step, items in steps.items():
        device = [item_of(item) for item in items if not is_host(item.lane)]
        host = [item_of(item) for item in items if is_host(item.lane)]
        waited, ready = sum(item.duration for item in items if item.name == "wait"), 0
        if copy := copies.get(step):
            ready = max(0, taken.get(step, 0) - copy.end)
            data = {"step": step, "ready": ready}
            device += [LaneItem("ready", copy.end, taken[step], data=data)] if ready else []
            device.append(LaneItem("read", copy.end, copy.end, data={"step": step}))
        mode = next(item.mode for item in items if item.name == "forward")
        for name, spans, what, time in (("device", device, "ready", ready),
                                        ("host", host, "waited", waited)):  # fmt: skip
            tail = f"{what} {ms(time)} ms" if time else ""
            rows.append(LaneRow(name, spans, group=f"step {step}", group_note=mode, tail=tail))
        late += waited > 0
    end = max(item.end for items in steps.values() for item in items)
    note = "ready: the tokens are in the buffer before the host reads them"
    parts = [Part("From step to host", note, [Lanes(rows, end)])]
    for mark in named(own, "host buffers")[:1]:
        parts.append(buffers(copies, taken, number(mark, "count"), end))
    title = f"The host waits for {late} of {many(len(copies), 'copy', 'copies')}"
    title += "; the others are complete before it reads them" * (late < len(copies))
    about = about_run(trace, shown, side_words(trace))
    return Scene(title, about, parts, LEGEND)


def item_of(item: Slice) -> LaneItem:
    """Return one op or phase; a wait has its own length, in nanoseconds."""
    data: Data = {"step": item.step, "op": item.name, "ns": item.duration}
    label = item.name if item.name == "forward" else ""
    return LaneItem(item.name, item.start, item.end, label, data=data)


def buffers(copies: dict[int, Slice], taken: dict[int, int], count: int, end: int) -> Part:
    """Draw a lane for each buffer: from the start of the copy into it until its read."""
    lanes: dict[int, list[LaneItem]] = {}
    for step, copy in copies.items():
        until = max(copy.end, taken.get(step, end))
        data = {"step": step, "buffer": step % count}
        item = LaneItem("copy", copy.start, until, str(step), data=data)
        lanes.setdefault(step % count, []).append(item)
    early = sum(b.start < a.end for items in lanes.values() for a, b in pairwise(items))
    words = f"{many(early, 'step')} overwrote unread tokens"
    note = f"numbers: the step; {words if early else 'no step overwrites unread tokens'}"
    rows = [LaneRow(f"buffer {at}", lanes[at]) for at in sorted(lanes)]
    return Part("Pinned host buffers", note, [Lanes(rows, end)])
