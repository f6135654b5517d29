"""When something happened to memory, as a reader would say it: which step, which phase, what time.

Marks have a time and no step. A step's memory is reserved before the mark ``commit`` of that step,
and what its result ends is ended before its mark ``tokens``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass

from ...trace import Mark, Slice, Trace
from ...trace.events import is_host

MILLISECOND = 1_000_000


@dataclass(frozen=True)
class Moment:
    """A moment of a run. ``step`` 0: of none; ``phase`` is empty where the trace does not say.

    ``after`` is the newest step that was committed before. ``slices`` are the slices in which it
    happened, as well as is known.
    """

    time: int  # nanoseconds
    step: int = 0
    after: int = 0
    phase: str = ""
    slices: tuple[int, ...] = ()

    def __str__(self) -> str:
        time = f"{self.time / MILLISECOND:.6g} ms"
        about = f"{self.phase}, {time}" if self.phase else time
        if self.step:
            return f"in step {self.step} ({about})"
        return f"after step {self.after} was committed ({about})" if self.after else f"at {time}"


class Clock:
    """Tells the moment of each mark of one scheduler's."""

    def __init__(self, trace: Trace, side: str = "") -> None:
        self.before = f"{side} " if side else ""
        self.is_virtual = trace.clock == "virtual"
        self.by_step: dict[int, dict[str, Slice]] = {}
        self.by_id: dict[int, Slice] = {}
        self.by_end: defaultdict[int, list[Slice]] = defaultdict(list)
        for item in trace.slices:
            if is_host(item.lane) and item.lane.startswith(self.before):
                self.by_id[item.id] = item
                self.by_end[item.end].append(item)
                self.by_step.setdefault(item.step, {}).setdefault(item.name, item)
        self.ends = sorted(self.by_end)

    def now(self, mark: Mark, step: int = 0, after: int = 0) -> Moment:
        """The moment of a mark, which belongs to ``step`` if to any, and comes ``after`` one."""
        known = self.by_id.get(mark.during)
        phases = [known] if known else self._phases(mark.time)
        names = {item.name for item in phases}
        phase = names.pop() if len(names) == 1 else ""
        ids = tuple(item.id for item in phases) if phase and len(phases) == 1 else ()
        if ids and not step:
            step = phases[0].step
        slices = ids or self.slices_of(step, "prepare", "process")
        return Moment(mark.time, step, after, phase, slices)

    def slices_of(self, step: int, *phases: str) -> tuple[int, ...]:
        """The first of these phases of a step on the host, by slice id, if there is one."""
        of_step = self.by_step.get(step, {}) if step else {}
        return tuple(of_step[name].id for name in phases if name in of_step)[:1]

    def _phases(self, time: int) -> list[Slice]:
        """What the host was doing, in a file that does not say it: guessed from the time.

        On a virtual clock it is what became true just then.
        """
        if self.is_virtual:
            ended = self.by_end.get(time, [])
            return [item for item in ended if item.duration] or ended
        at = bisect_left(self.ends, time)
        ahead = self.by_end[self.ends[at]] if at < len(self.ends) else []
        return [item for item in ahead if item.start <= time]
