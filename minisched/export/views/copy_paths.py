"""How each step's tokens got to the host, and what went the other way before, read from a trace."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ...trace import Slice, Trace
from ...trace.events import is_copy, is_forward, is_host
from .marks import named, number

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
