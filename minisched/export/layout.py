"""The part of a run that a picture shows: lanes, slices, and the edges between them.

Every exporter draws a ``View``, so all pictures of a run agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..checks.causes import Bubble, idle_times
from ..checks.history import kept
from ..checks.overlap import Interval, forwards
from ..trace import Slice, Trace
from ..trace.events import is_copy, is_forward, is_host, lane_words
from ..trace.sides import PAIR
from .views.steps import forwards_of

# -- The lanes of a picture: their names and their order -------------------------------------------


def lane_name(lane: str) -> str:
    """Return ``Host``, ``Forward stream``, ``Decode copy``, ``KV transfer``."""
    return lane_words(lane).capitalize().replace("Kv", "KV")


def lane_side(lane: str) -> str:
    """Return ``host`` or ``device``."""
    return "host" if is_host(lane) else "device"


def lane_title(lane: str) -> str:
    """Return a lane's name and side, which identify it."""
    return f"{lane_name(lane)} ({lane_side(lane)})"


def in_order(lanes: Iterable[str]) -> tuple[str, ...]:
    """Return lanes from top to bottom: hosts, then devices along a token's way.

    The lanes of each of two schedulers stand together, with the transfer between them. Otherwise
    arrows of one scheduler would cross all lanes of the other.
    """
    parts = (PAIR[0], "kv", PAIR[1])

    def rank(lane: str) -> tuple[object, ...]:
        """Return the sort key of a lane."""
        part = lane.partition(" ")[0]
        on_device = (not is_forward(lane), not is_copy(lane)) if not is_host(lane) else ()
        return parts.index(part) if part in parts else 0, on_device, lane != "host", lane

    return tuple(sorted(set(lanes), key=rank))


# -- A part of a run -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrow:
    """An edge between two slices, with the times of its start and end.

    On a wall clock an op may start before the launch that holds its call has returned. The arrow
    then starts with the op, so no arrow points back in time.
    """

    src: Slice
    dst: Slice
    kind: str
    wrong: str = ""  # the error of the token that it carries, in words

    @property
    def brings(self) -> str:
        """Return the edge's kind for the look of the arrow; a KV transfer carries no token."""
        if self.wrong:
            return "wrong"
        is_kv = self.kind == "token" and self.src.name == "transfer"
        return "transfer" if is_kv else self.kind

    @property
    def end(self) -> int:
        """Return the time when the later slice started."""
        return self.dst.start

    @property
    def start(self) -> int:
        """Return the time when the earlier slice ended, or ``end`` if that is earlier."""
        return min(self.src.end, self.end)

    @property
    def words(self) -> str:
        """Return ``launch 5``, ``tokens of 5``, ``wrong token for 6``, ``KV for 6``."""
        if self.src.name == "send":
            return f"send {self.dst.step}"
        if self.brings == "result":
            return f"tokens of {self.src.step}"
        kinds = {"token": "token for", "transfer": "KV for", "wrong": "wrong token for"}
        return f"{kinds.get(self.brings, self.brings)} {self.dst.step}"

    @property
    def stays(self) -> bool:
        """Return whether its token stays on the device."""
        return self.src.name != "copy" and not is_host(self.src.lane)

    @property
    def meaning(self) -> str:
        """Return the whole sentence; of a token with its way."""
        if self.kind != "token" or self.brings == "transfer":
            return self.words
        words = f"{self.words} {'stays on the device' if self.stays else 'goes over the host'}"
        return f"{words}: {self.wrong}" if self.wrong else words


