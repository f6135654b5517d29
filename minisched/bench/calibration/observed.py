"""What a trace says of costs: each phase of the host and each op of the device, with its batch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from ...checks.overlap.overlap import Interval, union
from ...loops.run import Run
from ...trace import Slice
from ...trace.events import is_host
from .listener import Rows

GROWING = ("receive", "prepare", "advance step", "launch", "launch sample", "process", "fill",
           "postprocess")  # fmt: skip
ASLEEP = ("receive", "schedule")  # what comes behind a schedule that found nothing to do


@dataclass(frozen=True)
class Piece:
    """One measured duration; ``beside`` is how much of it the other side worked as well.

    ``rows`` are those of its step. All times in nanoseconds.
    """

    name: str
    duration: int
    beside: int
    rows: Rows

    @property
    def tokens(self) -> int:
        """New tokens of its step."""
        return sum(length for _, length in self.rows)

    def alone(self, lost: int) -> int:
        """What it would have taken alone, if of 1000 nanoseconds beside the other ``lost`` go."""
        return self.duration - self.beside * lost // 1000


class Observed:
    """One run, taken apart; ``work`` is the host work that was added to each step."""

    def __init__(self, run: Run, heard: Sequence[Rows], work: int = 0) -> None:
        self.loop, self.work = run.loop, work
        self.trace = run.trace
        self.host = self.trace.on("host")
        forwards = [item for item in self.trace.on("forward") if item.name == "forward"]
        self.rows = {item.step: rows for item, rows in zip(forwards, heard, strict=False)}
        self.ends = {(item.name, item.step): item for item in self.trace.slices
                     if not is_host(item.lane)}  # fmt: skip

    @cached_property
    def device_busy(self) -> tuple[Interval, ...]:
        """When any stream of the device worked, the copies too."""
        return union(item for item in self.trace.slices if not is_host(item.lane))

    @cached_property
    def host_busy(self) -> tuple[Interval, ...]:
        """When the host worked, between its phases too."""
        works = [item for item in self.trace.slices if is_host(item.lane) and item.name != "wait"]
        between = [Slice(0, "host", "", a.end, until, 0) for a, until in self.followed()]
        return union([*works, *between])

    def followed(self) -> Iterator[tuple[Slice, int]]:
        """Each phase, and until when the host worked behind it before it did something else."""
        for at, (phase, behind) in enumerate(pairwise(self.host)):
            if phase.name == "wait" or (phase.name == "schedule" and behind.name in ASLEEP):
                continue
            while behind.name == "wait" and not self.was_blocked(behind):
                at += 1
                if at + 1 >= len(self.host):
                    break
                behind = self.host[at + 1]
            yield phase, max(behind.start, phase.end)

    def was_blocked(self, wait: Slice) -> bool:
        """Whether what the host waited for was still to come."""
        copy = self.ends.get(("copy", wait.step))
        return copy is not None and copy.end > wait.start

    @cached_property
    def names(self) -> dict[int, str]:
        """What the cost model calls each phase, by the slice's id.

        The second launch of a step only samples; a prepare behind a launch only goes one step on.
        """
        names: dict[int, str] = {}
        launched: set[int] = set()
        before = ""
        for item in self.host:
            names[item.id] = item.name
            if item.name == "launch" and item.step in launched:
                names[item.id] = "launch sample"
            elif item.name == "launch":
                launched.add(item.step)
            elif item.name == "prepare" and before == "launch":
                names[item.id] = "advance step"
            before = item.name
        return names

    def phases(self) -> Iterator[Piece]:
        """Every phase of the host, also of its threads."""
        for item in self.trace.slices:
            if is_host(item.lane) and item.name != "wait":
                name = self.names.get(item.id, item.name)
                rows = self.rows.get(item.step, [(0, 1)] * len(item.rids))
                yield self.piece(name, item.start, self.seen_end(item), rows, self.device_busy)

    def seen_end(self, item: Slice) -> int:
        """The end of a phase; of a launch on an idle device, when what it launched began."""
        first = self.ends.get(("forward", item.step))
        if self.names.get(item.id) != "launch" or first is None:
            return item.end
        is_idle = not overlap(self.device_busy, item.start, first.start)
        return first.start if is_idle and item.start <= first.start < item.end else item.end

    def gaps(self) -> Iterator[Piece]:
        """What follows each phase and is no slice, by the phase's name in the trace."""
        for phase, until in self.followed():
            start = self.seen_end(phase)
            yield self.piece(phase.name, start, until, [], self.device_busy)

    def ops(self) -> Iterator[Piece]:
        """Every op of the device."""
        for (name, step), item in self.ends.items():
            yield self.piece(name, item.start, item.end, self.rows.get(step, []), self.host_busy)

    def delays(self) -> Iterator[Piece]:
        """From when an op could start until it did."""
        for (name, step), item in self.ends.items():
            before = {"sample": "forward", "copy": "sample"}.get(name)
            if before and (earlier := self.ends.get((before, step))):
                yield Piece(name, max(0, item.start - earlier.end), 0, [])

    def wakes(self) -> Iterator[int]:
        """From the end of what the host waited for until it went on."""
        for wait, behind in pairwise(self.host):
            copy = self.ends.get(("copy", wait.step))
            if wait.name == "wait" and behind.name != "wait" and copy and self.was_blocked(wait):
                yield max(0, behind.start - copy.end)

    def piece(self, name: str, start: int, end: int, rows: Rows, busy: Sequence[Interval]) -> Piece:
        """A duration with what of it the other side worked as well."""
        return Piece(name, end - start, overlap(busy, start, end), rows)


def overlap(busy: Sequence[Interval], start: int, end: int) -> int:
    """Nanoseconds of ``busy``, which is sorted, between two moments."""
    first = max(0, bisect_right(busy, (start, start)) - 1)
    total = 0
    for left, right in busy[first:]:
        if left >= end:
            break
        total += max(0, min(right, end) - max(left, start))
    return total
