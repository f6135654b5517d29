"""One lane a request: where it was (queue, running set, zombie), and below it what it computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...trace import Mark, Trace
from ..state import Stay
from ..state.leases import WORDS, ZOMBIE
from ..state.requests import RunningChange
from ..svg_style import char_width
from ..units import ms
from .axes import TimeAxis
from .lanes import NAMES as STEP_NAMES
from .marks import named, word
from .page import SIGNS, Page
from .shapes import band, line, path, rect, text
from .steps import StepWork
from .wording import short

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
        page.add(text(20, lanes.y(rid) + 15, short(rid, 12), "bold"))
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
            drawn.append(text(left + width - 4, y + 12.5, words, ink, "end"))
            room -= need + 8
        if len("joins") * char_width(11) <= room:
            drawn.append(text(left + 4, y + 12.5, "joins", ink))
    elif len(words := SAID[stay.kind]) * char_width(11) <= room:
        drawn.append(text(left + width / 2, y + 12.5, words, ink, "middle"))
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
            drawn.append(text(*middle, label, f"small in-{part.kind}", "middle"))
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
