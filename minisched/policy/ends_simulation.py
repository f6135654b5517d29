"""Who ends when, and whether memory suffices until then: admission where nothing is cached."""

from __future__ import annotations

from collections.abc import Iterable

from ..core import Request
from .prefill_budget import PrefillBudget

RESERVE_TOKENS = 1  # kept free for each request (SGLang ``IGNORE_EOS_RESERVE_TOKENS``)


class EndsSimulation:
    """Those who run and those who are about to, by the steps that each has left.

    SGLang ``schedule_policy.py:PrefillAdder.add_one_req_ignore_eos``, its ``req_states``. With each
    step everybody takes a token; who ends gives back what it holds.
    """

    def __init__(self, budget: PrefillBudget, reqs: Iterable[Request]) -> None:
        self.budget = budget
        states = filter(None, map(self._state, reqs))
        self.req_states = sorted(states, key=lambda state: state[0])  # tokens left, tokens held

    def insert(self, req: Request) -> None:
        """One more is to start; as in the original, nobody goes behind the last."""
        state = self._state(req)
        if state is None:
            return
        earlier = [left for left, _ in self.req_states if left < state[0]]
        last = max(0, len(self.req_states) - 1)
        self.req_states.insert(min(len(earlier), last), state)

    def all_fit(self, free: int) -> bool:
        """Whether ``free`` tokens suffice until the last has ended."""
        for at, (left, held) in enumerate(self.req_states):
            num_running = len(self.req_states) - at
            if free - left * num_running <= RESERVE_TOKENS * num_running:
                return False
            free += held
        return True

    def _state(self, req: Request) -> tuple[float, int] | None:
        left = req.params.max_new_tokens * self.budget.share(req) - len(req.output_ids)
        return (left, len(req.prompt) + len(req.output_ids)) if left > 0 else None
