"""Retraction: memory runs out, somebody gives theirs back, and pays by computing it again."""

from __future__ import annotations

from itertools import pairwise

from ...trace import Mark, Trace
from ..state import memory
from ..units import ms
from .axes import TimeAxis, ValueAxis, counter, most, stacked, step_area, step_line
from .lanes import NAMES, draw_lanes
from .marks import NothingToShow, many, named, number, short, word
from .page import SIGNS, Page, about_run, labels, line, path
from .page import svg_text as write
from .puml_stays import stays_to_puml
from .step_bars import LINE_NAMES, flags, step_rows
from .steps import StepWork, opening, requests_in, steps_of
from .text_page import TextPage

# -- Retractions as text for a terminal, and as PlantUML -------------------------------------------

TITLE = "retraction: who gives way when memory runs out"
MOST_LINES, MOST_LANES, MOST_BILLS = 150, 16, 24


def text(trace: Trace) -> str:
    """Memory and the new token ratio over time, what was computed for whom, and what it cost.

    Raises:
        NothingToShow: no step ran, or nobody was retracted.
    """
    part, shown = opening(trace, MOST_LINES)
    marks = retractions(part)
    page, steps = TextPage(TITLE, about_run(trace, shown), margin=20), steps_of(part)
    page.heading("Memory in KV slots, and the new token ratio in 1/1000")
    for title, name in (("held", "kv used"), ("cached", "kv cached"), ("ratio", "new token ratio")):
        if series := counter(part, name):
            page.curve(title, series, part.end)
    rows = step_rows(steps, lanes_of(requests_in(steps), marks))
    page.lanes([(short(rid, 12), boxes) for rid, boxes in rows], part.end)
    page.legend(LINE_NAMES)
    page.heading("Who gave way", many(len(marks), "retraction"))
    page.write(*bills(part, marks, steps, MOST_BILLS))
    return page.finish()


def puml(trace: Trace) -> str:
    """A lane a request, with what each step computed for it, and every retraction.

    Raises:
        NothingToShow: no step ran, or nobody was retracted.
    """
    part, _ = opening(trace, MOST_LINES)
    steps = steps_of(part)
    rids = lanes_of(requests_in(steps), retractions(part))
    return stays_to_puml(TITLE, step_rows(steps, rids), part.end, LINE_NAMES, flags(part, rids))


def retractions(trace: Trace) -> list[Mark]:
    """Everybody who was retracted.

    Raises:
        NothingToShow: nobody was.
    """
    if not (marks := named(trace, "retraction")):
        raise NothingToShow("the trace has no retraction mark: nobody had to give up memory.")
    return marks


def lanes_of(rids: list[str], marks: list[Mark]) -> list[str]:
    """Those who get a lane: whoever was retracted, and others for as long as there is room."""
    paid = {word(mark, "rid") for mark in marks}
    kept = sorted(rids, key=lambda rid: rid not in paid)[:MOST_LANES]
    return [rid for rid in rids if rid in kept]


def bills(trace: Trace, marks: list[Mark], steps: list[StepWork], most: int) -> list[str]:
    """What each retraction cost: a sentence.

    In KV slots, as the axis of memory is; in pages where the trace does not say how long one is.
    """
    pool, found = memory.pool(trace), []
    unit, size = ("KV slot", pool.page_size) if pool else ("page", 1)
    for mark in marks[:most]:
        rid = word(mark, "rid")
        words = (
            f"{rid} at {ms(mark.time)} ms ({word(mark, 'reason')}): gives back "
            f"{many(number(mark, 'pages') * size, unit)}, keeps "
            f"{many(number(mark, 'outputs'), 'token')} that its client has"
        )
        again = _again(rid, mark.time, steps)
        found.append(words + (f"; computes {many(again, 'token')} again." if again else "."))
    if len(marks) > most:
        found.append(f"… and {len(marks) - most} more.")
    return found


def course(ratio: list[tuple[int, int]]) -> str:
    """What the new token ratio does here, in words: read off its own values."""
    values = [value for _, value in ratio]
    falls = sum(after < before for before, after in pairwise(values))
    rises = sum(after > before for before, after in pairwise(values))
    if not (falls or rises):
        return f"in thousandths; it stays at {values[0]} here"
    words = [f"{what} {many(count, 'time')}" for what, count in
             (("falls", falls), ("rises", rises)) if count]  # fmt: skip
    return f"in thousandths; here it {' and '.join(words)}, between {min(values)} and {max(values)}"


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


__all__ = ["puml", "text", "view"]
MOST_STEPS, MOST_NOTES, HEIGHT = 150, 8, 90
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
    marks = retractions(part)
    page = Page(TITLE, about_run(trace, shown))
    x, steps = TimeAxis(part.end), steps_of(part)
    _draw_memory(page, part, x, marks)
    _draw_ratio(page, part, x, marks)
    page.heading("Requests", "a box is one step on the device; the line: it holds memory")
    draw_lanes(page, lanes_of(requests_in(steps), marks), x, steps, part)
    page.legend(LEGEND)
    page.notes(*bills(part, marks, steps, MOST_NOTES))
    return page.finish()


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
        page.add(write(at + 9, y.top - 9, words, "small warn") if words else "")
    page.top = y.bottom + 34


def _draw_ratio(page: Page, trace: Trace, x: TimeAxis, marks: list[Mark]) -> None:
    """The share of what is still to come that admission keeps memory back for."""
    ratio = counter(trace, "new token ratio")
    if not ratio:
        return
    page.heading("New token ratio", course(ratio))
    y = ValueAxis(max(1, most(ratio)), page.top + 20, page.top + 20 + HEIGHT / 2)
    page.add(*y.draw("1/1000"), *x.grid(y.top, y.bottom))
    page.add(step_line(ratio, x, y, "", "new token ratio"))
    page.add(*(line("flag", x.x(mark.time), y.top, x.x(mark.time), y.bottom) for mark in marks))
    page.top = y.bottom + 34
