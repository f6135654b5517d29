"""Two schedulers in one trace: each side records under its own name (``loops/pd.py``)."""

from __future__ import annotations

from dataclasses import replace

from .events import Mark, Slice, Trace, Value
from .recorder import Program, Recorder, named


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
        self.program = Program(whole.new_id, whole.program.is_on, side, whole.program)

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
