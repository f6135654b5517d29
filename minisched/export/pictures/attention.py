"""Who attends to what in a mixed batch: one rule for a chunk of a prompt and for a decode."""

from __future__ import annotations

from ...core import Request, ScheduleBatch
from ...devices.cost import SIM_COST
from ...devices.registry import open_device
from ...engine.frontend import Frontend
from ...loops.design import find_loop
from ...loops.run import make_engine
from ...models.hash import HashModel
from ...models.llama import equal_extents
from ...scheduler import SchedulerConfig
from ..recipes.recipe import tokens
from ..scene import CellGrid, Data, GridCell, Part, Scene
from ..scene_svg import to_svg
from ..views.marks import many

LEGEND = {
    "admitted": "attended to: its KV lies there from earlier steps",
    "prompt": "attended to: its KV is written in this step, by a chunk",
    "decode": "the same, by a decode",
}


def mixed_batch() -> ScheduleBatch:
    """The second chunk of a prompt beside two requests that decode, as the overlap loop ran it."""
    requests = [
        Request("a", range(4), tokens(9)),
        Request("b", range(20, 26), tokens(9)),
        Request("long", range(50, 66), tokens(2), arrival_time=30_000_000),
    ]
    config = SchedulerConfig(chunked_prefill_size=8, enable_mixed_chunk=True)
    frontend = Frontend(requests)
    engine = make_engine("overlap", open_device("sim"), HashModel(), config, frontend, SIM_COST)
    for batch in find_loop("overlap").start(engine):
        if batch and batch.rids[0] == "long" and batch.starts[0]:
            return batch
    raise AssertionError("the loop never stops")


def attention(batch: ScheduleBatch) -> Scene:
    """The batch's tokens from top to bottom, everybody's KV from left to right."""
    names, first, columns = list[str](), dict[str, int](), list[str]()
    for row in batch.rows:
        first[row.req.rid] = len(columns)
        columns += [f"{row.req.rid if not at else ''}\n{at}" for at in range(row.end)]
    cells = dict[tuple[int, int], GridCell]()
    for number, row in enumerate(batch.rows):
        kind = "prompt" if number < batch.num_extend_reqs else "decode"
        for position in range(row.start, row.end):
            about = f"{row.req.rid} at {position} attends to {position + 1} positions"
            data: Data = {"rid": row.req.rid, "at": position}
            for at in range(position + 1):
                look = "admitted" if at < row.start else kind
                place = len(names), first[row.req.rid] + at
                cells[place] = GridCell(look, about=about, data=data)
            names.append(f"{row.req.rid}, position {position}")
    calls = [
        f"{many(run.rows.stop - run.rows.start, 'request')} of {many(run.extend_len, 'token')}"
        for run in equal_extents([row.extend_len for row in batch.rows])
    ]
    return Scene(
        "mixed batch: each token attends to its own request alone, up to itself",
        f"step {batch.step} of the overlap loop: {len(batch.reqs)} requests, "
        f"{batch.num_tokens} tokens, one forward pass",
        [Part("One row for each token of the batch", "columns: whose KV, by position",
              [CellGrid(names, columns, cells)])],
        LEGEND,
        [
            "One rule for all: position p of a request attends to its positions 0 to p. A decode "
            "is a chunk of one token.",
            "So extents say where each request begins, not who is a prompt; the calls of "
            f"models/llama.py: {', then '.join(calls)}.",
        ],
    )  # fmt: skip


DRAWINGS = {"mixed_attention": lambda: to_svg(attention(mixed_batch()))}
