"""The C++ scheduler's ledger over time: a placeholder for every token to come, then the token.

Its first part; the others are every loop's. PlantUML has nothing for lists that grow.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...trace import Mark, Trace
from ..svg import char_width
from ..units import ms
from .forms import PictureForms
from .loop_parts import loop_parts
from .marks import NothingToShow, lacking, named, number, short, short_end, word
from .page import EDGE, Page, about_run, band, line, rect, svg_text
from .steps import forwards_of
from .text_page import TextPage, columns_here

# -- The ledger's lists, one after the other, read from a trace ------------------------------------


@dataclass(frozen=True)
class Entry:
    """The ledger at one moment: every sequence's output tokens, placeholders (-1) and all."""

    time: int  # nanoseconds
    after: str  # schedule: step ``step`` is on its way; response: its tokens came; dummy: none did
    step: int  # 0 for a dummy
    lists: dict[str, list[int]]


def entries_of(trace: Trace) -> list[Entry]:
    """The ``ledger`` marks.

    Raises:
        NothingToShow: one is not what it should be.
    """
    return [
        Entry(mark.time, word(mark, "after"), number(mark, "step"), lists_of(mark))
        for mark in named(trace, "ledger")
    ]


def lists_of(mark: Mark) -> dict[str, list[int]]:
    """``a: 5 -1; b: -1``.

    Raises:
        NothingToShow: it says something else.
    """
    found: dict[str, list[int]] = {}
    for item in filter(None, word(mark, "lists").split("; ")):
        rid, _, tokens = item.rpartition(":")
        try:
            found[rid] = [int(token) for token in tokens.split()]
        except ValueError:
            raise lacking(mark, "lists of token ids") from None
    return found


MOST_ENTRIES, MOST_SEQUENCES, MOST_TOKENS = 22, 4, 12
PITCH, BOX, WIDEST, LISTS = 23, 17, 31, 232  # pixels; LISTS is where the first list begins
PLACEHOLDER = -1
TITLE = "the scheduler's ledger of output tokens"
ORDER = "time runs down; in each list the newest token stands last"
NAMES = {
    "promised": "-1: a placeholder, its token is on its way",
    "stored": "a token that came",
}


def view(trace: Trace) -> str:
    """A line for each time that the ledger was written.

    Raises:
        NothingToShow: no step ran, or no ledger was kept.
    """
    shown, about = entries_shown(trace)
    page = Page(f"{trace.loop}: {TITLE}", about)
    page.heading("Ledger", ORDER)
    rids = list(dict.fromkeys(rid for entry in shown for rid in entry.lists))
    columns = rids[:MOST_SEQUENCES]
    width = (EDGE - LISTS) / max(1, len(columns))
    draw_head(page, columns, width)
    before: dict[str, list[int]] = {}
    for entry in shown:
        draw_entry(page, entry, columns, width, before)
        before = entry.lists
    page.legend(NAMES)
    page.notes("a heavy border: new since the line above")
    if len(rids) > len(columns):
        page.notes(f"{len(rids) - len(columns)} further sequences are left out.")
    return page.finish()


def text_form(trace: Trace) -> str:
    """The same lines for a terminal; of a long list the newest tokens."""
    shown, about = entries_shown(trace)
    page = TextPage(f"{trace.loop}: {TITLE}", about)
    page.heading("Ledger", ORDER)
    rids = list(dict.fromkeys(rid for entry in shown for rid in entry.lists))
    columns = rids[:MOST_SEQUENCES]
    room = (columns_here() - 30) // max(1, len(columns)) - 2
    rows = [
        [ms(entry.time), after(entry),
         *(short_end(" ".join(map(str, entry.lists.get(rid, []))), room) for rid in columns)]
        for entry in shown
    ]  # fmt: skip
    heads = ["ms", "after", *(short(f"sequence {rid}", room) for rid in columns)]
    page.table(heads, rows)
    page.write("", NAMES["promised"])
    if len(rids) > len(columns):
        page.write(f"{len(rids) - len(columns)} further sequences are left out.")
    return page.finish()


def entries_shown(trace: Trace) -> tuple[list[Entry], str]:
    """The first lines, and which run they are of.

    Raises:
        NothingToShow: no step ran, or no ledger was kept.
    """
    forwards_of(trace)
    entries = entries_of(trace)
    if not entries:
        raise NothingToShow("the trace has no ledger mark: no ledger was kept.")
    shown = entries[:MOST_ENTRIES]
    cut = f"the first {len(shown)} of {len(entries)} entries" if shown != entries else ""
    return shown, about_run(trace, cut or f"{len(entries)} entries")


def draw_head(page: Page, columns: list[str], width: float) -> None:
    """What stands in each column."""
    y = page.top + 10
    page.add(svg_text(20, y, "time in ms", "small faint"), svg_text(96, y, "after", "small faint"))
    for at, rid in enumerate(columns):
        words = short(f"sequence {rid}", int((width - 4) / char_width(11)))
        page.add(svg_text(LISTS + at * width, y, words, "small bold"))
    page.add(line("axis", 20, y + 7, EDGE, y + 7))
    page.top = y + 13


def draw_entry(
    page: Page, entry: Entry, columns: list[str], width: float, before: dict[str, list[int]]
) -> None:
    """When, after what, and every list as it then was."""
    y = page.top
    page.add(
        svg_text(20, y + 13, ms(entry.time), "small"), svg_text(96, y + 13, after(entry), "small")
    )
    for at, rid in enumerate(columns):
        left = LISTS + at * width
        page.add(band(left, y, width - 8, BOX))
        if rid in entry.lists:
            draw_list(page, entry, rid, left, width - 8, before.get(rid, []))
    page.top += PITCH


def draw_list(
    page: Page, entry: Entry, rid: str, left: float, width: float, before: list[int]
) -> None:
    """One list: a box a token, the oldest left out where there is no room."""
    tokens = entry.lists[rid]
    room = min(MOST_TOKENS, int((width - 14) / WIDEST))
    first = max(0, len(tokens) - room)
    if first:
        page.add(svg_text(left + 2, page.top + 13, "…", "small faint"))
    for place in range(first, len(tokens)):
        token, x = tokens[place], left + 14 + (place - first) * WIDEST
        kind = "promised" if token == PLACEHOLDER else "stored"
        changed = before[place : place + 1] != [token]
        about = f"{after(entry)}: output {place} of {rid} is {token}"
        page.add(
            rect(kind + " changed" * changed, x, page.top, WIDEST - 3, BOX, about,
                 rid=rid, place=place, token=token, entry=ms(entry.time)),
            svg_text(x + (WIDEST - 3) / 2, page.top + 13, str(token), f"small in-{kind}", "middle"),
        )  # fmt: skip


def after(entry: Entry) -> str:
    """What was written down."""
    if entry.after == "schedule":
        return f"step {entry.step} is sent"
    return f"tokens of step {entry.step}" if entry.step else "dummies only"


PARTS = {"ledger": PictureForms(view, text_form), **loop_parts()}
