"""The copy path: each step's inputs on their way to the device, and its tokens on theirs back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from ...trace import Slice, Trace
from ...trace.events import is_copy, is_forward, is_host
from ...trace.sides import PAIR
from ..scene import LaneItem, LaneRow, Lanes, Part, Scene, TextTable, about_run
from ..units import ms
from .marks import NothingToShow, many, named, number
from .steps import forwards_of

ON_DEVICE = ("upload", "forward", "sample", "verify", "draft")  # before the copy
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
HEADS = ("step", "mode", "buffer", "uploaded", "sampled", "copy_done", "ready for",
         "host waited", "taken")  # fmt: skip


@dataclass(frozen=True)
class CopyPath:
    """One step's way over the host: its inputs to the device, its tokens back.

    Two engines in one trace (``side``) number their steps by themselves.
    """

    side: str
    forward: Slice
    buffer: int  # which pinned host buffer the tokens lie in; -1: the trace does not say
    ops: list[Slice]  # on the device before the copy, in order of time
    waits: list[Slice]  # the host is blocked on this step
    prepare: Slice | None  # the host lays the inputs out, and ships them
    copy: Slice | None  # device to host; copy_done is the event at its end
    process: Slice | None  # the host has the tokens

    @property
    def name(self) -> str:
        """The step, with its side."""
        return f"{self.side} {self.forward.step}".strip()

    @property
    def end(self) -> int:
        """When the last of it had ended."""
        items = [*self.ops, *self.waits, self.copy, self.process]
        return max(item.end for item in items if item)

    @property
    def waited(self) -> int:
        """Nanoseconds for which the host was blocked on this step."""
        return sum(item.duration for item in self.waits)

    @property
    def ready(self) -> int:
        """Nanoseconds for which the tokens lay on the host before it took them."""
        if self.copy is None or self.process is None:
            return 0
        return max(0, self.process.start - self.copy.end)

    def op(self, *names: str) -> Slice | None:
        """The last op on the device of one of these names."""
        return next((item for item in reversed(self.ops) if item.name in names), None)


def paths_of(trace: Trace) -> list[CopyPath]:
    """The path of every step that ran, by the start of its forward pass.

    Raises:
        NothingToShow: a mark is not what it should be.
    """
    counts = {str(mark.attrs.get("side", "")): number(mark, "count")
              for mark in named(trace, "host buffers")}  # fmt: skip
    by_step: dict[tuple[str, int], list[Slice]] = defaultdict(list)
    for item in trace.slices:
        if item.step:
            side = item.lane.partition(" ")[0]
            by_step[side if side in PAIR else "", item.step].append(item)
    found = []
    for (side, step), items in by_step.items():
        if forward := first(items, "forward"):
            host = [item for item in items if is_host(item.lane)]
            copies = [item for item in items if is_copy(item.lane) and item not in host]
            ops = [item for item in items if item not in host and item not in copies
                   and item.name in ON_DEVICE
                   and (is_forward(item.lane) or item.name == "upload")]  # fmt: skip
            buffer = step % counts[side] if counts.get(side) else -1
            waits = [item for item in host if item.name == "wait"]
            found.append(CopyPath(side, forward, buffer, ops, waits, first(host, "prepare"),
                                  first(copies, "copy"), first(host, "process")))  # fmt: skip
    return sorted(found, key=lambda path: (path.ops[0].start, path.side, path.forward.step))


def first(items: Iterable[Slice], name: str) -> Slice | None:
    """The first of that name."""
    return next((item for item in items if item.name == name), None)


# -- Two lanes a step, device and host, and a lane for each host buffer ----------------------------


def scene(trace: Trace) -> Scene:
    """How each step's tokens get to the host, and who waits for whom.

    Raises:
        NothingToShow: no step ran, or nothing was copied to the host.
    """
    forwards_of(trace)
    paths = paths_of(trace)
    if not any(one.copy for one in paths):
        raise NothingToShow("the trace has no copy slice, so no token went to the host.")
    shown = f"the first {MOST_STEPS} of " * (len(paths) > MOST_STEPS) + many(len(paths), "step")
    paths = paths[:MOST_STEPS]
    end = max(one.end for one in paths)
    rows = [row for one in paths for row in rows_of(one)]
    parts = [Part("From step to host", "ready: tokens lie in the buffer; waited: the host does",
                  [Lanes(rows, end)])]  # fmt: skip
    if all(one.buffer >= 0 for one in paths):
        note = f"numbers: whose tokens; {buffer_words(paths)}"
        parts.append(Part("Pinned host buffers", note, [Lanes(buffers_of(paths, end), end)]))
    lines = TextTable(HEADS, [table_row(one) for one in paths])
    parts.append(Part("Step by step", "in ms", [lines]))
    waited = [one.waited for one in paths if one.waited]
    ready = [one.ready for one in paths if one.ready]
    uploads = sum(one.op("upload") is not None for one in paths)
    title = f"the host waits {ms(sum(waited))} ms for copies, and copies {ms(sum(ready))} ms for it"
    notes = [f"the host waited for {many(len(waited), 'step')}; tokens of "
             f"{many(len(ready), 'step')} lay ready; {many(uploads, 'upload')}"]  # fmt: skip
    return Scene(f"generation_batch_result: {title}", about_run(trace, shown), parts, LEGEND, notes)


def rows_of(one: CopyPath) -> list[LaneRow]:
    """A step's two lanes, with how long its tokens lay ready, and how long the host waited."""
    device = [item_of(item) for item in (*one.ops, one.copy) if item]
    if one.copy:
        done = one.copy.end
        if one.ready:
            about = f"tokens of step {one.name} lie in host buffer {one.buffer}: {ms(one.ready)} ms"
            device.append(LaneItem("ready", done, done + one.ready, about=about,
                                   data={"ready": one.name}))  # fmt: skip
        about = f"copy_done of step {one.name}, at {ms(done)} ms"
        device.append(LaneItem("read", done, done, about=about, data={"step": one.name}))
    host = [item_of(item) for item in (one.prepare, *one.waits, one.process) if item]
    name, mode = f"step {one.name}", one.forward.mode
    ready, waited = (f"{what} {ms(time)} ms" if time else "" for what, time in
                     (("ready", one.ready), ("waited", one.waited)))  # fmt: skip
    return [
        LaneRow("device", device, group=name, group_note=mode, tail=ready),
        LaneRow("host", host, group=name, group_note=mode, tail=waited),
    ]


