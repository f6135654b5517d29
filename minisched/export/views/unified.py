"""One budget of tokens a step: who runs comes first, who waits gets the rest (vLLM)."""

from __future__ import annotations

from ...trace import Trace
from .marks import named
from .page import Page, about_run
from .step_bars import MOST_STEPS, NAMES, draw_step_bars, token_limit
from .steps import opening, steps_of
from .wording import many


def view(trace: Trace) -> str:
    """Every step's tokens against the budget, and who was preempted for it.

    Raises:
        NothingToShow: no step ran, or the trace does not say how many tokens they had.
    """
    part, shown = opening(trace, MOST_STEPS)
    page = Page("unified: one token budget for whoever runs and whoever waits",
                about_run(trace, shown))  # fmt: skip
    preempted = len(named(part, "retraction"))
    page.heading("Tokens a step", many(preempted, "preemption"))
    limit = token_limit(trace)
    draw_step_bars(page, part, steps_of(part), limit)
    page.legend({**NAMES, "limit": f"{NAMES['limit']}: {limit} tokens"})
    return page.finish()
