"""The copy path: each step's inputs on their way to the device, and its tokens on theirs back."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from ...trace import Slice, Trace
from ...trace.events import is_copy, is_forward, is_host
from ...trace.sides import PAIR
from ..scene import LaneItem, LaneRow, Lanes, Part, Scene, about_run
from ..units import ms
from .marks import NothingToShow, first_of, many, named, number
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
ON_DEVICE = ("upload", "forward", "sample", "verify", "draft")  # before the copy
ON_HOST = ("prepare", "wait", "process")
Key = tuple[str, int]  # a step with its side: two engines number their steps by themselves


def scene(trace: Trace) -> Scene:
    """Two lanes a step, device and host, and a lane for each pinned host buffer.

    Raises:
        NothingToShow: no step ran, or nothing was copied to the host.
    """
    forwards_of(trace)
    every = steps_of(trace)
    steps = dict([*every.items()][:MOST_STEPS])
    copies = {key: item for key, items in steps.items() for item in items if is_copy(item.lane)}
    if not copies:
        raise NothingToShow("the trace has no copy slice, so no token went to the host.")
    taken = {key: item.start for key, items in steps.items() for item in items
             if item.name == "process"}  # fmt: skip
    ready = {key: taken[key] - copies[key].end for key in steps
             if key in taken and key in copies and taken[key] > copies[key].end}  # fmt: skip
    waited = {key: sum(item.duration for item in items if item.name == "wait")
              for key, items in steps.items()}  # fmt: skip
    end = max(item.end for items in steps.values() for item in items)
    rows = list[LaneRow]()
    for key, items in steps.items():
        name = " ".join(filter(None, map(str, key)))
        mode = next(item.mode for item in items if item.name == "forward")
        device = [item_of(item) for item in items if not is_host(item.lane)]
        if copy := copies.get(key):
            if key in ready:
                about = f"tokens of step {name} lie in the host buffer: {ms(ready[key])} ms"
                device.append(LaneItem("ready", copy.end, taken[key], about=about,
                                       data={"step": name, "ready": ready[key]}))  # fmt: skip
            about = f"copy_done of step {name}, at {ms(copy.end)} ms"
            device.append(LaneItem("read", copy.end, copy.end, about=about, data={"step": name}))
        tails = [f"{what} {ms(of)} ms" if of else "" for what, of in
                 (("ready", ready.get(key, 0)), ("waited", waited[key]))]  # fmt: skip
        host = [item_of(item) for item in items if is_host(item.lane)]
        rows.append(LaneRow("device", device, group=f"step {name}", group_note=mode, tail=tails[0]))
        rows.append(LaneRow("host", host, group=f"step {name}", group_note=mode, tail=tails[1]))
    note = "ready: tokens lie in the buffer; waited: the host does"
    parts = [Part("From step to host", note, [Lanes(rows, end)])]
    counts = {str(mark.attrs.get("side", "")): number(mark, "count")
              for mark in named(trace, "host buffers")}  # fmt: skip
    if all(counts.get(side) for side, _ in steps):
        parts.append(buffers(copies, taken, counts, end))
    shown = first_of(MOST_STEPS, len(every), "step") or many(len(steps), "step")
    lost, lay = sum(waited.values()), sum(ready.values())
    title = f"the host waits {ms(lost)} ms for copies, and copies {ms(lay)} ms for it"
    return Scene(f"generation_batch_result: {title}", about_run(trace, shown), parts, LEGEND)


def steps_of(trace: Trace) -> dict[Key, list[Slice]]:
    """What is on each step's way over the host, in order of time, by the first start."""
    found: dict[Key, list[Slice]] = defaultdict(list)
    for item in sorted(trace.slices, key=lambda item: item.start):
        is_op = item.name in ON_DEVICE and (is_forward(item.lane) or item.name == "upload")
        is_on_way = is_op or (item.name in ON_HOST if is_host(item.lane) else item.name == "copy")
        if item.step and is_on_way:
            side = item.lane.partition(" ")[0]
            found[side if side in PAIR else "", item.step].append(item)
    found = {key: items for key, items in found.items()
             if any(item.name == "forward" for item in items)}  # fmt: skip
    return dict(sorted(found.items(), key=lambda of: next(
        item.start for item in of[1] if item.name in ON_DEVICE)))  # fmt: skip


def item_of(item: Slice) -> LaneItem:
    """One op or phase; a wait is told from others by how long it is, in nanoseconds."""
    about = f"step {item.step}, {item.name}: {ms(item.start)} to {ms(item.end)} ms"
    label = item.name if item.name == "forward" else ""
    return LaneItem(item.name, item.start, item.end, label, "", about,
                    {"step": item.step, "op": item.name, "ns": item.duration})  # fmt: skip


def buffers(
    copies: dict[Key, Slice], taken: dict[Key, int], counts: dict[str, int], end: int
) -> Part:
    """A lane for each buffer: from when a copy begins to write it until it is read."""
    lanes: dict[Key, list[LaneItem]] = defaultdict(list)
    for (side, step), copy in copies.items():
        buffer, until = step % counts[side], max(copy.end, taken.get((side, step), end))
        about = f"buffer {buffer}: tokens of step {step}, until {ms(until)} ms"
        lanes[side, buffer].append(
            LaneItem("copy", copy.start, until, str(step), "", about,
                     {"step": step, "buffer": buffer})
        )  # fmt: skip
    early = sum(b.start < a.end for items in lanes.values() for a, b in pairwise(items))
    words = f"{many(early, 'step')} wrote what was not read yet"
    note = f"numbers: whose tokens; {words if early else 'none writes what is not read yet'}"
    rows = [LaneRow(f"{side or 'buffer'} {at}", lanes[side, at]) for side, at in sorted(lanes)]
    return Part("Pinned host buffers", note, [Lanes(rows, end)])
