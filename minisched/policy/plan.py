"""Who runs in the next step: prompts, those who decode, or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..core import ForwardMode, Request
from ..memory import LeasePool
from .admission import PrefillManager
from .budget import hold_back
from .running import DecodeManager, Retraction
from .unified import UnifiedBudget

# -- Mixed chunks: running requests decode in the same step as a chunk of somebody's prompt --------


def can_mix(reqs: Sequence[Request]) -> bool:
    """Whether a batch of ``reqs`` may be mixed: none wants log-probabilities (as in SGLang)."""
    return not any(req.params.return_logprob for req in reqs)


def mix_with_running(
    prefill: list[tuple[Request, int]], running: Sequence[Request], leases: LeasePool
) -> list[Request]:
    """The running requests to add to a prefill batch, with an extend length of 1 each.

    SGLang ``schedule_batch.py:ScheduleBatch.mix_with_running``. Nobody, if one of the prompts wants
    log-probabilities, or if memory does not reach for all: then the prompts run alone, and the
    next decode step sees to it.
    """
    work = [*prefill, *((req, 1) for req in running)]
    need = sum(
        leases.pages_lacking(req.lease, req.computed_len + length)
        for req, length in work
        if req.lease is not None
    )
    if need > leases.available_pages or not can_mix([req for req, _ in work]):
        return []
    return list(running)


def prefix_len(req: Request, enable_overlap: bool) -> int:
    """Where a running request's one token goes: what the host knows, less 1 without overlap.

    The published delta, kept to be read: nothing in the package calls it, and a test holds it
    against every row that decodes in a mixed batch. With overlap the host knows one token less
    than the device has, so the position after the last known one is the one to compute; without,
    the last known token is. It equals ``computed_len`` whenever a batch of that kind is built.
    """
    return req.known_len + (0 if enable_overlap else -1)


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
