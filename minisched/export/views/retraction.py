"""Retraction: memory runs out, somebody gives theirs back, and pays by computing it again."""

from __future__ import annotations

from ...trace import Mark, Trace
from ..units import ms
from .axes import TimeAxis, ValueAxis
from .lanes import NAMES, draw_lanes
from .marks import NothingToShow, named, number, word
from .page import SIGNS, Page, about_run, labels
from .series import counter, most, stacked, step_area, step_line
from .shapes import line, path, text
from .steps import StepWork, opening, requests_in, steps_of
from .wording import many

MOST_STEPS, MOST_LANES, MOST_NOTES, HEIGHT = 150, 16, 8, 90
LEGEND = {
    "stored": "KV slots held by requests",
    "evictable": "cached KV slots that can be evicted",
    **NAMES,
}


def view(trace: Trace) -> str:
    """Memory over time with every retraction, the new token ratio, and who paid what.

    Raises:
        NothingToShow: no step ran, or nobody was retracted.
    """
    part, shown = opening(trace, MOST_STEPS)
    marks = named(part, "retraction")
    if not marks:
        raise NothingToShow("the trace has no retraction mark: nobody had to give up memory.")
    page = Page("retraction: who gives way when memory runs out", about_run(trace, shown))
    x, steps = TimeAxis(part.end), steps_of(part)
    _draw_memory(page, part, x, marks)
    _draw_ratio(page, part, x, marks)
    page.heading("Requests", "a box is one step on the device; the line: it holds memory")
    draw_lanes(page, _lanes(requests_in(steps), marks), x, steps, part)
    page.legend(LEGEND)
    page.notes(*_bills(marks, steps))
    return page.finish()


def _lanes(rids: list[str], marks: list[Mark]) -> list[str]:
    """Those who get a lane: whoever was retracted, and others for as long as there is room."""
    paid = {word(mark, "rid") for mark in marks}
    kept = sorted(rids, key=lambda rid: rid not in paid)[:MOST_LANES]
    return [rid for rid in rids if rid in kept]


def _draw_memory(page: Page, trace: Trace, x: TimeAxis, marks: list[Mark]) -> None:
    used, cached = counter(trace, "kv used"), counter(trace, "kv cached")
    both = stacked(used, cached)
    page.heading("Memory", "the flags: a request is retracted")
    y = ValueAxis(max(1, most(both)), page.top + 26, page.top + 26 + HEIGHT)
    page.add(*y.draw("KV slots"), *x.grid(y.top, y.bottom))
    if most(cached):
        page.add(step_area(both, x, y, "evictable", "held or cached"))
    page.add(step_area(used, x, y, "stored", "held by requests"))
    flags = [(x.x(mark.time), word(mark, "rid")) for mark in marks]
    for (at, rid), words in zip(flags, labels(flags), strict=True):
        page.add(line("flag", at, y.top - 12, at, y.bottom))
        page.add(path("flag-head", f"M{at:.1f} {y.top - 12:.1f}{SIGNS['flag-head']}", rid, rid=rid))
        page.add(text(at + 9, y.top - 9, words, "small warn") if words else "")
    page.top = y.bottom + 34


def _draw_ratio(page: Page, trace: Trace, x: TimeAxis, marks: list[Mark]) -> None:
    """The share of what is still to come that admission keeps memory back for."""
    ratio = counter(trace, "new token ratio")
    if not ratio:
        return
    page.heading("New token ratio", "it decays with each decode step; a retraction raises it")
    y = ValueAxis(max(1, most(ratio)), page.top + 20, page.top + 20 + HEIGHT / 2)
    page.add(*y.draw("1/1000"), *x.grid(y.top, y.bottom))
    page.add(step_line(ratio, x, y, "", "new token ratio"))
    page.add(*(line("flag", x.x(mark.time), y.top, x.x(mark.time), y.bottom) for mark in marks))
    page.top = y.bottom + 34


def _bills(marks: list[Mark], steps: list[StepWork]) -> list[str]:
    """What each retraction cost: a sentence."""
    bills = []
    for mark in marks[:MOST_NOTES]:
        rid = word(mark, "rid")
        words = (
            f"{rid} at {ms(mark.time)} ms ({word(mark, 'reason')}): gives back "
            f"{many(number(mark, 'pages'), 'page')}, keeps "
            f"{many(number(mark, 'outputs'), 'token')} that its client has"
        )
        again = _again(rid, mark.time, steps)
        bills.append(words + (f"; computes {many(again, 'token')} again." if again else "."))
    if len(marks) > MOST_NOTES:
        bills.append(f"… and {len(marks) - MOST_NOTES} more.")
    return bills


def _again(rid: str, since: int, steps: list[StepWork]) -> int:
    """Prompt tokens that a request computes after its retraction, before it decodes again."""
    tokens = 0
    for step in steps:
        for part in step.parts if step.start > since else ():
            if part.rid == rid and part.kind == "again":
                tokens += part.tokens
            elif part.rid == rid and part.kind == "decode" and tokens:
                return tokens
    return tokens
