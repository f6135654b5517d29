"""vLLM's slots of requests as cells: who has each slot, and where its next tokens come from."""

from __future__ import annotations

from ...checks.history import many
from ...checks.overlap import forwards
from ...trace import Trace
from ...trace.sides import shown_side, side_words
from ..scene import CellGrid, Data, GridCell, Part, Scene, about_run
from .marks import first_of, first_rows, lacking, named, needed, number, numbers, short_end, word
from .steps import opening

MOST_STEPS, MOST_SLOTS = 14, 12
LEGEND = {
    "prompt": "prompt tokens: the host sends them to the slot",
    "decode": "its last sampled token is in the slot: the host sends nothing",
    "wasted": "the same, but its request had ended",
    "changed": "its row has changed",
}


def scene(trace: Trace) -> Scene:
    """Draw a row for each slot, and a column for each step that computes its request."""
    part, shown = opening(shown_side(trace), MOST_STEPS)
    ran = {item.step: item.rids for item in forwards(part)}
    wasted = {(number(m, "step"), word(m, "rid")) for m in named(part, "wasted row")}
    cells, rows, stayed = dict[tuple[int, int], GridCell](), dict[str, int](), 0
    steps = list[int]()
    for mark in needed(part, "request state", "another relay was used", ran):
        step = number(mark, "step")
        slots, sent = (numbers(mark, name) for name in ("slots", "sent"))
        if not len(ran[step]) == len(slots) == len(sent):
            raise lacking(mark, "a number for each request of its step")
        for row, (rid, slot, count) in enumerate(zip(ran[step], slots, sent, strict=True)):
            look = "prompt" if count else "wasted" if (step, rid) in wasted else "decode"
            source = f"{count} tokens from the host" if count else "its last sampled token"
            about = f"step {step}, row {row}: {rid} in slot {slot} reads {source}"
            words = short_end(rid, 6) + f" +{count}" * bool(count)
            data: Data = {"step": step, "place": row, "slot": slot, "rid": rid, "sent": count}
            is_moved, rows[rid] = rows.get(rid, row) != row, row
            cells[slot - 1, len(steps)] = GridCell(
                look, words, f"row {row}", about, is_changed=is_moved, data=data
            )
            stayed += not count
        steps.append(step)
    moves = "changes its row and " * any(cell.is_changed for cell in cells.values())
    most = 1 + max(slot for slot, _ in cells)
    note = "a +6: 6 tokens of a come from the host; below a box: its row of the batch"
    grid = CellGrid(
        [f"slot {slot}" for slot in range(1, min(most, MOST_SLOTS) + 1)],
        [f"step {step}" for step in steps],
        first_rows(MOST_SLOTS, cells),
    )
    return Scene(
        f"A request {moves}keeps its slot: {many(stayed, 'token')} stay on the device",
        about_run(trace, shown, side_words(trace), first_of(MOST_SLOTS, most, "slot")),
        [Part("Slots of requests, on the device", note, [grid])],
        LEGEND,
    )
