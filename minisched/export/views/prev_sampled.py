"""Previous-sampled scatter, step by step: which row goes on where, and by which path."""

from __future__ import annotations

from dataclasses import dataclass

from ...checks.overlap import forwards
from ...trace import Trace
from ..scene import CellGrid, GridCell, LaneLink, Part, Scene, about_run
from .marks import NothingToShow, lacking, many, named, number, short_end, word
from .steps import opening

# -- Where each step took its input from, row by row, read from a trace ----------------------------


@dataclass(frozen=True)
class StepInput:
    """One step's input: its requests, its path, and which row of the step before each goes on."""

    step: int
    rids: tuple[str, ...]
    path: str  # full, slice or scatter
    new: int  # tokens that came from the CPU
    sources: dict[str, int]  # request -> its row in the step before


def inputs_of(trace: Trace) -> list[StepInput]:
    """Every step that ran, in order.

    Raises:
        NothingToShow: a mark names more rows than its step has.
    """
    rids = {item.step: item.rids for item in forwards(trace)}
    found: list[StepInput] = []
    for mark in named(trace, "prev sampled"):
        step = number(mark, "step")
        if step not in rids:
            continue  # it never ran, or is cut off
        before = rids.get(step - 1, ())
        places = [int(part) for part in word(mark, "sources").split() if part.isdecimal()]
        if any(place >= len(before) for place in places):
            raise lacking(mark, "rows that the step before has")
        sources = {before[place]: place for place in places}
        found.append(StepInput(step, rids[step], word(mark, "path"), number(mark, "new"), sources))
    return found


MOST_STEPS = 14
LEGEND = {
    "prompt": "ids from the CPU: a prompt, or a token that the host has learnt",
    "decode": "-1 on the CPU: the token is in prev_sampled_token_ids",
    "arrow link": "from the row that the token was sampled in",
}
PATHS = {"full": "full H2D", "slice": "slice copy", "scatter": "scatter_"}


def scene(trace: Trace) -> Scene:
    """One column a step, one box a row of its batch.

    Raises:
        NothingToShow: no step ran, or the relay was another one.
    """
    part, shown = opening(trace, MOST_STEPS)
    if not (steps := inputs_of(part)):
        raise NothingToShow("the trace has no prev sampled mark: another relay was used.")
    cells, links = dict[tuple[int, int], GridCell](), list[LaneLink]()
    for at, item in enumerate(steps):
        for row, rid in enumerate(item.rids):
            source = item.sources.get(rid)
            kind, words = ("prompt", "") if source is None else ("decode", f"<{source}")
            about = f"step {item.step}, row {row}, {rid}: {LEGEND[kind]}"
            cells[row, at] = GridCell(kind, f"{short_end(rid, 8)}{words}", about=about,
                                  data={"step": item.step, "rid": rid})  # fmt: skip
            if source is not None and at:
                links.append(LaneLink("link", (source, at - 1), (row, at), data={"rid": rid}))
    rows = [f"row {row}" for row in range(max(len(item.rids) for item in steps))]
    columns = [f"{item.step}\n{PATHS.get(item.path, item.path)}" for item in steps]
    counts = {name: sum(item.path == path for item in steps) for path, name in PATHS.items()}
    note = "a column is a step, with its path; a<2: sampled in row 2 of the step before"
    new = sum(item.new for item in steps)
    kept = sum(len(item.sources) for item in steps)
    return Scene(
        f"prev_sampled: {kept} tokens stay on the device, {new} ids come from the CPU",
        about_run(trace, shown),
        [Part("Rows of input_ids", note, [CellGrid(rows, columns, cells, links)])],
        LEGEND,
        ["; ".join(f"{name}: {many(count, 'step')}" for name, count in counts.items())],
    )
