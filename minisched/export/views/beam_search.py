"""Beams as cells by step: those that fork, and those that end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ...checks.history import many
from ...checks.overlap import forwards
from ...trace import Trace
from ...trace.sides import shown_side, side_words
from ..scene import CellGrid, Data, GridCell, LaneLink, Part, Scene, about_run
from .marks import first_of, first_rows, lacking, needed, number, numbers, short_end, word
from .steps import opening

MOST_STEPS, MOST_ROWS = 14, 12
LEGEND = {
    "stored": "a beam that forks: several beams extend it",
    "resolved": "one beam extends it",
    "wasted": "no beam extends it",
    "ready": "the newest beams of a request",
}


def scene(trace: Trace) -> Scene:
    """Draw a column for each step, and a row for each row of the page table."""
    part, shown = opening(shown_side(trace), MOST_STEPS)
    times = {item.step: item.start for item in forwards(part)}
    marks = needed(part, "beams", "no request has beams", times)
    order = sorted({tuple(numbers(mark, "rows")) for mark in marks})
    places = {row: at for at, row in enumerate(row for rows in order for row in rows)}
    columns, names = {step: at for at, step in enumerate(times)}, [f"step {step}" for step in times]
    cells, links = dict[tuple[int, int], GridCell](), list[LaneLink]()
    newest = dict[str, list[tuple[int, int]]]()  # cells of beams, by request
    for mark in marks:
        rid, step, is_first = word(mark, "rid"), number(mark, "step"), number(mark, "length") == 1
        rows, parents, tokens = (numbers(mark, name) for name in ("rows", "parents", "tokens"))
        before, children = newest.get(rid, []), Counter(() if is_first else parents)
        if not len(rows) == len(parents) == len(tokens) or max(parents, default=0) >= len(rows):
            raise lacking(mark, "a row, a parent and a token for each beam")
        for beam, at in enumerate(before):
            kind = ("wasted", "resolved", "stored")[min(2, children[beam])]
            cells[at] = replace(cells[at], kind=kind)
        newest[rid] = [(places[row], columns[step]) for row in rows]
        for at, row, parent, token in zip(newest[rid], rows, parents, tokens, strict=True):
            data: Data = {"step": step, "place": row, "rid": rid, "token": token}
            source = "prompt" if is_first else f"of row {rows[parent]}"
            about = f"step {step}, row {row}: {rid}, {source}, and token {token}"
            cells[at] = GridCell("ready", str(token), source, about, data=data)
            if before and not is_first:
                kind = "stay" if before[parent][0] == at[0] else "token"
                links.append(LaneLink(kind, before[parent], at, data=data))
        names[columns[step]] += f"\nprompt of {short_end(rid, 6)}" * is_first
    owners = {
        row: short_end(word(mark, "rid"), 6) for mark in marks for row in numbers(mark, "rows")
    }
    labels = [f"row {row} ({owners[row]})" for row in places][:MOST_ROWS]
    kept = [link for link in links if max(link.src[0], link.dst[0]) < MOST_ROWS]
    beams = CellGrid(labels, names, first_rows(MOST_ROWS, cells), kept)
    moved = sum(link.kind == "token" for link in links)
    note = "below a token: the row of the beam that it extends; a blue arrow leads to another row"
    return Scene(
        f"{moved} of {many(len(links), 'beam')} extend a beam of another row",
        about_run(trace, shown, side_words(trace), first_of(MOST_ROWS, len(places), "row")),
        [Part("Rows of the page table", note, [beams])],
        LEGEND,
    )  # fmt: skip
