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
from ..scene_svg import style_of
from ..views.page import EDGE, LEFT, Page, line, rect, svg_text

CELL, ROW, GAP = 16.0, 20.0, 22.0  # pixels: a position, a row, between two requests
NAMES = {
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


def attention(batch: ScheduleBatch) -> str:
    """The batch's tokens from top to bottom, everybody's KV from left to right, as an SVG."""
    page = Page(
        "mixed batch: who attends to what",
        f"step {batch.step} of the overlap loop: {len(batch.reqs)} requests, "
        f"{batch.num_tokens} tokens, one forward pass",
    )
    page.heading("One row for each token of the batch", "a token attends to its own request alone")
    page.top += 24
    lefts, x = dict[str, float](), LEFT + 24.0
    for row in batch.rows:
        lefts[row.req.rid] = x
        page.add(svg_text(x, page.top, f"KV of {row.req.rid}", "small"))
        x += row.end * CELL + GAP
    page.top += 8
    top = page.top
    for row in batch.rows:
        kind = "prompt" if row in batch.rows[: batch.num_extend_reqs] else "decode"
        left = lefts[row.req.rid]
        for position in range(row.start, row.end):
            page.add(svg_text(20, page.top + 14, f"{row.req.rid}, position {position}", "small"))
            new = position + 1 - row.start
            about = f"{row.req.rid} at {position} attends to {position + 1} positions"
            data: dict[str, str | int] = {"rid": row.req.rid, "at": position}
            if row.start:
                page.add(rect("admitted", left, page.top + 2, row.start * CELL, 15, about, **data))
            begin = left + row.start * CELL
            page.add(rect(kind, begin, page.top + 2, new * CELL, 15, about, **data))
            page.top += ROW
    for run in equal_extents([row.extend_len for row in batch.rows]):
        above, below = top + run.tokens.start * ROW + 3, top + run.tokens.stop * ROW - 3
        page.add(line("line", EDGE - 150, above, EDGE - 150, below))
        count = run.rows.stop - run.rows.start
        whose = "1 request" if count == 1 else f"{count} requests"
        words = f"one call: {whose}, {run.extend_len} each" if count > 1 else (
            f"one call: {whose}, {run.extend_len} tokens"
        )  # fmt: skip
        page.add(svg_text(EDGE - 142, (above + below) / 2 + 4, words, "small"))
    page.legend(NAMES)
    page.notes(
        "One rule for all: position p of a request attends to its positions 0 to p. A decode is a "
        "chunk of one token.",
        "So extents say where each request begins, not who is a prompt. On the right: the calls "
        "of models/llama.py.",
    )
    page.add(style_of("".join(page.drawn)))
    return page.finish()


DRAWINGS = {"mixed_attention": lambda: attention(mixed_batch())}
