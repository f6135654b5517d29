"""vLLM's answers: one token budget for all requests, first the running, then the waiting ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..core import Request
from ..memory import LeasePool
from ..trace import Recorder
from .admission import Plan, PrefillManager
from .decode import DecodeManager
from .nano_vllm import Prompt
from .prefill_adder import PrefillAdder
from .retraction import Retraction
from .rules import Deliberate, Rules

# -- The answers, in words, and those of the original that are not taken on purpose ----------------

RULES = Rules(
    run_first="unified",
    ask_again="every_step",
    too_many_tokens="refused",
    prefix_cache="blocks",
    prompt_pages="scheduled",
    output_pages="running",
    retracted_waits="old_place",
    evicts="lacking",
    waiting_prefixes="stale",
)
DELIBERATE: Mapping[str, Deliberate] = {}


class Planned(Prompt):
    """Reserve nothing and take pages as a prompt is planned: the next one may share them."""

    def charge(self, adder: PrefillAdder, req: Request, extend_len: int) -> None:
        """Take the pages of what this step computes."""
        assert req.lease is not None
        end = req.computed_len + extend_len
        adder.cache.take_scheduled(req, req.lease, end, end)


class PlannedRest(Planned):
    """Reserve the pages of all remaining tokens (TensorRT-LLM ``GUARANTEED_NO_EVICT``).

    ``scheduler/scheduler.py:NoEvictScheduledBlocksManager``: no request is retracted.
    """

    def kept_for(self, adder: PrefillAdder, req: Request) -> float:
        """Return the tokens of the pages that a running request may still take.

        A retiring one, with its last step launched, takes no page any more.
        """
        is_retiring = req.device_len >= req.max_device_len
        return 0 if is_retiring else adder.lacking_tokens(req, req.max_device_len)

    def total_tokens(self, adder: PrefillAdder, req: Request, extend_len: int) -> int:
        """Return the tokens of all pages of a new request, prompt and outputs."""
        return adder.ceil_paged_tokens(extend_len + self.new_tokens(req))

    def fits(self, adder: PrefillAdder, req: Request, extend_len: int, to_lock: int) -> bool:
        """Return whether they are left."""
        return self.total_tokens(adder, req, extend_len) <= adder.rem_total_tokens - to_lock

    def charge(self, adder: PrefillAdder, req: Request, extend_len: int) -> None:
        """Take the pages of what this step computes, and reserve the others."""
        super().charge(adder, req, extend_len)
        adder.rem_total_token_offset += adder.lacking_tokens(req, req.max_device_len)


class BudgetAdder(PrefillAdder):
    """A batch of prompts next to decodes, which have taken their part of the budget already."""

    def spent(self) -> tuple[str, int]:
        """Return the one limit and what is left of it."""
        return "the token budget", self.rem_input_tokens


def one_token(req: Request, left: int) -> tuple[int, int]:
    """Return the tokens of a decoding request, and the positions that it needs memory for."""
    return 1, req.device_len


@dataclass
class UnifiedBudget:
    """One budget without phases (vLLM ``v1/core/sched/scheduler.py:schedule``).

    - Each request has tokens to compute, one or many, and takes them from one budget
      (``max_num_batched_tokens``), so chunks and decodes mix.
    - Pages are taken while a step is planned (``allocate_slots``), and may be shared from then on.
    - Nothing is reserved: a request without pages preempts the newest, which is recomputed later.
      With ``reserves=rest`` (TensorRT-LLM) all is reserved, and no request is preempted.
    - A new request needs pages for all of its tokens, though its first step may compute fewer
      (``scheduler_reserve_full_isl``). A chunk without pages is preempted itself.
    - Requests with log-probabilities are mixed, too.
    """

    budget: int
    decode: DecodeManager
    prefill: PrefillManager
    retraction: Retraction
    leases: LeasePool
    recorder: Recorder
    wanted: Callable[[Request, int], tuple[int, int]] = one_token

    def schedule(self) -> Plan:
        """Return the prompts or chunks with their tokens, and the decodes."""
        prefill, num_retractions = self.prefill, self.retraction.num_retractions
        decodes, left = self._running()
        chunked, queue = prefill.chunked_req, prefill.waiting_queue
        if chunked is None and not queue:
            return [], decodes
        adder = BudgetAdder(
            self.leases, prefill.cache, self.recorder, self.decode.running_reqs, 0.0, left, left,
            reserve=prefill.reserve, chunks=prefill.chunks,
        )  # fmt: skip
        self.recorder.mark("budget", mixed_decode_tokens=len(decodes), **adder.remains())
        if chunked is not None and left > 0:
            end = chunked.computed_len + min(chunked.extend_len, left)
            if self._make_room(chunked, end):
                prefill.go_on(adder)
        preempted = self.retraction.num_retractions > num_retractions
        if preempted or self.retraction.starved or prefill.chunked_req:
            prefill.skip("somebody was preempted or starves, or a prompt is in chunks")
        elif prefill.may_start:
            prefill.admit(queue.in_order(), adder)
        return adder.can_run_list, decodes

    def _running(self) -> tuple[list[Request], int]:
        """Return the decodes in the order of their admission, and what is left of the budget."""
        work: list[Request] = []
        left = self.budget
        self.retraction.starved = False
        for req in self.decode.schedule_next_batch():
            if not left:
                break
            if req.lease is None:
                continue  # preempted by an older one just now
            num_tokens, reach = self.wanted(req, left)
            if self._make_room(req, reach):
                left -= num_tokens
                shared = req.device_len if self.prefill.cache.shares_outputs else 0
                self.prefill.cache.take_scheduled(req, req.lease, reach, shared)
                work.append(req)
            else:
                self.retraction.starved = True
        return work, left

    def _make_room(self, req: Request, length: int) -> bool:
        """Return whether ``req`` can hold ``length`` positions, after preempting the newest."""
        assert req.lease is not None
        chunked, need = self.prefill.chunked_req, self.leases.pages_lacking(req.lease, length)
        while (short := need - self.leases.available_pages) > 0:
            if short <= self.leases.pages_returning:
                return False  # they are released without a preemption
            if chunked is not None and chunked.lease is not None:
                newest = chunked
            elif list(self.decode.running_reqs) == [req]:
                self.retraction.wait([req])
                return False
            else:
                newest = next(reversed(self.decode.running_reqs))
            self.retraction.retract(newest, "unified")
            if newest is req:
                return False
        return True
