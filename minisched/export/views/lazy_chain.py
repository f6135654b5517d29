"""The chain of lazy arrays: when each step's tokens are a mere graph, and who is built on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ...trace import Trace
from ..scene import Data, LaneItem, LaneLink, LaneRow, Lanes, Part, Scene, TextTable, about_run
from ..units import ms
from .future_slots import whole_numbers
from .marks import NothingToShow, many, named, number, short, word
from .steps import forwards_of, opening

# -- Each step's array of tokens, and what it is built on, read from a trace -----------------------


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


# -- One lane a step's array of tokens, and what each is built on ----------------------------------

MOST_STEPS = 18
WORDS = {"promised": "a graph, no number yet", "stored": "computed, and not read by the host"}
LEGEND = {
    "promised": "lazy: a graph, no number yet",
    "stored": "computed, and not read by the host",
    "read": "the next step is built on it",
    "flag-head": "built on tokens from the host: the chain begins anew",
}
HEADS = ("step", "mode", "built on", "places", "built, ms", "computed, ms", "read, ms", "wasted")


def scene(trace: Trace) -> Scene:
    """One lane a step's array of tokens, from its launch until the host reads it.

    Raises:
        NothingToShow: no step ran, or no lazy chain was used.
    """
    part, shown = opening(trace, MOST_STEPS)
    if not (arrays := arrays_of(part)):
        raise NothingToShow("the trace has no lazy tokens mark: no lazy chain was used.")
    at = {array.step: number for number, array in enumerate(arrays)}
    rows, links = list[list[LaneItem]](), list[LaneLink]()
    for array in arrays:
        about = f"tokens of step {array.step} ({' '.join(array.rids)})"
        rows.append(
            [
                LaneItem(kind, start, end, " ".join(array.rids) if kind == "promised" else "",
                     about=f"{about}: {WORDS[kind]}", data={"step": array.step})
                for kind, start, end in array.phases
            ]
        )  # fmt: skip
        if array.source in at:
            about = f"step {array.step} is built on step {array.source}'s array"
            about += f", places {array.places}"
            data: Data = {"source": array.source, "step": array.step}
            rows[at[array.source]].append(
                LaneItem("read", array.bound, array.bound, about=about, data=data)
            )
            link = (at[array.source], array.bound), (at[array.step], array.bound)
            links.append(LaneLink("link", *link, about=about))
        elif array.begins_anew:
            about = f"step {array.step} is built on tokens that the host has read"
            data = {"step": array.step}
            rows[-1].append(LaneItem("flag-head", array.bound, array.bound, about=about, data=data))
    chained = sum(array.source > 0 for array in arrays)
    anew = sum(array.begins_anew for array in arrays)
    wasted = sum(len(array.wasted) for array in arrays)
    lanes = [
        LaneRow(
            f"step {array.step}" + f" on {array.source}" * (array.source > 0),
            spans,
            array.mode,
            tail=f"wasted: {short(', '.join(array.wasted), 30)}" if array.wasted else "",
        )
        for array, spans in zip(arrays, rows, strict=True)
    ]
    return Scene(
        f"lazy_chain: {chained} of {len(arrays)} steps are built on arrays without numbers",
        about_run(trace, shown),
        [
            Part("Arrays of tokens", "one a step; from its launch until the host reads it",
                 [Lanes(lanes, part.end, links=links)]),
            Part("Step by step", "places: which of the other array's tokens",
                 [TextTable(HEADS, [table_row(array) for array in arrays])]),
        ],
        LEGEND,
        [f"{many(anew, 'decode step')} on tokens from the host; {many(wasted, 'token')} wasted"],
    )  # fmt: skip


def table_row(array: LazyArray) -> tuple[object, ...]:
    """A line about one array."""
    source = f"step {array.source}" if array.source else "the host"
    times = (ms(time) for time in (array.built, array.computed, array.read))
    places, wasted = short(array.places, 12), short(" ".join(array.wasted), 12)
    return array.step, array.mode, source, places, *times, wasted
