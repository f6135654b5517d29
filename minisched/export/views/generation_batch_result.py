"""The copy path: each step's inputs on their way to the device, and its tokens on theirs back."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from ...checks.history import many
from ...trace import Slice, Trace
from ...trace.events import is_copy, is_host
from ...trace.sides import shown_side, side_words
from ..scene import LaneItem, LaneRow, Lanes, Part, Scene, about_run
from ..units import ms
from .marks import NothingToShow, first_of, named, number
from .steps import forwards_of

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
ON_WAY = (*LEGEND.keys() - {"read", "ready"},)  # phases and ops


def scene(trace: Trace) -> Scene:
    """Two lanes a step, device and host, and a lane for each pinned host buffer.

    Raises:
        NothingToShow: no step ran, or nothing was copied to the host.
    """
    own = shown_side(trace)
    every = [item.step for item in forwards_of(own)]
    steps: dict[int, list[Slice]] = {step: [] for step in every[:MOST_STEPS]}
    for item in sorted(own.slices, key=lambda item: item.start):
        if item.step in steps and item.name in ON_WAY:
            steps[item.step].append(item)
    copies = {step: item for step, items in steps.items() for item in items if is_copy(item.lane)}
    if not copies:
        raise NothingToShow("the trace has no copy slice, so no token went to the host.")
    taken = {item.step: item.start for item in own.slices if item.name == "process"}
    waited, ready, rows = dict[int, int](), dict[int, int](), list[LaneRow]()
    for step, items in steps.items():
        device = [item_of(item) for item in items if not is_host(item.lane)]
        host = [item_of(item) for item in items if is_host(item.lane)]
        waited[step] = sum(item.duration for item in items if item.name == "wait")
        if copy := copies.get(step):
            ready[step] = max(0, taken.get(step, 0) - copy.end)
            if ready[step]:
                about = f"tokens of step {step} lie in the host buffer: {ms(ready[step])} ms"
                device.append(LaneItem("ready", copy.end, taken[step], about=about,
                                       data={"step": step, "ready": ready[step]}))  # fmt: skip
            about = f"copy_done of step {step}, at {ms(copy.end)} ms"
            device.append(LaneItem("read", copy.end, copy.end, about=about, data={"step": step}))
        mode = next(item.mode for item in items if item.name == "forward")
        for name, spans, what, time in (("device", device, "ready", ready.get(step, 0)),
                                        ("host", host, "waited", waited[step])):  # fmt: skip
            tail = f"{what} {ms(time)} ms" if time else ""
            rows.append(LaneRow(name, spans, group=f"step {step}", group_note=mode, tail=tail))
    end = max(item.end for items in steps.values() for item in items)
    note = "ready: tokens lie in the buffer; waited: the host does"
    parts = [Part("From step to host", note, [Lanes(rows, end)])]
    for mark in named(own, "host buffers")[:1]:
        parts.append(buffers(copies, taken, number(mark, "count"), end))
    shown = first_of(MOST_STEPS, len(every), "step") or many(len(steps), "step")
    lost, lay = sum(waited.values()), sum(ready.values())
    title = f"the host waits {ms(lost)} ms for copies, and copies {ms(lay)} ms for it"
    return Scene(
        f"generation_batch_result: {title}",
        about_run(trace, shown, side_words(trace)),
        parts,
        LEGEND,
    )


def item_of(item: Slice) -> LaneItem:
    """One op or phase; a wait is told from others by how long it is, in nanoseconds."""
    about = f"step {item.step}, {item.name}: {ms(item.start)} to {ms(item.end)} ms"
    label = item.name if item.name == "forward" else ""
    return LaneItem(item.name, item.start, item.end, label, "", about,
                    {"step": item.step, "op": item.name, "ns": item.duration})  # fmt: skip


def buffers(copies: dict[int, Slice], taken: dict[int, int], count: int, end: int) -> Part:
    """A lane for each buffer: from when a copy begins to write it until it is read."""
    lanes: dict[int, list[LaneItem]] = defaultdict(list)
    for step, copy in copies.items():
        buffer, until = step % count, max(copy.end, taken.get(step, end))
        about = f"buffer {buffer}: tokens of step {step}, until {ms(until)} ms"
        lanes[buffer].append(LaneItem("copy", copy.start, until, str(step), about=about,
                                      data={"step": step, "buffer": buffer}))  # fmt: skip
    early = sum(b.start < a.end for items in lanes.values() for a, b in pairwise(items))
    words = f"{many(early, 'step')} wrote what was not read yet"
    note = f"numbers: whose tokens; {words if early else 'none writes what is not read yet'}"
    rows = [LaneRow(f"buffer {at}", lanes[at]) for at in sorted(lanes)]
    return Part("Pinned host buffers", note, [Lanes(rows, end)])