@dataclass(frozen=True)
class View:
    """All events of a run that touch the time from ``start`` to ``end``.

    Times are the run's own, in nanoseconds. A slice may extend past either side; ``clip`` returns
    the part inside. Slices of length zero are included, although they are invisible. ``bubbles``
    have a cause where the device waited for the input of a step.
    """

    trace: Trace
    start: int
    end: int
    first_step: int
    last_step: int
    lanes: tuple[str, ...]
    slices: tuple[Slice, ...]
    arrows: tuple[Arrow, ...]
    bubbles: tuple[Bubble, ...]
    zero: int | None = None  # the zero of the picture's times, if it is not ``start``

    @property
    def duration(self) -> int:
        """Return the nanoseconds shown."""
        return self.end - self.start

    def clip(self, start: int, end: int) -> Interval:
        """Return the visible part of an interval, in the picture's times."""
        zero = self.start if self.zero is None else self.zero
        return max(start, self.start) - zero, min(end, self.end) - zero

    def on(self, lane: str) -> tuple[Slice, ...]:
        """Return the slices of one lane, by time."""
        return tuple(item for item in self.slices if item.lane == lane)


@kept
def slices_of(trace: Trace) -> tuple[Slice, ...]:
    """Return every slice; a schedule gets the step of the next prepare on its host."""
    led_to: dict[int, int] = {}
    schedule: dict[str, int] = {}  # of each host, the last one without a step yet
    for item in trace.slices:
        if item.name == "schedule":
            schedule[item.lane] = item.id
        elif item.name == "prepare":
            led_to[schedule.pop(item.lane, 0)] = item.step
    return tuple(
        replace(item, step=led_to[item.id]) if item.id in led_to and not item.step else item
        for item in trace.slices
    )


def make_view(
    trace: Trace, start: int = 0, end: int | None = None, first_step: int = 0, last_step: int = 0
) -> View:
    """Return the view between two times; the whole run by default."""
    end = trace.end if end is None else end
    slices = tuple(item for item in slices_of(trace) if _touches(item, start, end))
    idle = tuple(item for item in idle_times(trace) if item.end > start and item.start < end)
    lanes = in_order([*(item.lane for item in slices), *(item.lane for item in idle)])
    arrows = arrows_between(trace, slices)
    return View(trace, start, end, first_step, last_step, lanes, slices, arrows, idle)


def arrows_between(trace: Trace, slices: Iterable[Slice]) -> tuple[Arrow, ...]:
    """Return the edges that begin and end at one of these slices."""
    by_id, wrong = {item.id: item for item in slices}, wrong_words(trace)
    return tuple(
        Arrow(
            by_id[edge.src], by_id[edge.dst], edge.kind,
            wrong.get(edge.dst, {}).get(edge.src, "") if edge.kind == "token" else "",
        )
        for edge in trace.edges
        if edge.src in by_id and edge.dst in by_id
    )  # fmt: skip


