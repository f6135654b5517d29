"""The grammar over time: what each mask allows, what comes of it, and who has to wait for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...checks.causes import Idle, idle_times, waits
from ...trace import Mark, Slice, Trace
from ...trace.events import is_forward, is_host
from ..state import Stay
from ..svg import box_class, char_width
from ..units import ms
from .axes import TimeAxis
from .future_slots import whole_numbers
from .marks import NothingToShow, lacking, many, named, number, short, word
from .page import EDGE, LEFT, SIGNS, Datum, Page, about_run, band, line, path, rect, svg_text
from .puml_stays import stays_to_puml
from .steps import opening
from .text_page import TextPage

# -- What each grammar allowed at each step, and what it then got, read from a trace ---------------

REASON = "grammar"  # of the waits that are its own


@dataclass
class Choice:
    """One step's token of a constrained request; with drafts there are several."""

    step: int
    allowed: tuple[int, ...]  # how many tokens the mask allowed, at each place
    masked: int  # when the mask was there
    sampled: int  # when the step had been sampled
    accepted: int  # when the grammar took what was sampled
    tokens: tuple[int, ...] = ()  # what it took; none: nobody wanted it, or the trace ends
    terminated: bool = False  # nothing can follow

    @property
    def phases(self) -> list[tuple[str, int, int]]:
        """With a mask (promised), then sampled (stored), as far as that takes time."""
        moments = (
            ("promised", self.masked, self.sampled),
            ("stored", self.sampled, self.accepted),
        )
        return [(kind, start, end) for kind, start, end in moments if end > start]


@dataclass
class Constrained:
    """One request with a grammar, and its choices in order of time."""

    rid: str
    rule: str
    choices: list[Choice] = field(default_factory=list)


def constrained_of(trace: Trace) -> list[Constrained]:
    """Every request with a grammar, in the order in which they came.

    Raises:
        NothingToShow: a mark is not what it should be.
    """
    found: dict[str, Constrained] = {}
    sampled = {
        (side_of(item.lane), item.step): item.end
        for item in trace.slices
        if item.name == "sample" and is_forward(item.lane)
    }
    for mark in named(trace, "grammar"):
        rid = word(mark, "rid")
        found.setdefault(rid, Constrained(rid, printable(word(mark, "rule"))))
    accepts = {key_of(mark): mark for mark in named(trace, "grammar accept")}
    for mark in named(trace, "grammar mask"):
        side, step, rid = key_of(mark)
        if rid not in found:
            raise lacking(mark, f"a grammar of {rid}")
        allowed = tuple(whole_numbers(mark, "allowed"))
        end = max(mark.time, sampled.get((side, step), trace.end))
        choice = Choice(step, allowed, mark.time, end, end)
        if taken := accepts.get((side, step, rid)):
            choice.accepted = max(end, taken.time)
            choice.tokens = tuple(whole_numbers(taken, "tokens"))
            choice.terminated = bool(number(taken, "terminated"))
        found[rid].choices.append(choice)
    return list(found.values())


