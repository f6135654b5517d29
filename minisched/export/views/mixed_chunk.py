"""Mixed chunks: requests decode beside a chunk of a prompt, within one limit of tokens.

A bar a step: its decode tokens and its prompt tokens, stacked, under the limit for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    return scene_of_steps(trace, finding)


def finding(steps: list[StepWork], limit: int) -> str:
    """How many steps are mixed."""
    mixed = sum(step.mode == "mixed" for step in steps)
    return f"mixed_chunk: {mixed} of {len(steps)} steps compute a chunk beside decodes"


def scene_of_steps(trace: Trace, finding: Callable[[list[StepWork], int], str]) -> Scene:
    """Every step's tokens under the limit, and what was computed for whom over time.

    ``finding`` is told the steps and the limit (-1: none), and gives the title.

    Raises:
        NothingToShow: no step ran, or the trace does not say how many tokens they had.
    """
    part, shown = opening(trace, MOST_STEPS)
    steps = steps_of(part)
    if any(share.tokens == 0 for step in steps for share in step.parts):
        raise NothingToShow(
            "the trace has no admit marks, so how many prompt tokens a step computed is unknown."
        )
    limit, rids = token_limit(trace), requests_in(steps)[:MOST_LANES]
    bars = Bars([bar_of(step) for step in steps], "tokens", max(0, limit), is_upright=True)
    rows = [LaneRow(short(rid, 12), work_of(steps, rid)) for rid in rids]
    lanes = Lanes(rows, part.end, flags=retraction_flags(part, rids))
    return Scene(
        finding(steps, limit),
        about_run(trace, shown),
        [
            Part("Tokens a step", modes_of(steps), [bars]),
            Part("What each step computes for whom", "numbers: tokens of a prompt", [lanes]),
        ],
        {**LEGEND, "limit": f"the most that a step with prompts may have: {many(limit, 'token')}"},
    )


def modes_of(steps: Sequence[StepWork]) -> str:
    """What the letter behind a step's number means: the modes that occur."""
    modes = {step.mode for step in steps}
    return ", ".join(f"{mode[0].upper()}: {said}" for mode, said in MODES.items() if mode in modes)


def token_limit(trace: Trace) -> int:
    """The most tokens of a step, as the first admission round says; -1: no limit is known."""
    for mark in named(trace, "budget"):
        if number(mark, "rem_chunk") >= 0:
            return number(mark, "rem_chunk") + number(mark, "mixed_decode_tokens")
    return -1


def bar_of(step: StepWork) -> Bar:
    """Those who decode first, then prompts, one box a request."""
    shares = sorted(step.parts, key=lambda share: ORDER.index(share.kind))
    who = "  ".join(f"{share.rid} {share.tokens}" for share in shares)
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
        who,
    )  # fmt: skip
