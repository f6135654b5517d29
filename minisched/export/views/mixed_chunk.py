"""Tokens a step, under one limit: mixed chunks, and vLLM's one budget for everybody.

Decode tokens and prompt tokens, stacked while their step runs, under the limit for both.
"""

from __future__ import annotations

from ...checks.history import many
from ...trace import Trace
from ..scene import Curve, LaneRow, Lanes, Part, Scene, Series, about_run
from .marks import NothingToShow, named, number, short
from .steps import StepWork, opening, requests_in, retraction_flags, steps_of, work_of

MOST_STEPS, MOST_LANES = 60, 24
ORDER = ("decode", "wasted", "prompt", "again")  # from the bottom
LEGEND = {
    "decode": "one token for each request that decodes",
    "prompt": "prompt tokens",
    "again": "prompt tokens, computed again",
    "wasted": "wasted rows",
    "flag-head": "retraction",
}


def scene(trace: Trace) -> Scene:
    """Every step's tokens against the chunk size.

    Raises:
        NothingToShow: no step ran, or the trace does not say how many tokens they had.
    """
    return draw(trace, is_unified=False)


def unified(trace: Trace) -> Scene:
    """Every step's tokens against the budget: who runs comes first, who waits gets the rest.

    Raises:
        NothingToShow: no step ran, or the trace does not say how many tokens they had.
    """
    return draw(trace, is_unified=True)


def draw(trace: Trace, is_unified: bool) -> Scene:
    """The steps' tokens, and below them what was computed for whom over time."""
    part, shown = opening(trace, MOST_STEPS)
    steps = steps_of(part)
    if any(share.tokens == 0 for step in steps for share in step.parts):
        raise NothingToShow(
            "the trace has no admit marks, so how many prompt tokens a step computed is unknown."
        )
    limits = (number(mark, "rem_chunk") + number(mark, "mixed_decode_tokens")
              for mark in named(trace, "budget") if number(mark, "rem_chunk") >= 0)  # fmt: skip
    limit, rids = next(limits, 0), requests_in(steps)[:MOST_LANES]
    if is_unified:
        most = max(sum(share.tokens for share in step.parts) for step in steps)
        of = f" of {limit} allowed" if limit else ""
        title = f"unified: at most {most}{of} tokens a step, whoever they are for"
    else:
        mixed = sum(step.mode == "mixed" for step in steps)
        title = f"mixed_chunk: {mixed} of {len(steps)} steps compute a chunk beside decodes"
    curve = Curve(series_of(steps, limit), part.end, "tokens")
    rows = [LaneRow(short(rid, 12), work_of(steps, rid)) for rid in rids]
    return Scene(
        title,
        about_run(trace, shown),
        [
            Part("Tokens a step, and for whom", "numbers: tokens of a prompt",
                 [curve, Lanes(rows, part.end, flags=retraction_flags(part, rids))]),
        ],
        {**LEGEND, "line limit": f"a step with prompts has {many(limit, 'token')} at most"},
    )  # fmt: skip


def series_of(steps: list[StepWork], limit: int) -> list[Series]:
    """What there is of each kind while its step runs, decodes at the bottom, and the limit."""
    found = []
    for kind in ORDER:
        values = [
            change for step in steps for change in ((step.start, step.tokens(kind)), (step.end, 0))
        ]
        if any(amount for _, amount in values):
            found.append(Series(kind, kind, values))
    return found + [Series("limit", "line limit", [(0, limit)])] * bool(limit)
