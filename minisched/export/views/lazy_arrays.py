"""Each step's array of tokens, and what it is built on, read from a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ...trace import Trace
from .future_slots import whole_numbers
from .marks import named, number, word
from .steps import forwards_of


@dataclass(frozen=True)
class LazyArray:
    """The tokens that one step samples; times in nanoseconds."""

    step: int
    mode: str
    rids: tuple[str, ...]
    source: int  # the step whose array it is built on; 0: all its inputs came from the host
    places: str  # which of that array's tokens, counted from 1
    bound: int  # when it was said what it is built on
    built: int  # when its graph was there
    computed: int  # when its numbers were
    read: int  # when the host had them
    wasted: tuple[str, ...] = ()  # whose token nobody wants: they had ended

    @property
    def begins_anew(self) -> bool:
        """Whether it is a decode step that had to wait for the host's tokens."""
        return self.mode == "decode" and not self.source

    @property
    def phases(self) -> list[tuple[str, int, int]]:
        """First lazy (promised), then computed (stored), as far as that takes time."""
        moments = (
            ("promised", self.built, self.computed),
            ("stored", self.computed, self.read),
        )
        return [(kind, start, end) for kind, start, end in moments if end > start]


def arrays_of(trace: Trace) -> list[LazyArray]:
    """Every step's array, in order, from the ``lazy tokens`` marks and the steps' slices.

    Raises:
        NothingToShow: no step ran, or a mark is not what it should be.
    """
    ran = {item.step: item for item in forwards_of(trace)}
    marks = [(number(mark, "step"), mark) for mark in named(trace, "lazy tokens")]
    times, wasted = ArrayTimes.of(trace), wasted_by_step(trace)
    return [
        LazyArray(
            step=step,
            mode=ran[step].mode,
            rids=ran[step].rids,
            source=number(mark, "source"),
            places=" ".join(map(str, whole_numbers(mark, "places"))),
            bound=mark.time,
            built=times.built(step, mark.time),
            computed=times.computed(step, mark.time),
            read=times.read(step, mark.time),
            wasted=tuple(wasted.get(step, ())),
        )
        for step, mark in marks
        if step in ran  # else it never ran, or is cut off
    ]


def wasted_by_step(trace: Trace) -> dict[int, list[str]]:
    """Whose row was computed for nobody, by step."""
    wasted: dict[int, list[str]] = {}
    for mark in named(trace, "wasted row"):
        wasted.setdefault(number(mark, "step"), []).append(word(mark, "rid"))
    return wasted


class ArrayTimes(NamedTuple):
    """When a step's array changed, by step; what a trace lacks comes at its end."""

    launches: dict[int, int]
    samples: dict[int, int]
    processes: dict[int, int]
    end: int

    @classmethod
    def of(cls, trace: Trace) -> ArrayTimes:
        """From the slices of a trace."""
        return cls(
            {item.step: item.end for item in trace.on("host") if item.name == "launch"},
            {item.step: item.end for item in trace.on("forward") if item.name == "sample"},
            {item.step: item.start for item in trace.on("host") if item.name == "process"},
            trace.end,
        )

    def built(self, step: int, bound: int) -> int:
        """When its graph was there; ``bound`` is when its inputs were."""
        return max(bound, self.launches.get(step, bound))

    def computed(self, step: int, bound: int) -> int:
        """When its numbers were there."""
        return max(self.built(step, bound), self.samples.get(step, self.end))

    def read(self, step: int, bound: int) -> int:
        """When the host had them."""
        return max(self.computed(step, bound), self.processes.get(step, self.end))
