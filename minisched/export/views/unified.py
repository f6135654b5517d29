"""One budget of tokens a step: who runs comes first, who waits gets the rest (vLLM)."""

from __future__ import annotations

from ...trace import Trace
from .marks import many, named
from .page import Page, about_run
from .step_bars import MOST_STEPS, NAMES, draw_step_bars, steps_to_puml, token_limit, write_bars
from .steps import opening, steps_of
from .text_page import TextPage

TITLE = "unified: one token budget for whoever runs and whoever waits"


def view(trace: Trace) -> str:
    """Every step's tokens against the budget, and who was preempted for it.

    Raises:
        NothingToShow: no step ran, or the trace does not say how many tokens they had.
    """
    part, shown = opening(trace, MOST_STEPS)
    page = Page(TITLE, about_run(trace, shown))
    page.heading("Tokens a step", many(len(named(part, "retraction")), "retraction"))
    limit = token_limit(trace)
    draw_step_bars(page, part, steps_of(part), limit)
    page.legend({**NAMES, "limit": f"{NAMES['limit']}: {limit} tokens"})
    return page.finish()


def text(trace: Trace) -> str:
    """The same bars, a line a step.

    Raises:
        NothingToShow: as ``view``.
    """
    part, shown = opening(trace, MOST_STEPS)
    page = TextPage(TITLE, about_run(trace, shown))
    page.heading("Tokens a step", many(len(named(part, "retraction")), "retraction"))
    write_bars(page, part, steps_of(part), token_limit(trace))
    return page.finish()


def puml(trace: Trace) -> str:
    """A lane a request, with what each step computed for it, and who was preempted.

    Raises:
        NothingToShow: no step ran.
    """
    return steps_to_puml(TITLE, trace)
