"""Formulas of the rules, written a second time for the law *progress*: one budget, and the ratio.

``minisched fidelity`` compares all numbers of a rule with its original's code. These two need no
original, so each decision of a scheduler is compared with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isclose

from ..core import Request, Row
from ..scheduler import SchedulerConfig
from .history import many

START, LEAST, STEPS = 0.7, 0.14, 600  # SGLang: of the ratio at first, as a share, decode steps
AHEAD = 20  # decode steps that a retraction expects of each request


class ExpectedRatio:
    """The new token ratio of one configuration, and how decisions change it."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.start = min(START * config.schedule_conservativeness, 1.0)
        self.least = LEAST * self.start

    def decayed(self, ratio: float) -> float:
        """Return the ratio after a step of decodes."""
        lower = max(ratio - (self.start - self.least) / STEPS, self.least)
        return lower if ratio > self.least else ratio

    def estimated(self, kept: Iterable[Request]) -> float:
        """Return the ratio after a retraction, which keeps these requests."""
        reqs = list(kept)
        outputs = sum(len(req.output_ids) + AHEAD for req in reqs)
        return min(1.0, outputs / (1 + sum(req.params.max_new_tokens for req in reqs)))

    def wrong(
        self, before: float, now: float, expected: Sequence[float], step: int
    ) -> Iterator[str]:
        """Yield a sentence if the ratio is none of the expected values."""
        if not any(isclose(now, value) for value in expected):
            yield (
                f"the new token ratio is {now:.4f} after the decision on step {step}, and was "
                f"{before:.4f}, but its rule gives {expected[0]:.4f}"
            )


def wrong_cuts(prompts: Mapping[Request, Row], started: Request | None, left: int) -> Iterator[str]:
    """Yield the prompts of a step with one budget that compute another number of tokens.

    ``left`` is the budget for them. The prompt ``started`` before may compute fewer for lack of
    memory. ``admission.py`` judges prompts that have a budget of their own.
    """
    for req, row in prompts.items():
        rest, count = req.known_len - row.start, len(row.ids)
        most = min(rest, left)
        if count > most or (count < most and req is not started):
            yield (
                f"{req.rid} computes {many(count, 'token')} of its prompt in a step, but the rules "
                f"cut the {rest} that are left to {most}, because {left} of the budget are left"
            )
        left -= count
