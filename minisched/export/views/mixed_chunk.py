"""Mixed chunks: requests decode beside a chunk of a prompt, within one limit of tokens."""

from __future__ import annotations

from ...trace import Trace
from .page import Page, about_run
from .step_bars import MOST_STEPS, NAMES, draw_step_bars, steps_to_puml, token_limit, write_bars
from .steps import StepWork, opening, steps_of
from .text_page import TextPage

TITLE = "mixed_chunk: what each step computes"


def view(trace: Trace) -> str:
    """Every step's tokens against the chunk size.

    Raises:
        NothingToShow: no step ran, or the trace does not say how many tokens they had.
    """
    part, shown = opening(trace, MOST_STEPS)
    page = Page(TITLE, about_run(trace, shown))
    steps = steps_of(part)
    page.heading("Tokens a step", _mixed(steps))
    limit = token_limit(trace)
    draw_step_bars(page, part, steps, limit)
    page.legend({**NAMES, "limit": f"{NAMES['limit']}: {limit} tokens"})
    return page.finish()


def text(trace: Trace) -> str:
    """The same bars, a line a step.

    Raises:
        NothingToShow: as ``view``.
    """
    part, shown = opening(trace, MOST_STEPS)
    page, steps = TextPage(TITLE, about_run(trace, shown)), steps_of(part)
    page.heading("Tokens a step", _mixed(steps))
    write_bars(page, part, steps, token_limit(trace))
    return page.finish()


def puml(trace: Trace) -> str:
    """A lane a request, with what each step computed for it.

    Raises:
        NothingToShow: no step ran.
    """
    return steps_to_puml(TITLE, trace)


def _mixed(steps: list[StepWork]) -> str:
    return f"{sum(step.mode == 'mixed' for step in steps)} of {len(steps)} steps are mixed"
