"""The running set over time: who joins, who leaves and why, who gives way, who is a zombie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ...trace import Mark, Trace
from ...trace.sides import side_words
from ..state import Stay, up_to
from ..state.memory import WORDS, ZOMBIE
from ..state.requests import RunningChange, changes_of, request_stays
from ..svg import char_width
from ..units import ms
from .axes import TimeAxis, ValueAxis, most, stacked, step_area, step_line
from .lanes import NAMES as STEP_NAMES
from .marks import named, short, word
from .page import SIGNS, Page, about_run, band, line, path, rect, svg_text
from .puml_stays import stays_to_puml
from .steps import StepWork, opening, requests_in, steps_of
from .text_page import TextPage

# -- How many things were in a state over time: stays, counted -------------------------------------


def count(stays: Iterable[Stay], *kinds: str) -> list[tuple[int, int]]:
    """(time, how many there are from then on) of these kinds, at every change."""
    delta: Counter[int] = Counter()
    for stay in stays:
        if stay.kind in kinds:
            delta[stay.start] += 1
            delta[stay.end] -= 1
    now, series = 0, []
    for time in sorted(delta):
        if delta[time]:
            now += delta[time]
            series.append((time, now))
    return series


# -- What happened to the running set, read for every form in which it is shown --------------------

MOST_STEPS, MOST_LANES = 100, 24
TITLE = "decode: the set of running requests over time"


def requests_of(stays: Sequence[Stay], steps: Sequence[StepWork]) -> list[str]:
    """Request ids in the order in which they came."""
    return list(dict.fromkeys([*(stay.rid for stay in stays), *requests_in([*steps])]))


def lives(rids: Sequence[str], stays: Sequence[Stay]) -> list[tuple[str, list[Stay]]]:
    """A lane a request; and one for each row that it had as a zombie after a retraction."""
    found: dict[str, dict[str, list[Stay]]] = {rid: {rid: []} for rid in rids}
    for stay in stays:
        if stay.rid in found:
            found[stay.rid].setdefault(stay.place, []).append(stay)
    return [lane for lanes in found.values() for lane in lanes.items()]


def set_after(changes: Sequence[RunningChange]) -> list[list[str]]:
    """Who is in the set after each change."""
    now: dict[str, None] = {}
    found = []
    for change in changes:
        if change.joins:
            now[change.rid] = None
        else:
            del now[change.rid]
        found.append(list(now))
    return found


# -- One lane a request: where it was (queue, running set, zombie), and below it what it computed

PITCH, BOX, LOW, STEP = 38, 17, 8, 12  # pixels: from lane to lane, a stay's height, half, a step's
NAMES = {
    "queued": "in the waiting queue",
    "admitted": "in the set: it has memory",
    "sending": WORDS["sending"],
    "wasted": f"zombie: it {ZOMBIE}; below: a wasted row",
    "flag-head": "retraction: it loses its memory",
}
SAID = {"queued": "waits", "sending": "transfer", "wasted": "zombie"}
STEPS = {
    "prompt": "a step computes prompt tokens",
    "again": "prompt tokens, computed again",
    "decode": "a step decodes one token",
}


@dataclass(frozen=True)
class SetLanes:
    """Where each request's lane lies."""

    rids: list[str]
    x: TimeAxis
    top: float

    def y(self, rid: str) -> float:
        """The upper edge of a lane."""
        return self.top + PITCH * self.rids.index(rid)


def draw_set(
    page: Page, rids: list[str], x: TimeAxis, stays: Sequence[Stay],
    changes: Sequence[RunningChange], steps: Sequence[StepWork], trace: Trace,
) -> None:  # fmt: skip
    """The lanes with everything on them, and the time axis below."""
    lanes = SetLanes(rids, x, page.top)
    bottom = page.top + PITCH * len(rids)
    for rid in rids:
        page.add(band(x.left, lanes.y(rid) + 1, x.right - x.left, PITCH - 4))
        page.add(svg_text(20, lanes.y(rid) + 15, short(rid, 12), "bold"))
    page.add(*x.grid(page.top, bottom))
    leaves = {(change.rid, change.time): change.why for change in changes if not change.joins}
    for stay in sorted(stays, key=lambda stay: stay.place != stay.rid):
        if stay.rid in rids:
            why = leaves.get((stay.rid, stay.end), "") if stay.kind == "admitted" else ""
            page.add(*(_beside(lanes, stay) if stay.place != stay.rid else _stay(lanes, stay, why)))
    for step in steps:
        page.add(*_steps(lanes, step))
    for mark in named(trace, "retraction"):
        page.add(*_retraction(lanes, mark))
    page.add(*x.draw(bottom + 2))
    page.top = bottom + 26


