"""The chain of lazy arrays: when each step's tokens are a mere graph, and who is built on them."""

from __future__ import annotations

from ...trace import Trace
from ..state import Stay
from ..units import ms
from .lazy_arrays import LazyArray, arrays_of
from .lazy_lanes import draw_arrays
from .marks import NothingToShow
from .page import Page, about_run
from .puml_stays import stays_to_puml
from .steps import opening
from .text_page import TextPage
from .wording import short

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
