"""The grammar over time: what each mask allows, what comes of it, and who has to wait for it."""

from __future__ import annotations

from ...trace import Trace
from ..state import Stay
from ..units import ms
from .axes import TimeAxis
from .grammar_choices import Choice, Constrained, constrained_of, idle_of, waits_of
from .grammar_lanes import draw_requests, draw_run, tokens, told
from .marks import NothingToShow
from .page import Page, about_run
from .puml_stays import stays_to_puml
from .steps import opening
from .text_page import TextPage
from .wording import many, short

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
