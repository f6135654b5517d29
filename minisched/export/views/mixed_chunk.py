"""Mixed chunks: requests decode beside a chunk of a prompt, within one limit of tokens."""

from __future__ import annotations

from ...trace import Trace
from .page import Page, about_run
from .step_bars import MOST_STEPS, NAMES, draw_step_bars, token_limit
from .steps import opening, steps_of


def view(trace: Trace) -> str:
    """Every step's tokens against the chunk size.

    Raises:
        NothingToShow: no step ran, or the trace does not say how many tokens they had.
    """
    part, shown = opening(trace, MOST_STEPS)
    page = Page("mixed_chunk: what each step computes", about_run(trace, shown))
    steps = steps_of(part)
    mixed = sum(step.mode == "mixed" for step in steps)
    page.heading("Tokens a step", f"{mixed} of {len(steps)} steps are mixed")
    limit = token_limit(trace)
    draw_step_bars(page, part, steps, limit)
    page.legend({**NAMES, "limit": f"{NAMES['limit']}: {limit} tokens"})
    return page.finish()
