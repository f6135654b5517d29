"""The critical path: from the end of a run back to its beginning, always along what came last.

Whatever lies on it took its time out of the makespan; whatever does not, was hidden behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ...trace import Trace
from .course import Course, course_of
from .replay import Ran


class Segment(NamedTuple):
    """A part of a path, in nanoseconds; ``slice`` 0: nothing that was recorded ran then.

    ``before`` is the slice that started at its end, and had waited for it; 0 at the very end.
    """

    start: int
    end: int
    slice: int
    before: int

    @property
    def duration(self) -> int:
        """Nanoseconds."""
        return self.end - self.start


def critical_path(trace: Trace, course: Course | None = None) -> list[Segment]:
    """The path of a whole run, the earliest segment first; together exactly its makespan.

    ``course`` is that of the trace, if it is there already.
    """
    course = course or course_of(trace)
    return list(reversed(list(whole_path(course, course.ran))))


def whole_path(course: Course, ran: Mapping[int, Ran]) -> Iterator[Segment]:
    """The path that ends with the run, the newest segment first."""
    last = max(ran, key=lambda number: (ran[number].end, ran[number].start), default=0)
    end = ran[last].end if last else 0
    if end < course.end:
        yield Segment(end, course.end, 0, 0)  # a thread that was blocked to the end
    if last:
        yield Segment(ran[last].start, end, last, 0)
        yield from path_to(ran, last)


def path_to(ran: Mapping[int, Ran], number: int, since: int = 0) -> Iterator[Segment]:
    """What a slice waited for, back to the moment ``since``, the newest segment first.

    The segments make up the whole time from there to its start. One may have no length: what
    takes no time can hold up others too.
    """
    at = ran[number].start
    while at > since:
        now = ran[number]
        ready = max(now.ready, since)
        if ready < at:
            yield Segment(ready, at, 0, number)
            at = ready
        if not now.after:
            if at > since:
                yield Segment(since, at, 0, number)
            return
        start = max(since, min(at, ran[now.after].start))
        yield Segment(start, at, now.after, number)
        at, number = start, now.after


def shares(trace: Trace, path: list[Segment]) -> dict[tuple[str, str], int]:
    """Nanoseconds of a path by lane and name, the longest first; ``("", "")``: nothing ran."""
    names = {item.id: (item.lane, item.name) for item in trace.slices}
    sums: Counter[tuple[str, str]] = Counter()
    for segment in path:
        sums[names.get(segment.slice, ("", ""))] += segment.duration
    return {name: ns for name, ns in sums.most_common() if ns}
