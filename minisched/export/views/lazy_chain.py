"""The chain of lazy arrays: each step's tokens, and the steps that are built on them."""

from __future__ import annotations

from ...trace import Trace
from ..scene import CellGrid, GridCell, LaneLink, Part, Scene, about_run
from ..units import ms
from .marks import named, needed, number, short, word
from .steps import opening

MOST_STEPS = 14
LEGEND = {
    "stored": "its input comes from the host: a new chain",
    "promised": "its input is the array of the step before, which is not computed yet",
    "resolved": "its input is the array of the step before, which is computed",
    "arrow token": "the array that it is built on",
}


def scene(trace: Trace) -> Scene:
    """Draw a row for each chain and a column for each step."""
    part, shown = opening(trace, MOST_STEPS)
    when = {(item.name, item.step): item for item in part.slices}
    ran = {step for name, step in when if name == "forward"}
    marks = needed(part, "lazy tokens", "no lazy chain was used", ran)
    sources = {number(mark, "step"): number(mark, "source") for mark in marks}  # 0: the host's
    at = {step: column for column, step in enumerate(sources)}
    cells, links, row, early = dict[tuple[int, int], GridCell](), list[LaneLink](), -1, 0
    for mark in marks:
        step, source = number(mark, "step"), number(mark, "source")
        rids, data = short(" ".join(when["forward", step].rids), 12), {"step": step}
        if source not in at:
            row += 1
            about = f"step {step} is built on tokens from the host"
            cells[row, at[step]] = GridCell("stored", rids, "host", about, data=data)
            continue
        sample = when.get(("sample", source))
        ahead = (sample.end if sample else part.end) - mark.time
        early += ahead > 0
        about = f"step {step} is built on step {source}"
        about += f", {ms(ahead)} ms before its tokens are computed" * (ahead > 0)
        kind, below = ("promised", f"{ms(ahead)} ms") if ahead > 0 else ("resolved", "")
        data = {"source": source, "step": step}
        cells[row, at[step]] = GridCell(kind, rids, below, about, data=data)
        links.append(LaneLink("token", (row, at[source]), (row, at[step]), data=data))
    lost = [f"{word(mark, 'rid')} in step {number(mark, 'step')}"
            for mark in named(part, "wasted row") if number(mark, "step") in at]  # fmt: skip
    columns = [f"step {step}\n{when['forward', step].mode}" for step in at]
    grid = CellGrid([f"chain {chain + 1}" for chain in range(row + 1)], columns, cells, links)
    note = "a cell is a step and its requests; below it, the ms before its input is computed"
    title = f"lazy_chain: {early} of {len(at)} steps are built on arrays that are not computed yet"
    notes = [f"Wasted rows: {short(', '.join(lost), 90)}"] if lost else []
    return Scene(title, about_run(trace, shown), [Part("Steps", note, [grid])], LEGEND, notes)
