"""Who runs in the next step: prompts, those who decode, or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..core import ForwardMode, Request
from ..memory import LeasePool
from .decode import DecodeManager
from .mixed_chunk import mix_with_running
from .prefill import PrefillManager
from .refusal import hold_back
from .retraction import Retraction
from .unified import UnifiedBudget

Work = list[tuple[Request, int]]


class Plan(NamedTuple):
    """Prompts, with the tokens of each to compute, and those of whom one more is computed.

    ``draft_lens`` are the drafts that each of the latter may carry, [num_decodes], where a budget
    limits them; None: whatever ``Request.next_draft_len`` says.
    """

    prompts: Work
    decodes: list[Request]
    draft_lens: Sequence[int] | None = None

    @property
    def mode(self) -> ForwardMode:
        """What a batch of it is."""
        if self.prompts and self.decodes:
            return ForwardMode.MIXED
        if self.prompts:
            return ForwardMode.EXTEND
        return ForwardMode.DECODE if self.decodes else ForwardMode.IDLE


@dataclass
class RunFirst:
    """The rule that chooses between prompts and decodes.

    ``prefill``: prompts whenever one can be admitted (SGLang ``get_next_batch_to_run``), with
    ``enable_mixed_chunk`` those who run beside them. ``decode``: prompts only while nobody can
    decode (MindIE's ``DecidePDPriority`` under pressure). ``unified``: both from one budget (vLLM).
    """

    rule: str
    enable_mixed_chunk: bool
    decode: DecodeManager
    prefill: PrefillManager
    retraction: Retraction
    leases: LeasePool
    unified: UnifiedBudget
    plans_again: str = "yes"  # policy/rules.py

    def plan(self) -> Plan:
        """The next step's work; retracts whoever has to give way."""
        num_retractions = self.retraction.num_retractions
        plan = self._choose()
        has_preempted = self.retraction.num_retractions > num_retractions
        stays_empty = self.rule == "unified" and self.plans_again == "no"
        if not any(plan) and has_preempted and not stays_empty:
            return self.plan()  # there may be room now for whom they gave way to
        return plan

    def _choose(self) -> Plan:
        if self.rule == "unified":
            return Plan(*self.unified.schedule())
        if self.rule == "decode" and (decodes := self._decodes()):
            self._hold_back("those who decode run first")
            return Plan([], decodes)
        if self.retraction.starved:
            self._hold_back("a decode step waits for memory that is on its way back")
        elif (plan := self._prompts()).prompts:
            return plan
        return Plan([], self._decodes())

    def _hold_back(self, reason: str) -> None:
        hold_back(self.retraction.recorder, self.prefill.waiting_queue.first(), reason)

    def _decodes(self) -> list[Request]:
        ready = self.decode.schedule_next_batch()
        return self.retraction.make_room(ready)

    def _prompts(self) -> Plan:
        if not self.prefill.may_start:
            return Plan([], [])
        running = self.decode.running_reqs
        mixed = self.decode.schedule_next_batch() if self.enable_mixed_chunk else []
        num_mixed = len(running) if self.enable_mixed_chunk else 0  # whether they decode or not
        prompts = self.prefill.schedule_next_batch(
            running, num_mixed, lambda victim: self.retraction.retract(victim, "priority")
        )
        if not prompts:
            return Plan([], [])
        still_there = [req for req in mixed if req.lease is not None]
        decodes = mix_with_running(prompts, still_there, self.leases)
        if decodes:
            self.prefill.mark_open()
        elif still_there:
            self.retraction.recorder.mark("not mixed", running=len(still_there))
        return Plan(prompts, decodes)
