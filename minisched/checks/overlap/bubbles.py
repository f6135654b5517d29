"""Every bubble has a cause: what the op that ends it had been waiting for, moment by moment.

A device idles from the end of one op to the start of the next one on its lane. Going back from that
start along what came last (``critical_path.py``), the whole gap is taken up by slices of other
lanes; each piece of it is charged to one of them, and to a cause:

``host``         the host was at work: scheduling, preparing, launching, processing, telling clients
``token``        a token was on its way over the host: copied, and processed, before its step
``copy``         the host had blocked on a copy that brought the step no token
``mask``         the host built what a step may sample
``upload``       prompts were on their way to the device
``transfer``     KV was on its way from another device
``stage``        another device, or an earlier pipeline stage, had it first
``memory``       nobody could be admitted until memory, or a row, came back
``arrival``      nobody was there to be served
``message``      one of two schedulers slept until the other one said something
``latency``      launched, and begun less than 0.1 ms later than it could: the device's own delay
``unknown``      nothing recorded explains it

Where the loop said why an op had to wait (a mark ``wait``, see ``waits.py``: grammar, penalty,
prefill, speculation), the cause is that reason, whatever lay on the way.

A profiler's trace says when each kernel was launched, and on which streams a device works. There
the causes are ``host wait``, ``kernel wait`` and ``other``, as ``idle.py`` finds them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...trace import Trace
from ...trace.events import is_forward, is_host
from .bubble_causes import Causes
from .bubble_words import sentence
from .course import Course, course_of
from .critical_path import Segment, path_to
from .idle import HOST_WAIT, device_gaps
from .launches import launches
from .overlap import is_profiled
from .waits import Idle, idle_times


@dataclass(frozen=True)
class Bubble:
    """A piece of time in which a device idled, in nanoseconds, and why.

    ``phase`` is what ran meanwhile (``process``, ``copy``), on ``where``; empty: nothing did.
    ``waited_for`` are the ids of those slices, and ``op`` is the one that could not start before.
    ``step`` is the op's.
    """

    lane: str
    start: int
    end: int
    cause: str
    phase: str
    where: str
    step: int
    op: int
    waited_for: tuple[int, ...]
    sentence: str

    @property
    def duration(self) -> int:
        """Nanoseconds."""
        return self.end - self.start


def bubbles(trace: Trace, course: Course | None = None) -> list[Bubble]:
    """Every bubble of a run in order of time; together exactly ``bubble_ns`` of ``overlap.py``.

    ``course`` is that of the trace, if it is there already.
    """
    course = course or course_of(trace)
    if is_profiled(trace):
        return sorted(
            _of_profiled(trace, course), key=lambda item: (item.start, item.lane, item.end)
        )
    causes = Causes(trace, course)
    found = [bubble for idle in idle_times(trace) for bubble in _cut(course, causes, idle)]
    return sorted(found, key=lambda item: (item.start, item.lane, item.end))


def by_cause(items: Iterable[Bubble]) -> dict[str, int]:
    """Nanoseconds by cause, the most first."""
    sums: Counter[str] = Counter()
    for item in items:
        sums[item.cause] += item.duration
    return dict(sums.most_common())


def by_phase(items: Iterable[Bubble]) -> dict[tuple[str, str], int]:
    """Nanoseconds by cause and phase, the most first."""
    sums: Counter[tuple[str, str]] = Counter()
    for item in items:
        sums[item.cause, item.phase] += item.duration
    return dict(sums.most_common())


def _of_profiled(trace: Trace, course: Course) -> Iterator[Bubble]:
    """The bubbles of a profiler's trace; what the host did in a ``host wait`` is its phase."""
    known = launches(trace)
    for lane in sorted({item.lane for item in trace.slices if is_forward(item.lane)}):
        for gap in device_gaps(trace, lane, known):
            whole = [Segment(gap.start, gap.end, 0, 0)]
            path = whole
            if gap.cause == HOST_WAIT and gap.op.id in course.ran:
                path = list(path_to(course.ran, gap.op.id, gap.start)) or whole
            for segment in path:
                end, item = min(segment.end, gap.end), course.slices.get(segment.slice)
                item = item if item is not None and is_host(item.lane) else None
                if segment.start < end:
                    yield Bubble(
                        lane, segment.start, end, gap.cause,
                        phase=item.name if item else "",
                        where=item.lane if item else "",
                        step=gap.op.step,
                        op=gap.op.id,
                        waited_for=(item.id,) if item else (),
                        sentence=sentence(lane, end - segment.start, gap.cause, item, gap.op),
                    )  # fmt: skip


def _cut(course: Course, causes: Causes, idle: Idle) -> Iterator[Bubble]:
    """The pieces of one gap, the newest first."""
    op = course.first_at(idle.lane, idle.end)
    waiting = course.slices.get(op)
    nothing = [Segment(idle.start, idle.end, 0, 0)]  # known: its program waits in a circle
    path = path_to(course.ran, op, idle.start) if op in course.ran else nothing
    for start, end, cause, number in causes.of(idle, op, path):
        item = course.slices.get(number)
        if start < end:
            yield Bubble(
                idle.lane, start, end, cause,
                phase=item.name if item else "",
                where=item.lane if item else "",
                step=waiting.step if waiting else 0,
                op=op,
                waited_for=(number,) if number else (),
                sentence=sentence(idle.lane, end - start, cause, item, waiting),
            )  # fmt: skip