def item_of(item: Slice) -> LaneItem:
    """One op or phase; a wait is told from others by how long it is, in nanoseconds."""
    about = f"step {item.step}, {item.name}: {ms(item.start)} to {ms(item.end)} ms"
    label = item.name if item.name == "forward" else ""
    return LaneItem(item.name, item.start, item.end, label, "", about,
                    {"step": item.step, "op": item.name, "ns": item.duration})  # fmt: skip


def buffers_of(paths: list[CopyPath], end: int) -> list[LaneRow]:
    """A lane for each pinned buffer: from when a copy begins to write it until it is read."""
    lanes: dict[tuple[str, int], list[LaneItem]] = {}
    for one in paths:
        if one.copy:
            until = max(one.copy.end, one.process.start if one.process else end)
            about = f"buffer {one.buffer}: tokens of step {one.name}, until {ms(until)} ms"
            lanes.setdefault((one.side, one.buffer), []).append(
                LaneItem("copy", one.copy.start, until, str(one.forward.step), "", about,
                         {"step": one.name, "buffer": one.buffer})
            )  # fmt: skip
    return [LaneRow(f"{side or 'buffer'} {at}", lanes[side, at]) for side, at in sorted(lanes)]


def buffer_words(paths: list[CopyPath]) -> str:
    """Whether a step writes a buffer that is not read yet: from the times of both."""
    lanes: dict[tuple[str, int], list[CopyPath]] = defaultdict(list)
    for one in paths:
        if one.copy:
            lanes[one.side, one.buffer].append(one)
    early = sum(
        bool(one.process and later.copy and later.copy.start < one.process.start)
        or one.process is None
        for mine in lanes.values()
        for one, later in pairwise(mine)
    )
    return f"{many(early, 'step')} wrote what was not read yet" if early else (
        "none writes what is not read yet"
    )  # fmt: skip


def table_row(one: CopyPath) -> tuple[object, ...]:
    """A line about one step."""
    sampled = one.op("sample", "verify", "draft")
    ends = (item and ms(item.end) for item in (one.op("upload"), sampled, one.copy))
    buffer = str(one.buffer) if one.buffer >= 0 else "-"
    taken = ms(one.process.start) if one.process else "-"
    return (one.name, one.forward.mode, buffer, *(end or "-" for end in ends), ms(one.ready),
            ms(one.waited), taken)  # fmt: skip
