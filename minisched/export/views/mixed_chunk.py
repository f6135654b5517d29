"""Tokens a step, under one limit: mixed chunks, and vLLM's one budget for everybody.

A bar a step: its decode tokens and its prompt tokens, stacked, under the limit for both.
"""

from __future__ import annotations

from ...trace import Trace
from ..scene import Bar, Bars, LaneRow, Lanes, Part, Scene, about_run
from .marks import NothingToShow, many, named, number, short
from .steps import StepWork, opening, requests_in, retraction_flags, steps_of, work_of

MOST_STEPS, MOST_LANES = 60, 24
ORDER = ("decode", "wasted", "prompt", "again")  # from the bottom
MODES = {
    "extend": "prompts only", "decode": "decodes only", "mixed": "both",
    "target verify": "drafts are verified",
}  # fmt: skip
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
    modes = {step.mode for step in steps}
    letters = ", ".join(f"{mode[0].upper()}: {said}" for mode, said in MODES.items()
                        if mode in modes)  # fmt: skip
    rows = [LaneRow(short(rid, 12), work_of(steps, rid)) for rid in rids]
    return Scene(
        title,
        about_run(trace, shown),
        [
            Part("Tokens a step", letters,
                 [Bars([bar_of(step) for step in steps], "tokens", limit, is_upright=True)]),
            Part("What each step computes for whom", "numbers: tokens of a prompt",
                 [Lanes(rows, part.end, flags=retraction_flags(part, rids))]),
        ],
        {**LEGEND, "limit": f"the most that a step with prompts may have: {many(limit, 'token')}"},
    )  # fmt: skip


def bar_of(step: StepWork) -> Bar:
    """Those who decode first, then prompts, one box a request."""
    shares = sorted(step.parts, key=lambda share: ORDER.index(share.kind))
    return Bar(
        f"{step.step} {step.mode[:1].upper()}",
        [
            (
                share.kind, share.tokens,
                f"step {step.step} ({step.mode}), {share.rid}: {share.kind}, "
                f"{many(share.tokens, 'token')}",
                {"step": step.step, "rid": share.rid, "tokens": share.tokens},
            )
            for share in shares
        ],
        "  ".join(f"{share.rid} {share.tokens}" for share in shares),
    )  # fmt: skip