def printable(rule: str) -> str:
    """A rule in one line, without what neither a picture nor a terminal can show."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in rule
    )


def key_of(mark: Mark) -> tuple[str, int, str]:
    """Side, step and request of a mark."""
    return str(mark.attrs.get("side", "")), number(mark, "step"), word(mark, "rid")


def side_of(lane: str) -> str:
    """Whose lane it is, where two engines share a trace."""
    return lane.removesuffix("forward").rstrip() if lane.endswith("forward") else ""


def waits_of(trace: Trace) -> list[Mark]:
    """When a step was told to wait for a grammar."""
    return [mark for mark in waits(trace) if mark.attrs["reason"] == REASON]


def idle_of(trace: Trace) -> list[Idle]:
    """When a device idled because of that."""
    return [item for item in idle_times(trace) if item.reason == REASON]


# -- Grammars over time as SVG: host and device, and below them a strip for each request -----------

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
        page.add(band(LEFT, y, EDGE - LEFT, BOX), svg_text(20, y + 13, short(lane, 11)))
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
        drawn.append(svg_text(place, y + 13, str(item.step), f"small on-{kind}", "middle"))
    return drawn


def draw_requests(page: Page, requests: list[Constrained], x: TimeAxis, is_text: bool) -> None:
    """A strip a request: under its rule what the mask allowed, and what came of it."""
    top = page.top + 4
    page.add(*x.grid(top, top + PITCH * len(requests)))
    for at, one in enumerate(requests):
        y = top + at * PITCH
        page.add(svg_text(20, y + 30, short(one.rid, 11)))
        page.add(svg_text(LEFT, y + 12, short(one.rule, 100), "small faint"))
        page.add(band(LEFT, y + 17, EDGE - LEFT, BOX))
        starts = [x.x(choice.masked) for choice in one.choices] + [float(EDGE)]
        for index, choice in enumerate(one.choices):
            room = starts[index + 1] - starts[index]
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
        svg_text(left, y + BOX + 13, words, "small", allowed=allowed, rid=one.rid, step=choice.step)
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


MOST_STEPS, MOST_REQUESTS = 14, 6
TITLE = "grammar_manager: what a grammar lets follow, and who waits for it"
NAMES = {
    "promised": "its mask is built: it may be sampled",
    "stored": "sampled; the host does not know the token yet",
    "end": "terminated: nothing can follow",
    "mask": "mask",
    "launch": "launch",
    "process": "process: the grammar accepts the token",
    "forward": "forward",
    "sample": "sample",
    "bubble": "the device waits for a mask",
    "flag-head": "told to wait: its mask needs a token in flight",
}
NOTE = "26 → t: 26 tokens were allowed, t was sampled; # before the id of what is no character"


def view(trace: Trace) -> str:
    """Host and device, and a strip for each request with a grammar.

    Raises:
        NothingToShow: no step ran, or no request had a grammar.
    """
    part, shown = opening(trace, MOST_STEPS)
    requests = need_grammars(part)
    page, x = Page(TITLE, about_run(trace, shown)), TimeAxis(part.end)
    page.heading("Host and device", "numbers: steps")
    draw_run(page, part, x)
    page.heading("Requests with a grammar", NOTE)
    draw_requests(page, requests[:MOST_REQUESTS], x, is_text(trace))
    page.legend(NAMES)
    page.notes(summary(part, requests))
    if hidden := len(requests[MOST_REQUESTS:]):
        page.notes(f"{many(hidden, 'request')} more with a grammar left out.")
    return page.finish()


def text(trace: Trace) -> str:
    """The strips for a terminal, and a table of every mask.

    Raises:
        NothingToShow: as ``view``.
    """
    part, shown = opening(trace, MOST_STEPS)
    requests = need_grammars(part)
    page = TextPage(TITLE, about_run(trace, shown))
    page.heading("Requests with a grammar", NOTE)
    page.write(*(f"{short(one.rid, 12)}: {short(one.rule, 80)}" for one in requests))
    page.lanes(rows_of(part, requests[:MOST_REQUESTS]), part.end)
    page.legend({kind: NAMES[kind] for kind in ("promised", "stored")}
                | {"wasted": NAMES["bubble"]})  # fmt: skip
    page.heading("Mask by mask", "# before the id of what is no character")
    rows = [
        (choice.step, one.rid, choice) for one in requests[:MOST_REQUESTS] for choice in one.choices
    ]
    heads = ("step", "request", "mask, ms", "allowed", "sampled, ms", "accepted, ms", "token", "")
    page.table(heads, [table_row(rid, choice, is_text(trace)) for _, rid, choice in
                       sorted(rows, key=lambda row: row[:2])])  # fmt: skip
    page.write("", summary(part, requests))
    return page.finish()


def puml(trace: Trace) -> str:
    """The strips as a PlantUML timing diagram.

    Raises:
        NothingToShow: as ``view``.
    """
    part, shown = opening(trace, MOST_STEPS)
    requests = need_grammars(part)[:MOST_REQUESTS]
    names = {kind: NAMES[kind] for kind in ("promised", "stored")} | {"wasted": NAMES["bubble"]}
    rows, flags = rows_of(part, requests), ends_of(requests)
    return stays_to_puml(f"{TITLE} ({shown})", rows, part.end, names, flags)


def need_grammars(trace: Trace) -> list[Constrained]:
    """Every request with a grammar.

    Raises:
        NothingToShow: there is none.
    """
    if not (requests := constrained_of(trace)):
        raise NothingToShow("the trace has no grammar mark: no request had a grammar.")
    return requests


def is_text(trace: Trace) -> bool:
    """Whether a token is a byte, so that it may stand as a character."""
    return trace.model == "hash"


def summary(trace: Trace, requests: list[Constrained]) -> str:
    """How many masks, tokens, ends and waits; the same in every form."""
    choices = [choice for one in requests for choice in one.choices]
    accepted = sum(len(choice.tokens) for choice in choices)
    ended = sum(choice.terminated for choice in choices)
    lost = sum(item.end - item.start for item in idle_of(trace))
    return (
        f"{many(len(choices), 'mask')}, {many(accepted, 'token')} accepted, {ended} terminated; "
        f"{many(len(waits_of(trace)), 'step')} told to wait, for which devices idled {ms(lost)} ms"
    )


def rows_of(trace: Trace, requests: list[Constrained]) -> list[tuple[str, list[Stay]]]:
    """A row for each device, with what waits cost there, and one for each request."""
    idle: dict[str, list[Stay]] = {}
    for item in idle_of(trace):
        idle.setdefault(item.lane, []).append(Stay("", "wasted", item.start, item.end))
    characters = is_text(trace)
    rows = [(short(one.rid, 12), stays_of(one, characters)) for one in requests]
    return [*idle.items(), *rows]


def stays_of(one: Constrained, characters: bool) -> list[Stay]:
    """What a request's next token is when; the last box says how many were allowed, and it."""
    stays = []
    for choice in one.choices:
        for kind, start, end in choice.phases:
            label = told(choice, characters).replace(" ", "") if end == choice.accepted else ""
            stays.append(Stay("", kind, start, end, label, one.rid))
    return stays


def ends_of(requests: list[Constrained]) -> list[tuple[int, str]]:
    """When grammars terminated, and whose; those of one moment together."""
    ends: dict[int, list[str]] = {}
    for one in requests:
        for choice in one.choices:
            if choice.terminated:
                ends.setdefault(choice.accepted, []).append(short(one.rid, 12))
    return [(time, f"{', '.join(rids)} terminated") for time, rids in sorted(ends.items())]


def table_row(rid: str, choice: Choice, characters: bool) -> tuple[object, ...]:
    """A line about one mask."""
    allowed, came = " ".join(map(str, choice.allowed)), tokens(choice, characters)
    accepted = ms(choice.accepted) if choice.tokens else "-"
    end = "terminated" if choice.terminated else "" if choice.tokens else "for nobody, or not yet"
    return (choice.step, short(rid, 12), ms(choice.masked), allowed, ms(choice.sampled), accepted,
            came, end)  # fmt: skip
