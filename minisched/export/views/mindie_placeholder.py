"""The C++ scheduler's ledger over time: a placeholder for every token to come, then the token.

Its first part; the others are every loop's.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...trace import Mark, Trace
from ..scene import CellGrid, GridCell, Part, Scene, about_run
from ..units import ms
from .loop_parts import loop_parts
from .marks import NothingToShow, lacking, many, named, number, short, word
from .steps import forwards_of

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


MOST_ENTRIES, MOST_SEQUENCES, MOST_BOXES = 22, 4, 22  # boxes in a line
PLACEHOLDER = -1
LEGEND = {
    "promised": "-1: a placeholder, its token is on its way",
    "stored": "a token that came",
    "changed": "new since the line above",
}


def scene(trace: Trace) -> Scene:
    """A line for each time that the ledger was written; of a long list the newest tokens.

    Raises:
        NothingToShow: no step ran, or no ledger was kept.
    """
    forwards_of(trace)
    if not (entries := entries_of(trace)):
        raise NothingToShow("the trace has no ledger mark: no ledger was kept.")
    shown = entries[:MOST_ENTRIES]
    cut = f"the first {len(shown)} of {len(entries)} entries"
    rids = list(dict.fromkeys(rid for entry in shown for rid in entry.lists))
    room = MOST_BOXES // max(1, len(rids[:MOST_SEQUENCES]))
    cells: dict[tuple[int, int], GridCell] = {}
    before: dict[str, list[int]] = {}
    for row, entry in enumerate(shown):
        for at, rid in enumerate(rids[:MOST_SEQUENCES]):
            tokens, old = entry.lists.get(rid, []), before.get(rid, [])
            first = max(0, len(tokens) - room + 1)  # a column stays free
            for place in range(first, len(tokens)):
                token = tokens[place]
                cells[row, at * room + place - first] = GridCell(
                    "promised" if token == PLACEHOLDER else "stored",
                    str(token),
                    about=f"{after(entry)}: output {place} of {rid} is {token}",
                    is_changed=old[place : place + 1] != [token],
                    data={"rid": rid, "place": place, "token": token, "entry": ms(entry.time)},
                )
        before = entry.lists
    columns = [
        short(rid, 8) if not place else "" for rid in rids[:MOST_SEQUENCES] for place in range(room)
    ]
    lines = [f"{ms(entry.time)} ms: {after(entry)}" for entry in shown]
    most = max((tokens.count(PLACEHOLDER) for entry in shown for tokens in entry.lists.values()),
               default=0)  # fmt: skip
    hidden = len(rids) - MOST_SEQUENCES
    return Scene(
        f"{trace.loop}: a ledger is at most {many(most, 'token')} ahead of its request",
        about_run(trace, cut if shown != entries else f"{len(entries)} entries"),
        [
            Part("Ledger", "time runs down; in each list the newest token stands last",
                 [CellGrid(lines, columns, cells)])
        ],
        LEGEND,
        [f"{hidden} further sequences are left out."] if hidden > 0 else [],
    )  # fmt: skip


def after(entry: Entry) -> str:
    """What was written down."""
    if entry.after == "schedule":
        return f"step {entry.step} is sent"
    return f"tokens of step {entry.step}" if entry.step else "dummies only"


PARTS = {"ledger": scene, **loop_parts()}
