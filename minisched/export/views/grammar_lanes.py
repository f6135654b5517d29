"""Grammars over time as SVG: host and device, and below them a strip for each request."""

from __future__ import annotations

from ...trace import Slice, Trace
from ...trace.events import is_forward, is_host
from ..svg_style import box_class, char_width
from ..units import ms
from .axes import TimeAxis
from .grammar_choices import Choice, Constrained, idle_of, waits_of
from .page import EDGE, LEFT, SIGNS, Page
from .shapes import Datum, band, line, path, rect, text
from .wording import short

LANE, BOX, PITCH = 26, 17, 62  # pixels: a lane, what is in it, a request with its rule
SHOWN = ("mask", "process", "launch", "forward", "sample")  # phases and ops that matter here
WORDS = {"promised": "may be sampled", "stored": "sampled; the host does not know it yet"}


def draw_run(page: Page, trace: Trace, x: TimeAxis) -> None:
    """Masks on the host, steps on the device, who was told to wait, and what that cost."""
    items = [s for s in trace.slices if is_host(s.lane) or is_forward(s.lane)]
    lanes = sorted({item.lane for item in items if item.name in SHOWN}, key=is_forward)
    top = page.top + 6
    page.add(*x.grid(top, top + LANE * len(lanes)))
    for at, lane in enumerate(lanes):
        y = top + at * LANE + 4
        page.add(band(LEFT, y, EDGE - LEFT, BOX), text(20, y + 13, short(lane, 11)))
        for item in items:
            if item.lane == lane and item.name in SHOWN:
                page.add(*draw_slice(item, x, y))
        for idle in idle_of(trace):
            if idle.lane == lane:
                left, width = x.span(idle.start, idle.end)
                about = f"the device waits {ms(idle.end - idle.start)} ms for the mask"
                data: dict[str, Datum] = {"step": idle.step, "lost": idle.end - idle.start}
                page.add(rect("bubble", left, y, width, BOX, about, **data))
    for mark in waits_of(trace):
        step = str(mark.attrs["step"])
        about = f"the {mark.attrs['op']} of step {step} waits for a token that its mask needs"
        d = f"M{x.x(mark.time):.1f} {top - 2:.1f}{SIGNS['flag-head']}"
        page.add(path("flag-head", d, about, wait=step))
    page.top = top + LANE * len(lanes) + 28


def draw_slice(item: Slice, x: TimeAxis, y: float) -> list[str]:
    """One phase or op, with its step's number if there is room."""
    left, width = x.span(item.start, item.end)
    kind, about = box_class(item.name), f"step {item.step}, {item.name}"
    drawn = [rect(kind, left, y, width, BOX, about, step=item.step, op=item.name)]
    if item.name in ("mask", "forward") and len(str(item.step)) * char_width(11) + 2 <= width:
        place = left + width / 2
        drawn.append(text(place, y + 13, str(item.step), f"small on-{kind}", "middle"))
    return drawn


def draw_requests(page: Page, requests: list[Constrained], x: TimeAxis, is_text: bool) -> None:
    """A strip a request: under its rule what the mask allowed, and what came of it."""
    top = page.top + 4
    page.add(*x.grid(top, top + PITCH * len(requests)))
    for at, one in enumerate(requests):
        y = top + at * PITCH
        page.add(text(20, y + 30, short(one.rid, 11)))
        page.add(text(LEFT, y + 12, short(one.rule, 100), "small faint"))
        page.add(band(LEFT, y + 17, EDGE - LEFT, BOX))
        starts = [x.x(choice.masked) for choice in one.choices] + [float(EDGE)]
        for number, choice in enumerate(one.choices):
            room = starts[number + 1] - starts[number]
            draw_choice(page, one, choice, x, y + 17, room, is_text)
    page.top = top + PITCH * len(requests)
    page.add(*x.draw(page.top))
    page.top += 26


def draw_choice(
    page: Page, one: Constrained, choice: Choice, x: TimeAxis, y: float, room: float, is_text: bool
) -> None:
    """One step's boxes, and below them how many tokens were allowed and which one came."""
    data: dict[str, Datum] = {"rid": one.rid, "step": choice.step}
    about = f"{one.rid}, step {choice.step}: {told(choice, is_text)}"
    for kind, start, end in choice.phases:
        left, width = x.span(start, end)
        page.add(rect(kind, left, y, width, BOX, f"{about}; {WORDS[kind]}", **data))
    left, allowed = x.x(choice.masked), " ".join(map(str, choice.allowed))
    words = next(
        (words for words in (told(choice, is_text), allowed)
         if len(words) * char_width(11) <= min(room, EDGE - left)), "",
    )  # fmt: skip
    page.add(
        text(left, y + BOX + 13, words, "small", allowed=allowed, rid=one.rid, step=choice.step)
    )
    if choice.terminated:
        place = x.x(choice.accepted)
        page.add(line("end", place, y - 3, place, y + BOX + 3, terminated=one.rid, **data))


def told(choice: Choice, is_text: bool) -> str:
    """``26 → t``: so many were allowed, and one came."""
    allowed = " ".join(map(str, choice.allowed))
    return f"{allowed} → {tokens(choice, is_text)}" if choice.tokens else allowed


def tokens(choice: Choice, is_text: bool) -> str:
    """What came: characters where every byte is a token, else ids."""
    return " ".join(character(token) if is_text else f"#{token}" for token in choice.tokens)


def character(token: int) -> str:
    """A byte as a character, if it can be printed."""
    return "space" if token == 32 else chr(token) if 32 < token < 127 else f"#{token}"
