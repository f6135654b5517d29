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


# -- One scheduler's part of a run: of a pair (``pd``) each side by itself, under plain names ------

PAIR = ("prefill", "decode")  # in the order of their lanes


def sides(trace: Trace) -> tuple[str, ...]:
    """The sides of a pair of schedulers; one without a name where there is one scheduler."""
    return PAIR if any("side" in mark.attrs for mark in trace.marks) else ("",)


def one_side(trace: Trace, side: str) -> Trace:
    """What one side recorded, as if it were alone: no side's name in lanes, counters and marks.

    It ends when the whole run does.
    """
    if not side:
        return trace
    before = f"{side} "
    own = [replace(item, lane=item.lane.removeprefix(before))
           for item in trace.slices if item.lane.startswith(before)]  # fmt: skip
    end = Slice(0, "the other side", "end", trace.end, trace.end)
    counters = [replace(item, name=item.name.removeprefix(before))
                for item in trace.counters if item.name.startswith(before)]  # fmt: skip
    marks = [
        replace(mark, attrs={name: of for name, of in mark.attrs.items() if name != "side"})
        for mark in trace.marks
        if mark.attrs.get("side") == side
    ]
    return replace(trace, slices=(*own, end), edges=(), counters=tuple(counters),
                   marks=tuple(marks))  # fmt: skip


def shown_side(trace: Trace) -> Trace:
    """What a picture with room for one scheduler shows: of a pair the side that decodes."""
    return one_side(trace, sides(trace)[-1])


def side_words(trace: Trace) -> str:
    """Which side ``shown_side`` is, for the line under a title; empty where there is one."""
    return f"the {side} side" if (side := sides(trace)[-1]) else ""
