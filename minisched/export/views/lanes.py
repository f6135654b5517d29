"""One lane a request: what it computed, when it held memory, and who had to give it up."""

from __future__ import annotations

from dataclasses import dataclass

from ...trace import Mark, Trace
from ..svg import char_width
from ..units import ms
from .axes import TimeAxis
from .marks import named, short, word
from .page import SIGNS, Page, band, line, path, rect, svg_text
from .steps import StepWork

PITCH, BOX = 24, 16  # from lane to lane, and how high a box is
NAMES = {
    "prompt": "prompt tokens",
    "again": "prompt tokens, computed again",
    "decode": "one token decoded",
    "wasted": "wasted row: computed for nobody",
    "flag-head": "retraction",
}


@dataclass(frozen=True)
class RequestLanes:
    """Where each request's lane lies."""

    rids: list[str]
    x: TimeAxis
    top: float

    @property
    def bottom(self) -> float:
        """Below the last lane."""
        return self.top + PITCH * len(self.rids)

    def y(self, rid: str) -> float:
        """The upper edge of a lane's boxes."""
        return self.top + PITCH * self.rids.index(rid) + (PITCH - BOX) / 2


def draw_lanes(page: Page, rids: list[str], x: TimeAxis, steps: list[StepWork], trace: Trace,
               ) -> RequestLanes:  # fmt: skip
    """The lanes with everything on them, and the time axis below."""
    lanes = RequestLanes(rids, x, page.top)
    retractions = named(trace, "retraction")
    for rid in rids:
        page.add(band(x.left, lanes.y(rid) - 2, x.right - x.left, BOX + 4))
        page.add(svg_text(20, lanes.y(rid) + 12, short(rid, 12)))
    page.add(*x.grid(lanes.top, lanes.bottom))
    for rid in rids:
        mine = [mark for mark in retractions if word(mark, "rid") == rid]
        page.add(*_held(lanes, rid, steps, [mark.time for mark in mine]))
    for step in steps:
        page.add(*_boxes(lanes, step))
    page.add(*(_retraction(lanes, mark) for mark in retractions if word(mark, "rid") in rids))
    page.add(*x.draw(lanes.bottom + 2))
    page.top = lanes.bottom + 26
    return lanes


def _boxes(lanes: RequestLanes, step: StepWork) -> list[str]:
    drawn = []
    left, width = lanes.x.span(step.start, step.end)
    for part in step.parts:
        if part.rid not in lanes.rids:
            continue
        amount = f"{part.tokens} tokens" if part.tokens else step.mode
        about = f"step {step.step} ({step.mode}), {part.rid}: {NAMES[part.kind]}, {amount}"
        y = lanes.y(part.rid)
        drawn.append(rect(part.kind, left, y, width, BOX, about, step=step.step, rid=part.rid))
        label = str(part.tokens)
        room = len(label) * char_width(11) + 4
        if part.kind in ("prompt", "again") and part.tokens and room <= width:
            drawn.append(
                svg_text(left + width / 2, y + 12, label, f"small in-{part.kind}", "middle")
            )
    return drawn


def _held(lanes: RequestLanes, rid: str, steps: list[StepWork], retracted: list[int]) -> list[str]:
    """A line through each stretch in which a request held memory: between retractions."""
    mine = [s for s in steps if any(part.rid == rid for part in s.parts)]
    drawn, y = [], lanes.y(rid) + BOX / 2
    for since, until in zip([-1, *retracted], [*retracted, lanes.x.end], strict=True):
        life = [s for s in mine if since < s.start <= until]
        if life:
            x1, x2 = lanes.x.x(life[0].start), lanes.x.x(min(life[-1].end, max(until, life[0].end)))
            drawn.append(line("held", x1, y, max(x1, x2), y, rid=rid))
    return drawn


def _retraction(lanes: RequestLanes, mark: Mark) -> str:
    """A flag where a request lost its memory."""
    rid, x = word(mark, "rid"), lanes.x.x(mark.time)
    y = lanes.y(rid)
    about = f"{rid} is retracted at {ms(mark.time)} ms ({word(mark, 'reason')})"
    return line("flag", x, y - 5, x, y + BOX + 3) + path(
        "flag-head", f"M{x:.1f} {y - 2:.1f}{SIGNS['flag-head']}", about, rid=rid, mark="retraction"
    )