def _stay(lanes: SetLanes, stay: Stay, why: str) -> list[str]:
    """A box, and in it, where there is room, that its request joins here, and why it leaves."""
    y = lanes.y(stay.rid) + 3
    left, width = lanes.x.span(stay.start, stay.end)
    ends = f"; leaves: {why}" * bool(why)
    about = f"{stay.rid}, {ms(stay.start)} to {ms(stay.end)} ms: {stay.about}{ends}"
    drawn = [
        rect(stay.kind, left, y, width, BOX, about, stay=stay.kind, rid=stay.rid, why=why,
             start=stay.start, end=stay.end)
    ]  # fmt: skip
    room, ink = width - 8, f"small in-{stay.kind}"
    if stay.kind == "admitted":
        if why and (need := len(words := f"leaves: {why}") * char_width(11)) <= room:
            drawn.append(svg_text(left + width - 4, y + 12.5, words, ink, "end"))
            room -= need + 8
        if len("joins") * char_width(11) <= room:
            drawn.append(svg_text(left + 4, y + 12.5, "joins", ink))
    elif len(words := SAID[stay.kind]) * char_width(11) <= room:
        drawn.append(svg_text(left + width / 2, y + 12.5, words, ink, "middle"))
    return drawn


def _beside(lanes: SetLanes, stay: Stay) -> list[str]:
    """The zombie of a request that was retracted, over the lower half of what that does now."""
    left, width = lanes.x.span(stay.start, stay.end)
    about = f"{stay.place}, {ms(stay.start)} to {ms(stay.end)} ms: {stay.about}"
    y = lanes.y(stay.rid) + 3 + BOX - LOW
    return [
        rect(stay.kind, left, y, width, LOW, about, stay=stay.kind, rid=stay.rid, why="",
             start=stay.start, end=stay.end)
    ]  # fmt: skip


def _steps(lanes: SetLanes, step: StepWork) -> list[str]:
    """What a step computed for each of its requests."""
    drawn = []
    left, width = lanes.x.span(step.start, step.end)
    for part in step.parts:
        if part.rid not in lanes.rids:
            continue
        y = lanes.y(part.rid) + BOX + 4
        amount = f"{part.tokens} tokens" if part.tokens else step.mode
        about = f"step {step.step} ({step.mode}), {part.rid}: {STEP_NAMES[part.kind]}, {amount}"
        drawn.append(rect(part.kind, left, y, width, STEP, about, step=step.step, rid=part.rid))
        label = str(part.tokens)
        is_prompt = part.kind in ("prompt", "again") and part.tokens
        if is_prompt and len(label) * char_width(11) + 4 <= width:
            middle = left + width / 2, y + 10
            drawn.append(svg_text(*middle, label, f"small in-{part.kind}", "middle"))
    return drawn


def _retraction(lanes: SetLanes, mark: Mark) -> list[str]:
    """A flag where a request lost its memory."""
    if (rid := word(mark, "rid")) not in lanes.rids:
        return []
    x, y = lanes.x.x(mark.time), lanes.y(rid)
    about = f"{rid} is retracted at {ms(mark.time)} ms ({word(mark, 'reason')})"
    head = f"M{x:.1f} {y + 2:.1f}{SIGNS['flag-head']}"
    return [
        line("flag", x, y, x, y + BOX + 4),
        path("flag-head", head, about, rid=rid, mark="retraction"),
    ]


# -- The running set as text for a terminal, and as PlantUML ---------------------------------------

