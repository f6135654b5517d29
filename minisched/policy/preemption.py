"""A request of higher priority takes the place of running ones of lower priority."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import Request
from .prefill_budget import PrefillBudget


def preempt_to_schedule(
    req: Request, budget: PrefillBudget, running: Sequence[Request], threshold: int
) -> list[Request]:
    """Who has to go so that ``req`` can come: all that is needed, or nobody.

    SGLang ``schedule_policy.py:PrefillAdder.preempt_to_schedule``. Lowest priority first, the
    newest first among equals, and only those lower by more than ``threshold``. A request that has
    ended is not among ``running`` any more: its memory is on its way back already (SGLang #18694,
    #17797), and is waited for rather than taken from somebody else.
    """
    need = req.known_len + budget.new_tokens(req) + budget.page_size
    need -= budget.leases.pages_returning * budget.page_size
    short = need + 1 - budget.rem_total_tokens
    has_row = bool(budget.leases.table.available_size + len(budget.leases.returning))
    victims: list[Request] = []
    for victim in sorted(running, key=lambda running: (running.priority, -running.order)):
        if short <= 0 and has_row:
            break
        if req.priority - victim.priority <= threshold:
            return []
        victims.append(victim)
        given_back = budget.leases.pages_given_back(victim.lease) if victim.lease else 0
        short -= budget.reserve(victim) + given_back * budget.page_size
        has_row = True
    return victims if short <= 0 and has_row else []
