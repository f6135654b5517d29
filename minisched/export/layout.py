"""One layout for every picture: which lanes there are, what lies on them, what points where.

The exporters differ only in how they draw a ``View``, so all of them tell the same story.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..checks.causes import idle_times
from ..checks.overlap import Interval
from ..trace import Slice, Trace
from ..trace.events import is_forward
from .lane import Lane, lane_of, lanes_of


@dataclass(frozen=True)
class Box:
    """A slice where it is shown. ``step`` is the slice's, or for a schedule the one it led to."""

    slice: Slice
    lane: Lane
    step: int

    @property
    def label(self) -> str:
        """Phase and step: ``forward 5``."""
        return f"{self.slice.name} {self.step}" if self.step else self.slice.name


@dataclass(frozen=True)
class Arrow:
    """An edge between two boxes, with the moments it leaves and arrives.

    On a wall clock an op may start before the launch that holds its call has returned; the arrow
    then leaves at the op's start, so that none points back in time.
    """

    src: Box
    dst: Box
    kind: str
    wrong: str = ""  # what is wrong with the token that it brings, in words

    @property
    def brings(self) -> str:
        """The edge's kind, by which an arrow is drawn; what leaves a KV transfer is no token."""
        if self.wrong:
            return "wrong"
        is_kv = self.kind == "token" and self.src.slice.name == "transfer"
        return "transfer" if is_kv else self.kind

    @property
    def is_level(self) -> bool:
        """Whether it stays on one lane."""
        return self.src.lane == self.dst.lane

    @property
    def end(self) -> int:
        """When the later slice started."""
        return self.dst.slice.start

    @property
    def start(self) -> int:
        """When the earlier slice ended, or ``end`` if that was before."""
        return min(self.src.slice.end, self.end)


@dataclass(frozen=True)
class WrongToken:
    """A step ran on a token that is not its request's newest one; ``box`` is what took it."""

    box: Box
    words: str  # got 5, needs 12


@dataclass(frozen=True)
class IdleStretch:
    """A stretch in which a device idles between two things it runs; ``lane`` is where it forwards.

    Of several devices each has its own. ``reason`` is that of the wait which it is charged to
    (``checks/causes.py``), if there is one.
    """

    lane: Lane
    start: int
    end: int
    reason: str = ""


@dataclass(frozen=True)
class View:
    """What a picture shows of a run: everything that touches the time from ``start`` to ``end``.

    Times are the run's own, in nanoseconds. A box may stick out on either side; ``clip`` says
    what of it is inside. A slice of length zero is a box too, though not one that can be seen.
    """

    trace: Trace
    start: int
    end: int
    first_step: int
    last_step: int
    lanes: tuple[Lane, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    bubbles: tuple[IdleStretch, ...]
    wrong_tokens: tuple[WrongToken, ...] = ()

    @property
    def duration(self) -> int:
        """Nanoseconds shown."""
        return self.end - self.start

    def clip(self, start: int, end: int) -> Interval:
        """The part of an interval that is shown, counted from the view's own start."""
        return max(start, self.start) - self.start, min(end, self.end) - self.start

    def on(self, lane: Lane) -> tuple[Box, ...]:
        """The boxes of one lane, in order of time."""
        return tuple(box for box in self.boxes if box.lane == lane)


def boxes_of(trace: Trace) -> tuple[Box, ...]:
    """Every slice on its lane. A schedule belongs to the step whose prepare follows it."""
    led_to: dict[int, int] = {}
    schedule: dict[str, int] = {}  # of each host, the last one that has led to nothing yet
    for item in trace.slices:
        if item.name == "schedule":
            schedule[item.lane] = item.id
        elif item.name == "prepare":
            led_to[schedule.pop(item.lane, 0)] = item.step
    return tuple(
        Box(item, lane_of(item), item.step or led_to.get(item.id, 0)) for item in trace.slices
    )


def make_view(
    trace: Trace, start: int = 0, end: int | None = None, first_step: int = 0, last_step: int = 0
) -> View:
    """What is to be seen of a run between two moments; the whole run by default."""
    end = trace.end if end is None else end
    boxes = {box.slice.id: box for box in boxes_of(trace) if _touches(box.slice, start, end)}
    wrong = wrong_words(trace)
    arrows = (
        Arrow(
            boxes[edge.src], boxes[edge.dst], edge.kind,
            wrong.get(edge.dst, {}).get(edge.src, "") if edge.kind == "token" else "",
        )
        for edge in trace.edges
        if edge.src in boxes and edge.dst in boxes
    )  # fmt: skip
    taken = (
        WrongToken(boxes[reader], "; ".join(dict.fromkeys(words.values())))
        for reader, words in wrong.items()
        if reader in boxes
    )
    return View(
        trace,
        start,
        end,
        first_step,
        last_step,
        lanes_of(trace),
        tuple(boxes.values()),
        tuple(arrows),
        tuple(item for item in bubbles_of(trace) if item.end > start and item.start < end),
        tuple(taken),
    )


def wrong_words(trace: Trace) -> dict[int, dict[int, str]]:
    """What is wrong with tokens, by the slice that took them and the one they came from (0: none).

    The requests are named where a step has several.
    """
    slices = {item.id: item for item in trace.slices}
    found: dict[int, dict[int, str]] = {}
    for mark in trace.marks:
        reader, source = (mark.attrs.get(name) for name in ("reader", "source"))
        if mark.name != "wrong token" or not isinstance(reader, int) or reader not in slices:
            continue
        got, needs = (mark.attrs.get(name) for name in ("got", "needs"))
        words = "an old token" if got is None else f"got {got}, needs {needs}"
        words = f"{mark.attrs['rid']}: {words}" if len(slices[reader].rids) > 1 else words
        said, at = found.setdefault(reader, {}), int(source or 0)
        said[at] = f"{said[at]}; {words}" if at in said else words
    return found


def bubbles_of(trace: Trace) -> Iterator[IdleStretch]:
    """Where each device idles."""
    lanes = {item.lane: lane_of(item) for item in trace.slices if is_forward(item.lane)}
    for idle in idle_times(trace):
        yield IdleStretch(lanes[idle.lane], idle.start, idle.end, idle.reason)


def _touches(item: Slice, start: int, end: int) -> bool:
    """Whether some of a slice lies between two moments; one of length zero may lie on the edge."""
    if item.duration == 0:
        return start <= item.start <= end
    return item.end > start and item.start < end
