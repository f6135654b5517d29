"""The batch queue over time: which steps are in flight, which one the host waits for.

Its first part; the others are every loop's.
"""

from __future__ import annotations

from dataclasses import replace

from ...checks.overlap import forwards
from ...trace import Trace
from .. import state
from ..svg import char_width
from .axes import TimeAxis
from .forms import PictureForms
from .loop_parts import loop_parts
from .page import EDGE, LEFT, Page, about_run, band, rect, svg_text
from .puml_stays import stays_to_puml
from .schedule_policy import QueueStay, queue_stays, rows_of
from .steps import opening
from .text_page import TextPage

MOST_STEPS, PITCH, BOX = 14, 28, 20
TITLE = "the steps in flight"
SIGNS = {"admitted": "popped"}  # in a terminal, where a prompt looks like who is admitted
NAMES = {
    "queued": "in the queue: launched, and the host does other things",
    "admitted": "popped: the host blocks on it and processes it",
    "prompt": "the device computes prompts",
    "decode": "the device decodes",
}


def view(trace: Trace) -> str:
    """One lane a place in the queue, above what the device does.

    Raises:
        NothingToShow: no step ran.
    """
    part, shown = opening(trace, MOST_STEPS)
    stays = queue_stays(part)
    page = Page(f"{trace.loop}: {TITLE}", about_run(trace, shown))
    x = TimeAxis(part.end)
    page.heading("batch_queue", "labels: the step, and whose")
    places = 1 + max((stay.place for stay in stays), default=0)
    _lanes(page, x, [f"place {place + 1}" for place in range(places)])
    for stay in stays:
        _draw_stay(page, stay, x, page.top + stay.place * PITCH + 4)
    page.top += places * PITCH + 30
    page.heading("Device", "each step's forward pass and its sampling")
    _lanes(page, x, ["step"])
    samples = {item.step: item.end for item in part.slices if item.name == "sample"}
    for item in forwards(part):
        kind = "decode" if item.mode == "decode" else "prompt"
        end = samples.get(item.step, item.end)
        _box(page, x, page.top + 4, kind, item.start, end, item.step, item.rids)
    page.top += PITCH
    page.add(*x.draw(page.top + 2))
    page.top += 26
    page.legend(NAMES)
    return page.finish()


def text_form(trace: Trace) -> str:
    """The same lanes for a terminal."""
    part, shown = opening(trace, MOST_STEPS)
    page = TextPage(f"{trace.loop}: {TITLE}", about_run(trace, shown))
    page.heading("batch_queue and device", "labels: the step, and whose")
    page.lanes([(name, [signed(stay) for stay in row]) for name, row in rows_of(part)], part.end)
    page.legend({SIGNS.get(kind, kind): words for kind, words in NAMES.items()})
    return page.finish()


def signed(stay: state.Stay) -> state.Stay:
    """A stay of a kind that has a sign of its own beside the prompts'."""
    return replace(stay, kind=SIGNS.get(stay.kind, stay.kind))


def puml(trace: Trace) -> str:
    """The same lanes as a PlantUML timing diagram."""
    part, shown = opening(trace, MOST_STEPS)
    return stays_to_puml(f"{trace.loop}: {TITLE} ({shown})", rows_of(part), part.end, NAMES)


def _lanes(page: Page, x: TimeAxis, names: list[str]) -> None:
    """The background of some lanes, with their names."""
    for at, name in enumerate(names):
        page.add(band(LEFT, page.top + at * PITCH + 2, EDGE - LEFT, PITCH - 4))
        page.add(svg_text(20, page.top + at * PITCH + 19, name, "small"))
    page.add(*x.grid(page.top, page.top + len(names) * PITCH))


def _draw_stay(page: Page, stay: QueueStay, x: TimeAxis, y: float) -> None:
    """A step in flight: first nobody looks at it, then the host does."""
    _box(page, x, y, "queued", stay.put, stay.taken, stay.step, stay.rids)
    _box(page, x, y, "admitted", stay.taken, stay.processed, stay.step, stay.rids)


def _box(
    page: Page, x: TimeAxis, y: float, kind: str, start: int, end: int, step: int,
    rids: tuple[str, ...],
) -> None:  # fmt: skip
    """A box with as much of a label as fits."""
    if end <= start:
        return
    left, width = x.span(start, end)
    whose = ", ".join(rids)
    about = f"step {step} ({whose}): {NAMES[kind]}"
    page.add(rect(kind, left, y, width, BOX, about, step=step))
    for words in (f"{step} ({whose})", str(step)):
        if len(words) * char_width(11) + 4 <= width:
            page.add(svg_text(left + width / 2, y + 14, words, f"small in-{kind}", "middle"))
            return


PARTS = {"queue": PictureForms(view, text_form, puml), **loop_parts()}