MOST_CHANGES = 60
LEGEND = {kind: words.partition(";")[0] for kind, words in NAMES.items() if kind != "flag-head"}


def text(trace: Trace) -> str:
    """Where each request was over time, and every change of the set.

    Raises:
        NothingToShow: no step ran.
    """
    part, shown = opening(trace, MOST_STEPS)
    stays, changes = up_to(request_stays(part), part.end), changes_of(part)
    page = TextPage(TITLE, about_run(trace, shown, *filter(None, [side_words(trace)])), margin=14)
    rids = requests_of(stays, steps_of(part))
    page.heading("Who", f"the first {MOST_LANES} of {len(rids)}" * (len(rids) > MOST_LANES))
    for name, kind in (("in the set", "admitted"), ("zombies", "wasted"), ("waiting", "queued")):
        page.curve(name, count(stays, kind), part.end)
    page.lanes(
        [(short(rid, 12), [replace(stay, label="") for stay in mine])
         for rid, mine in lives(rids[:MOST_LANES], stays)], part.end,
    )  # fmt: skip
    page.legend(LEGEND)
    cut = f"the first {MOST_CHANGES} of {len(changes)}" * (len(changes) > MOST_CHANGES)
    page.heading("Who joins and who leaves", cut)
    page.table(
        ["ms", "", "request", "why", "size", "the set after it"],
        [
            (ms(change.time), "+ joins" if change.joins else "- leaves", short(change.rid, 16),
             change.why, len(after), " ".join(after))
            for change, after in zip(changes, set_after(changes), strict=True)
        ][:MOST_CHANGES],
    )  # fmt: skip
    return page.finish()


def puml(trace: Trace) -> str:
    """A lane a request: waits, is in the set, is a zombie.

    Raises:
        NothingToShow: no step ran.
    """
    part, _ = opening(trace, MOST_STEPS)
    stays = up_to(request_stays(part), part.end)
    rids = requests_of(stays, steps_of(part))[:MOST_LANES]
    rows = [(rid, list(map(_labelled, mine))) for rid, mine in lives(rids, stays)]
    flags = [
        (mark.time, f"{word(mark, 'rid')} is retracted")
        for mark in named(part, "retraction")
        if word(mark, "rid") in rids
    ]
    return stays_to_puml(TITLE, rows, part.end, LEGEND, flags)


def _labelled(stay: Stay) -> Stay:
    return replace(stay, label=({"admitted": "in the set"} | SAID)[stay.kind])


__all__ = ["puml", "text", "view"]
HEIGHT = 64


def view(trace: Trace) -> str:
    """How many there are in the set, then one lane a request.

    Raises:
        NothingToShow: no step ran.
    """
    part, shown = opening(trace, MOST_STEPS)
    steps, stays = steps_of(part), up_to(request_stays(part), part.end)
    rids = requests_of(stays, steps)
    if len(rids) > MOST_LANES:
        shown += f", the first {MOST_LANES} of {len(rids)} requests"
    page = Page(TITLE, about_run(trace, shown, *filter(None, [side_words(trace)])))
    x = TimeAxis(part.end)
    _draw_counts(page, stays, x)
    page.heading("Who", "above: where the request is; below: what the device computes for it")
    draw_set(page, rids[:MOST_LANES], x, stays, changes_of(part), steps, part)
    page.legend(NAMES | STEPS)
    return page.finish()


def _draw_counts(page: Page, stays: list[Stay], x: TimeAxis) -> None:
    running, waiting = count(stays, "admitted"), count(stays, "queued")
    both = stacked(running, count(stays, "wasted"))
    page.heading("How many", "filled: in the set, and zombies on top; dashed line: waiting")
    y = ValueAxis(max(1, most(both, waiting)), page.top + 16, page.top + 16 + HEIGHT)
    page.add(*y.draw("requests"), *x.grid(y.top, y.bottom))
    page.add(step_area(both, x, y, "wasted", "in the set or zombies"))
    page.add(step_area(running, x, y, "admitted", "in the set"))
    page.add(step_line(waiting, x, y, "under", ""), step_line(waiting, x, y, "second", "waiting"))
    page.top = y.bottom + 34
