"""The chain of lazy arrays: when each step's tokens are a mere graph, and who is built on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ...trace import Trace
from ..state import Stay
from ..svg import char_width
from ..units import ms
from .axes import TimeAxis
from .future_slots import whole_numbers
from .marks import NothingToShow, named, number, short, word
from .page import EDGE, LEFT, SIGNS, Page, about_run, band, line, path, rect, svg_text
from .puml_stays import stays_to_puml
from .steps import forwards_of, opening
from .text_page import TextPage

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


# -- One lane a step's array of tokens, over time, as SVG; and what each is built on ---------------

PITCH, BOX = 22, 14
WORDS = {"promised": "a graph, no number yet", "stored": "computed, and not read by the host"}


def draw_arrays(page: Page, arrays: list[LazyArray], end: int) -> None:
    """The lanes, their boxes and the lines between them, over the time axis."""
    x, top = TimeAxis(end), page.top
    lanes = {array.step: top + at * PITCH for at, array in enumerate(arrays)}
    for array in arrays:
        y = lanes[array.step]
        page.add(band(LEFT, y + 2, EDGE - LEFT, PITCH - 4))
        page.add(svg_text(20, y + 15, str(array.step), "small"))
        page.add(svg_text(LEFT - 8, y + 15, array.mode, "small faint", "end"))
    page.top = top + len(arrays) * PITCH
    page.add(*x.grid(top, page.top))
    for array in arrays:
        page.add(*_box(array, x, lanes[array.step]))
    for array in arrays:
        page.add(*_source(array, x, lanes))
    page.add(*x.draw(page.top + 2))
    page.top += 28


def _box(array: LazyArray, x: TimeAxis, lane: float) -> list[str]:
    """What an array is while: first lazy, then computed."""
    y, drawn = lane + (PITCH - BOX) / 2, []
    if array.wasted:
        words = f"wasted: {short(', '.join(array.wasted), 30)}"
        drawn.append(_beside(x.x(array.built), x.x(array.read), lane + 15, words, array.step))
    about = f"tokens of step {array.step} ({' '.join(array.rids)})"
    for kind, start, end in array.phases:
        left, width = x.span(start, end)
        words = f"{about}: {WORDS[kind]}"
        drawn.append(rect(kind, left, y, width, BOX, words, step=array.step))
    return drawn


def _source(array: LazyArray, x: TimeAxis, lanes: dict[int, float]) -> list[str]:
    """A line from the array that this one is built on, at the moment at which it is."""
    at, to = x.x(array.bound), lanes[array.step] + PITCH / 2
    if array.source in lanes:
        y = lanes[array.source] + PITCH / 2
        about = f"step {array.step} is built on step {array.source}'s array, places {array.places}"
        sign = path("read", f"M{at:.1f} {y:.1f}{SIGNS['read']}", about, source=array.source,
                    step=array.step)  # fmt: skip
        return [line("link", at, y, at, to), sign]
    if not array.begins_anew:
        return []
    about = f"step {array.step} is built on tokens that the host has read"
    return [path("flag-head", f"M{at:.1f} {to:.1f}{SIGNS['flag-head']}", about, step=array.step)]


def _beside(left: float, right: float, y: float, words: str, step: int) -> str:
    """Words after a box, or before it where the page ends."""
    if right + 8 + len(words) * char_width(11) < EDGE:
        return svg_text(right + 6, y, words, "small", wasted=step)
    return svg_text(left - 10, y, words, "small", "end", wasted=step)


MOST_STEPS = 18
TITLE = "lazy_chain: what each step's array of tokens is built on"
NAMES = {
    "promised": "lazy: a graph, no number yet",
    "stored": "computed, and not read by the host",
    "read": "the next step is built on it",
    "flag-head": "built on tokens from the host: the chain begins anew",
}


def view(trace: Trace) -> str:
    """One lane a step's array of tokens.

    Raises:
        NothingToShow: no step ran, or no lazy chain was used.
    """
    part, shown = opening(trace, MOST_STEPS)
    arrays = need_arrays(part)
    page = Page(TITLE, about_run(trace, shown))
    note = "one a step, by number; from its launch until the host reads it"
    page.heading("Arrays of tokens", note)
    draw_arrays(page, arrays, part.end)
    page.legend(NAMES)
    page.notes(summary(arrays))
    return page.finish()


def text(trace: Trace) -> str:
    """The same lanes for a terminal, and a table of what each array is built on.

    Raises:
        NothingToShow: as ``view``.
    """
    part, shown = opening(trace, MOST_STEPS)
    arrays = need_arrays(part)
    page = TextPage(TITLE, about_run(trace, shown))
    page.heading("Arrays of tokens", "one a step; from its launch until the host reads it")
    page.lanes(rows_of(arrays), part.end)
    page.legend({kind: NAMES[kind] for kind in ("promised", "stored")})
    page.heading("Step by step", "places: which of the other array's tokens")
    page.table(
        ("step", "mode", "built on", "places", "built, ms", "computed, ms", "read, ms", "wasted"),
        [table_row(array) for array in arrays],
    )
    page.write("", summary(arrays))
    return page.finish()


def puml(trace: Trace) -> str:
    """The lanes as a PlantUML timing diagram.

    Raises:
        NothingToShow: as ``view``.
    """
    part, shown = opening(trace, MOST_STEPS)
    names = {kind: NAMES[kind] for kind in ("promised", "stored")}
    return stays_to_puml(f"{TITLE} ({shown})", rows_of(need_arrays(part)), part.end, names)


def need_arrays(trace: Trace) -> list[LazyArray]:
    """Every array.

    Raises:
        NothingToShow: there is none.
    """
    if not (arrays := arrays_of(trace)):
        raise NothingToShow("the trace has no lazy tokens mark: no lazy chain was used.")
    return arrays


def summary(arrays: list[LazyArray]) -> str:
    """How many steps are chained; the same in every form."""
    chained = sum(array.source > 0 for array in arrays)
    anew = sum(array.begins_anew for array in arrays)
    wasted = sum(len(array.wasted) for array in arrays)
    return (
        f"{chained} steps built on arrays without numbers, {anew} decode steps on tokens from the "
        f"host; {wasted} tokens wasted"
    )


def rows_of(arrays: list[LazyArray]) -> list[tuple[str, list[Stay]]]:
    """Each step's name, and what its array is when."""
    return [
        (
            f"step {array.step}" + (f" on {array.source}" if array.source else ""),
            [
                Stay("", kind, start, end, " ".join(array.rids) if kind == "promised" else "")
                for kind, start, end in array.phases
            ],
        )
        for array in arrays
    ]


def table_row(array: LazyArray) -> tuple[object, ...]:
    """A line about one array."""
    source = f"step {array.source}" if array.source else "the host"
    times = (ms(time) for time in (array.built, array.computed, array.read))
    places, wasted = short(array.places, 12), short(" ".join(array.wasted), 12)
    return array.step, array.mode, source, places, *times, wasted
