"""Tokens of each step under one limit: mixed chunks, and vLLM's common budget.

Decode tokens and prompt tokens are stacked while their step runs, under the common limit. Below
them is the work for each request.
"""

from __future__ import annotations

from ...checks.history import many
from ...trace import Trace
from ..scene import Curve, Part, Scene, Series, about_run
from .marks import NothingToShow, named, number
from .steps import opening, requests_in, steps_of, work_lanes

MOST_STEPS, MOST_LANES = 60, 24
ORDER = ("decode", "wasted", "prompt", "again")  # from the bottom
LEGEND = {
    "decode": "one token for each request that decodes",
    "prompt": "prompt tokens",
    "again": "prompt tokens, computed again",
    "wasted": "wasted rows",
    "flag-head": "retraction",
    "end": "its last token is read: it ends",
}


def scene(trace: Trace) -> Scene:
    """Draw every step's tokens and the chunk size."""
    modes = [step.mode for step in steps_of(opening(trace, MOST_STEPS)[0])]
    title = (
        f"{modes.count('mixed')} of {len(modes)} steps compute a chunk beside decodes, which go on"
    )
    return draw(trace, f"mixed_chunk: {title}")


def unified(trace: Trace) -> Scene:
    """Draw every step's tokens and the budget; running requests come first."""
    steps, limit = steps_of(opening(trace, MOST_STEPS)[0]), limit_of(trace)
    most = max(sum(share.tokens for share in step.parts) for step in steps)
    of = f" of an allowed {limit}" if limit else ""
    return draw(trace, f"unified: prompts and decodes share one budget, at most {most}{of} tokens")


def draw(trace: Trace, title: str) -> Scene:
    """Draw the steps' tokens and the limit, and the requests."""
    part, shown = opening(trace, MOST_STEPS)
    steps, limit = steps_of(part), limit_of(trace)
    if any(share.tokens == 0 for step in steps for share in step.parts):
        raise NothingToShow(
            "the trace has no admit marks, so how many prompt tokens a step computed is unknown."
        )
    series = []
    for kind in ORDER:
        values = [at for step in steps for at in ((step.start, step.tokens(kind)), (step.end, 0))]
        if any(amount for _, amount in values):
            series.append(Series(kind, kind, values))
    if limit:
        series.append(Series(f"at most {many(limit, 'token')}", "line limit", [(0, limit)]))
    lanes = work_lanes(part, steps, requests_in(steps)[:MOST_LANES])
    return Scene(
        title,
        about_run(trace, shown),
        [
            Part("Tokens a step, by request", "numbers: tokens of a prompt",
                 [Curve(series, part.end, "tokens"), lanes]),
        ],
        LEGEND,
    )  # fmt: skip


def limit_of(trace: Trace) -> int:
    """Return the greatest number of tokens of a step with prompts; 0: there is no limit."""
    limits = (number(mark, "rem_chunk") + number(mark, "mixed_decode_tokens")
              for mark in named(trace, "budget") if number(mark, "rem_chunk") >= 0)  # fmt: skip
    return next(limits, 0)