def wrong_words(trace: Trace) -> dict[int, dict[int, str]]:
    """Return the errors of tokens, by the slice that read them and their source (0: none).

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
        errors, at = found.setdefault(reader, {}), int(source or 0)
        errors[at] = f"{errors[at]}; {words}" if at in errors else words
    return found


def _touches(item: Slice, start: int, end: int) -> bool:
    """Return whether a part of a slice lies between two times; one of length zero also at both."""
    if item.duration == 0:
        return start <= item.start <= end
    return item.end > start and item.start < end


# -- A run is too long for a picture: choose a few settled steps -----------------------------------

DECODES = ("decode", "target verify")  # modes in which every row yields one token or more
MOST_PERIOD = 8  # batches that take turns; a pipeline has as many as stages
MOST_STEPS = 40  # of a whole run


def settled(trace: Trace, rids: tuple[str, ...] | None = None, period: int = 1) -> list[Slice]:
    """Return the forward slices of the longest settled stretch of decode steps.

    Settled means that every ``period``-th step has the same requests: ``rids``, if given.
    """
    decodes = [item for item in forwards(trace)
               if item.mode in DECODES and rids in (None, item.rids)]  # fmt: skip
    best, start = list[Slice](), 0
    for at, item in enumerate(decodes):
        if at and item.step != decodes[at - 1].step + 1:
            start = at
        elif at - start >= period and decodes[at - period].rids != item.rids:
            start = at - period + 1
        if at + 1 - start > len(best):
            best = decodes[start : at + 1]
    return best


def in_turns(trace: Trace) -> list[int]:
    """Return the longest stretch of decode steps in which the same batches alternate."""
    found = (settled(trace, period=period) for period in range(1, MOST_PERIOD + 1))
    often = [items for period, items in enumerate(found, 1) if len(items) >= 2 * period]
    return [item.step for item in max(often, key=len, default=[])]


def inner(steps: list[int], count: int) -> list[int]:
    """Return the indexes where ``count`` steps may begin, with one step before and one after them.

    The view ends with the start of the step after them.
    """
    return steps[1 : max(1, len(steps) - count)]


def middle(steps: list[int]) -> int:
    """Return the middle step, or 0 if there are none."""
    return steps[(len(steps) - 1) // 2] if steps else 0


def view_of_steps(trace: Trace, first_step: int, last_step: int) -> View:
    """Return the view from the device's first op of one step to its first op after another.

    In a settled stretch that is a whole number of periods. A view of the first step begins where
    the run does; one of the last step ends where the run does.

    Raises:
        ValueError: the run has no such steps.
    """
    starts = {item.step: item.start for item in forwards(trace)}
    if first_step > last_step or first_step not in starts or last_step not in starts:
        known = f"steps {min(starts)} to {max(starts)}" if starts else "no steps"
        raise ValueError(f"steps {first_step} to {last_step} cannot be shown: the run has {known}.")
    before = [start for step, start in starts.items() if step < first_step]
    after = [start for step, start in starts.items() if step > last_step]
    return make_view(
        trace,
        starts[first_step] if before else 0,
        min(after) if after else trace.end,
        first_step,
        last_step,
    )


def shown(trace: Trace, count: int) -> View:
    """Return the view of a loop's pictures: ``count`` settled steps; 0: the whole run.

    Batches that alternate are settled, too. A pair of schedulers shows the first steps of the
    decode side, because the transfer to it is the point. A whole run shows its first
    ``MOST_STEPS``.

    Raises:
        NothingToShow: no step ran.
    """
    steps = sorted(item.step for item in forwards_of(trace))
    if not count or len(steps) <= count:
        return view_of_steps(trace, steps[0], steps[:MOST_STEPS][-1])
    if all(item.lane != "host" for item in trace.slices):
        return view_of_steps(trace, steps[0], steps[count - 1])
    settled_steps = [item.step for item in settled(trace)]
    begins = inner(settled_steps, count) or inner(in_turns(trace), count)
    starts = {item.step: item.start for item in forwards(trace)}
    idle = {item.end for item in idle_times(trace)}  # a burst begins after it
    begins = [step for step in begins if starts[step] in idle] or begins
    first = middle(begins or steps[: len(steps) - count + 1])
    return view_of_steps(trace, first, steps[steps.index(first) + count - 1])


def around_a_gap(trace: Trace, count: int) -> View:
    """Return the view of ``count`` decode steps with an idle time after the first of them.

    It is the settled view where no device idles between two decode steps.
    """
    steps = [item for item in forwards(trace) if item.mode in DECODES]
    idle = {item.start for item in idle_times(trace)}
    ends = {item.step: item.end for item in trace.slices if item.name == "sample"}
    known = {item.step for item in steps}
    for item in steps:
        if ends.get(item.step) in idle and item.step + count - 1 in known:
            return view_of_steps(trace, item.step, item.step + count - 1)
    return shown(trace, count)


def steady_views(traces: Sequence[Trace], count: int) -> list[View]:
    """Return the same number of settled steps of each run.

    The views are whole runs for 0, or if one run has too few settled steps. If possible, all runs
    show the same steps with the same requests: equal work.
    """
    rids = settled(traces[0])[0].rids if settled(traces[0]) else None
    steps = [[item.step for item in settled(trace, rids)] for trace in traces]
    common = sorted(set.intersection(*(set(inner(some, count)) for some in steps)))
    firsts = [middle(common)] * len(traces)
    if not common:
        firsts = [middle(inner([s.step for s in settled(trace)], count)) for trace in traces]
    if not all(firsts) or not count:
        return [make_view(trace) for trace in traces]
    return [view_of_steps(trace, first, first + count - 1)
            for trace, first in zip(traces, firsts, strict=True)]  # fmt: skip
