"""The C++ scheduler's ledger over time: a placeholder for every later token, then the token."""

from __future__ import annotations

from itertools import islice

from ...trace import Mark, Trace
from ..scene import CellGrid, GridCell, Part, Scene, about_run
from ..units import ms
from .marks import first_of, needed, number, numbers, short, word, words
from .steps import forwards_of

MOST_ENTRIES, MOST_SEQUENCES, MOST_BOXES = 6, 4, 18  # boxes in a line
PLACEHOLDER = -1
LEGEND = {
    "promised": "a placeholder: its token is on its way",
    "stored": "a token that arrived",
    "changed": "new since the line above",
}


def scene(trace: Trace) -> Scene:
    """Draw a line for each entry of the ledger; of a long list the newest tokens."""
    forwards_of(trace)
    every_mark = needed(trace, "ledger", "no ledger was kept")
    first = next((at for at, mark in enumerate(every_mark) if any(numbers(mark, "lengths"))), 0)
    marks = every_mark[first:]  # from the first list that has a token
    ledgers = [lists_of(mark) for mark in marks[:MOST_ENTRIES]]
    every = list(dict.fromkeys(rid for lists in ledgers for rid in lists))
    rids = every[:MOST_SEQUENCES]
    longest = max((len(tokens) for lists in ledgers for tokens in lists.values()), default=0)
    room = min(MOST_BOXES // max(1, len(rids)), longest + 1)
    cells = dict[tuple[int, int], GridCell]()
    for row, (mark, lists, before) in enumerate(zip(marks, ledgers, [{}, *ledgers], strict=False)):
        for at, rid in enumerate(rids):
            tokens, old = lists.get(rid, []), before.get(rid, [])
            first = max(0, len(tokens) - room + 1)  # one column remains empty
            for place, token in enumerate(tokens[first:], first):
                cells[row, at * room + place - first] = GridCell(
                    "promised" if token == PLACEHOLDER else "stored",
                    str(token),
                    is_changed=old[place : place + 1] != [token],
                    data={"rid": rid, "place": place, "token": token, "entry": ms(mark.time)},
                )
    columns = [name for rid in rids for name in [short(rid, 8), *[""] * (room - 1)]]
    lines = [f"{ms(mark.time)} ms: {after(mark)}" for mark in marks[:MOST_ENTRIES]]
    shown = first_of(MOST_ENTRIES, len(marks)) or str(len(marks))
    cut = first_of(MOST_SEQUENCES, len(every), "sequence")
    return Scene(
        f"{trace.loop}: -1 holds the place of a token until the token arrives",
        about_run(trace, f"{shown} entries", cut),
        [Part("Ledger", "time runs down, lists to the right", [CellGrid(lines, columns, cells)])],
        LEGEND,
    )


def lists_of(mark: Mark) -> dict[str, list[int]]:
    """Return every sequence's output tokens with placeholders."""
    tokens = iter(numbers(mark, "tokens", least=PLACEHOLDER))
    lengths = zip(words(mark, "rids"), numbers(mark, "lengths"), strict=False)
    return {rid: list(islice(tokens, length)) for rid, length in lengths}


def after(mark: Mark) -> str:
    """Write an entry's cause: a launched step, its tokens, or tokens without a request."""
    step = number(mark, "step")
    if word(mark, "after") == "schedule":
        return f"step {step} is sent"
    return f"tokens of step {step}" if step else "dummies only"
