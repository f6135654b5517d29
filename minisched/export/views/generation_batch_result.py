"""The copy path: each step's inputs on their way to the device, and its tokens on theirs back."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from ...trace import Slice, Trace
from ...trace.events import is_copy, is_forward, is_host
from ..scene import LaneItem, LaneRow, Lanes, Part, Scene, TextTable, about_run
from ..units import ms
from .marks import NothingToShow, many, named, number
from .steps import forwards_of

# -- How each step's tokens got to the host, and what went the other way before, read from a trace

SIDES = ("prefill", "decode")  # two engines in one trace number their steps by themselves
ON_DEVICE = ("upload", "forward", "sample", "verify", "draft")  # before the copy


@dataclass
class CopyPath:
    """One step's way over the host: its inputs to the device, its tokens back."""

    side: str
    step: int
    mode: str
    rids: tuple[str, ...]
    buffer: int  # which pinned host buffer the tokens lie in; -1: the trace does not say
    prepare: Slice | None = None  # the host lays the inputs out, and ships them
    ops: list[Slice] = field(default_factory=list)  # on the device, in order of time
    copy: Slice | None = None  # device to host; copy_done is the event at its end
    waits: list[Slice] = field(default_factory=list)  # the host is blocked on this step
    process: Slice | None = None  # the host has the tokens

    @property
    def name(self) -> str:
        """The step, with its side."""
        return f"{self.side} {self.step}".strip()

    @property
    def upload(self) -> Slice | None:
        """Prompts on their way to the token pool."""
        return next((item for item in self.ops if item.name == "upload"), None)

    @property
    def sampled(self) -> Slice | None:
        """The last op before the copy: sampling, or what comes behind it with drafts."""
        ops = [item for item in self.ops if item.name not in ("upload", "forward")]
        return ops[-1] if ops else None

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
            by_step[side_of(item), item.step].append(item)
    found = [
        make_path(side, items, counts.get(side, 0))
        for (side, _), items in by_step.items()
        if any(item.name == "forward" for item in items)
    ]
    return sorted(found, key=lambda path: (path.ops[0].start, path.side, path.step))


def make_path(side: str, items: list[Slice], buffers: int) -> CopyPath:
    """One step's path, from its slices in order of time."""
    first = next(item for item in items if item.name == "forward")
    buffer = first.step % buffers if buffers else -1
    path = CopyPath(side, first.step, first.mode, first.rids, buffer)
    for item in items:
        if is_host(item.lane):
            add_host(path, item)
        elif is_copy(item.lane):
            path.copy = path.copy or (item if item.name == "copy" else None)
        elif item.name in ON_DEVICE and (is_forward(item.lane) or item.name == "upload"):
            path.ops.append(item)
    return path


def add_host(path: CopyPath, item: Slice) -> None:
    """What the host did for a step, or waited for."""
    if item.name == "wait":
        path.waits.append(item)
    elif item.name == "prepare":
        path.prepare = path.prepare or item
    elif item.name == "process":
        path.process = path.process or item


def side_of(item: Slice) -> str:
    """Which of two engines a slice belongs to; mostly there is only one."""
    side = item.lane.partition(" ")[0]
    return side if side in SIDES else ""


# -- Two lanes a step, device and host, and a lane for each host buffer ----------------------------

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


def scene(trace: Trace) -> Scene:
    """How each step's tokens get to the host, and who waits for whom.

    Raises:
        NothingToShow: no step ran, or nothing was copied to the host.
    """
    paths, end, shown = opening_paths(trace)
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
    uploads = sum(one.upload is not None for one in paths)
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
    name = f"step {one.name}"
    ready, waited = (f"{what} {ms(time)} ms" if time else "" for what, time in
                     (("ready", one.ready), ("waited", one.waited)))  # fmt: skip
    return [
        LaneRow("device", device, group=name, group_note=one.mode, tail=ready),
        LaneRow("host", host, group=name, group_note=one.mode, tail=waited),
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
                LaneItem("copy", one.copy.start, until, str(one.step), "", about,
                         {"step": one.name, "buffer": one.buffer})
            )  # fmt: skip
    return [LaneRow(f"{side or 'buffer'} {at}", lanes[side, at]) for side, at in sorted(lanes)]


def opening_paths(trace: Trace) -> tuple[list[CopyPath], int, str]:
    """The first steps' paths, whole; when the last of them ends; and how many of how many it is.

    Raises:
        NothingToShow: no step ran, or nothing was copied to the host.
    """
    forwards_of(trace)
    paths = paths_of(trace)
    if not any(one.copy for one in paths):
        raise NothingToShow("the trace has no copy slice, so no token went to the host.")
    shown = paths[:MOST_STEPS]
    cut = f"the first {len(shown)} of " if shown != paths else ""
    return shown, max(one.end for one in shown), f"{cut}{many(len(paths), 'step')}"


def buffer_words(paths: list[CopyPath]) -> str:
    """How steps share the host's buffers, and who writes what is not read yet: from their times."""
    lanes: dict[tuple[str, int], list[CopyPath]] = defaultdict(list)
    sides: dict[str, list[int]] = defaultdict(list)
    for one in paths:
        if one.copy:
            lanes[one.side, one.buffer].append(one)
            sides[one.side].append(one.buffer)
    early = sum(
        later.copy.start < (one.process.start if one.process else later.copy.start + 1)
        for mine in lanes.values() for one, later in pairwise(mine) if later.copy
    )  # fmt: skip
    takes_turns = all(a != b for buffers in sides.values() for a, b in pairwise(buffers))
    words = "steps take turns" if takes_turns else "some steps write where the last one did"
    if len(lanes) == len(sides):
        words = "one for all steps"
    if early:
        return f"{words}; {many(early, 'step')} wrote what was not read yet"
    return f"{words}, and none writes what is not read yet"


def table_row(one: CopyPath) -> tuple[object, ...]:
    """A line about one step."""
    ends = (item and ms(item.end) for item in (one.upload, one.sampled, one.copy))
    buffer = str(one.buffer) if one.buffer >= 0 else "-"
    taken = ms(one.process.start) if one.process else "-"
    return (one.name, one.mode, buffer, *(end or "-" for end in ends), ms(one.ready),
            ms(one.waited), taken)  # fmt: skip
