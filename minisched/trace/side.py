"""Two schedulers in one trace: each side records under its own name."""

from __future__ import annotations

from dataclasses import replace

from .events import Mark, Slice, Trace, Value
from .program import NullProgram, Program
from .recorder import Recorder

SHARED = ("kv transfer", "value")  # lanes and resources that belong to no side


def named(side: str, name: str) -> str:
    """A lane or a resource of one side, as the whole run calls it; nothing stays nothing."""
    return name if name in SHARED or not name else f"{side} {name}"


class SideProgram(Program):
    """What one side's lanes do goes into the program of the whole run, under the side's names."""

    def __init__(self, whole: Program, side: str) -> None:
        super().__init__(whole.new_id)
        self.side = side
        self.acts = whole.acts

    def named(self, name: str) -> str:
        """With the side's name in front."""
        return named(self.side, name)


class SideRecorder(Recorder):
    """What one side records goes into the recorder of the whole run, at this side's time.

    Lanes and counters get the side's name in front (``prefill host``), marks a ``side``; what is
    touched (``decode kv``) too.
    """

    def __init__(self, whole: Recorder, side: str) -> None:
        super().__init__()
        self.whole = whole
        self.side = side
        self.is_on = whole.is_on
        kept = whole.program
        self.program = SideProgram(kept, side) if kept.is_on else NullProgram()

    def new_id(self) -> int:
        """An id that is the whole run's only one."""
        return self.whole.new_id()

    def slice(self, item: Slice) -> None:
        """Record a slice on this side's lane."""
        if item.lane == "host" and (line := self.line()):
            item.attrs["line"] = line
        self.whole.slice(replace(item, lane=named(self.side, item.lane)))

    def edge(self, kind: str, src: int, dst: int) -> None:
        """Record an edge; it may lead to the other side."""
        self.whole.edge(kind, src, dst)

    def counter(self, name: str, value: int) -> None:
        """Record this side's number."""
        self.whole.now = self.now
        self.whole.counter(f"{self.side} {name}", value)

    def mark(self, name: str, **attrs: Value) -> None:
        """Record a moment of this side."""
        attrs = {"side": self.side, **attrs}
        self.whole.keep(Mark(name, self.now(), attrs, self.program.op))

    def trace(self, loop: str, device: str, model: str, clock: str, dtype: str = "") -> Trace:
        """The whole run's."""
        return self.whole.trace(loop, device, model, clock, dtype)
