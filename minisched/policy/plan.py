"""Who runs in the next step: prompts, those who decode, or both.

``RunFirst`` asks for one or the other first, as the rules say. SGLang runs prompts whenever one can
be admitted, with ``enable_mixed_chunk`` and those who decode beside them in one batch; vLLM takes
both from one budget (``unified.py``). What comes of it is a ``Plan``: nothing has advanced yet but
what admission holds, and the scheduler commits it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core import Request
from ..memory import LeasePool
from .admission import PrefillManager
from .budget import hold_back
from .rules import Rules
from .running import DecodeManager, Retraction
from .unified import UnifiedBudget

Work = list[tuple[Request, int]]


@dataclass(slots=True)
class Plan:
    """Prompts, with the tokens of each to compute, and those of whom one more is computed.

    ``draft_lens`` are the drafts that each of the latter may carry, [num_decodes], where a budget
    limits them; None: whatever ``Request.next_draft_len`` says.
    """

    prompts: Work
    decodes: list[Request]
    draft_lens: Sequence[int] | None = None


@dataclass
class RunFirst:
    """The rule that chooses between prompts and decodes (``Rules.run_first``).

    ``prefill``: prompts whenever one can be admitted (SGLang ``get_next_batch_to_run``), with
    ``enable_mixed_chunk`` those who run beside them. ``decode``: prompts only while nobody can
    decode (MindIE's ``DecidePDPriority`` under pressure). ``unified``: both from one budget (vLLM).
    """

    rules: Rules
    enable_mixed_chunk: bool
    decode: DecodeManager
    prefill: PrefillManager
    retraction: Retraction
    leases: LeasePool
    unified: UnifiedBudget

    def plan(self) -> Plan:
        """The next step's work; retracts whoever has to give way."""
        first, num_retractions = self.rules.run_first, self.retraction.num_retractions
        plan = Plan([], [])
        if first == "unified":
            plan = Plan(*self.unified.schedule())
        elif first == "decode" and (decodes := self._decodes()):
            plan.decodes = decodes
            self._hold_back("those who decode run first")
        else:
            if self.retraction.starved:
                self._hold_back("a decode step waits for memory that is on its way back")
            elif self.prefill.may_start:
                plan = self._prompts()
            if not plan.prompts:
                plan.decodes = self._decodes()
        if plan.prompts or plan.decodes or self.retraction.num_retractions == num_retractions:
            return plan
        stays_empty = first == "unified" and self.rules.plans_again == "no"
        return plan if stays_empty else self.plan()  # there may be room now for whom they gave way

    def _decodes(self) -> list[Request]:
        return self.retraction.make_room(self.decode.schedule_next_batch())

    def _prompts(self) -> Plan:
        """Those that can be admitted, and beside them those who decode, if batches are mixed."""
        running = list(self.decode.running_reqs)
        mixed = self.decode.schedule_next_batch() if self.enable_mixed_chunk else []
        num_mixed = len(running) if self.enable_mixed_chunk else 0  # whether they decode or not
        prompts = self.prefill.schedule_next_batch(
            running, num_mixed, lambda victim: self.retraction.retract(victim, "priority")
        )
        still_there = [req for req in mixed if req.lease is not None] if prompts else []
        decodes = mix_with_running(prompts, still_there, self.leases)
        if decodes:
            self.prefill.mark_open()
        elif still_there:
            self.retraction.recorder.mark("not mixed", running=len(still_there))
        return Plan(prompts, decodes)

    def _hold_back(self, reason: str) -> None:
        hold_back(self.retraction.recorder, self.prefill.waiting_queue.first(), reason)


def mix_with_running(prompts: Work, running: list[Request], leases: LeasePool) -> list[Request]:
    """The running requests to add to a prefill batch, with an extend length of 1 each.

    SGLang ``schedule_batch.py:ScheduleBatch.mix_with_running``. Nobody, if any of all these wants
    log-probabilities, or if memory does not reach for all: then the prompts run alone, and the
    next decode step sees to it.
    """
    work = [*prompts, *((req, 1) for req in running)]
    need = sum(
        leases.pages_lacking(req.lease, req.computed_len + length)
        for req, length in work
        if req.lease is not None
    )
    wants_logprobs = any(req.params.return_logprob for req, _ in work)
    return [] if need > leases.available_pages or wants_logprobs else running
