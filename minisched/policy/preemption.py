"""A request of higher priority takes the place of running ones of lower priority."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import Request
from .prefill_budget import CLIP_MAX_NEW_TOKENS, PrefillBudget


def preempt_to_schedule(
    req: Request, budget: PrefillBudget, running: Sequence[Request], threshold: int
) -> list[Request]:
    """Who has to go so that ``req`` gets a row: as many as free the tokens that it asks for.

    SGLang ``schedule_policy.py:PrefillAdder.preempt_to_schedule``, which it asks where rows are
    lacking, and nothing else. Lowest priority first, the newest first among equals, and only those
    lower by more than ``threshold``; nobody, if they would not do. What counts of a prompt is what
    was to be computed when it was asked last, which is nothing for one that never was; of a victim
    only what was kept back for it. A row on its way back is waited for.
    """
    if budget.leases.returning:
        return []
    short = req.asked_len + min(req.params.max_new_tokens, CLIP_MAX_NEW_TOKENS)
    short_of: float = short - budget.rem_total_tokens
    victims: list[Request] = []
    for victim in in_turn(running):
        if req.priority - victim.priority <= threshold:
            break
        victims.append(victim)
        short_of -= budget.reserve(victim)
        if short_of <= 0:
            break
    return victims if short_of <= 0 else []


def preempt_for_memory(
    req: Request, budget: PrefillBudget, running: Sequence[Request], threshold: int
) -> list[Request]:
    """Who has to go so that ``req`` can come: all that is needed, or nobody.

    The same order and threshold, but asked for want of memory, too, and with all that a victim
    gives back. A request that has ended is not among ``running`` any more: its memory is on its way
    back already (SGLang #18694, #17797), and is waited for rather than taken from somebody else.
    """
    need = req.known_len + budget.new_tokens(req) + budget.page_size
    need -= budget.leases.pages_returning * budget.page_size
    short = need + 1 - budget.rem_total_tokens
    has_row = bool(budget.leases.table.available_size + len(budget.leases.returning))
    victims: list[Request] = []
    for victim in in_turn(running):
        if short <= 0 and has_row:
            break
        if req.priority - victim.priority <= threshold:
            return []
        victims.append(victim)
        given_back = budget.leases.pages_given_back(victim.lease) if victim.lease else 0
        short -= budget.reserve(victim) + given_back * budget.page_size
        has_row = True
    return victims if short <= 0 and has_row else []


def in_turn(running: Sequence[Request]) -> list[Request]:
    """Who makes way first: the lowest priority, and of these whoever came to wait last."""
    return sorted(running, key=lambda running: (running.priority, -running.order))
