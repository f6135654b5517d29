"""vLLM's policy: one token budget for everybody, those who run first, then those who wait."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import Request
from ..memory import LeasePool
from ..trace import Recorder
from ..trace.events import Value
from .decode import DecodeManager
from .prefill import PrefillManager
from .prefill_budget import AddReqResult
from .refusal import hold_back, refuse
from .retraction import Retraction

Work = list[tuple[Request, int]]


@dataclass
class UnifiedBudget:
    """vLLM ``v1/core/sched/scheduler.py:schedule``: there is no prefill and no decode phase.

    Every request has tokens to compute, one or many; all take from one budget
    (``max_num_batched_tokens``), so chunks and decodes mix by themselves. Whoever runs gets at most
    what is left of it, and drafts beyond that are not computed (``num_scheduled_spec_tokens``).
    Nothing is kept back for the future: who runs out of pages preempts the newest, which recomputes
    everything later. Who wants log-probabilities is mixed like everybody else; the rule against
    that is SGLang's.
    """

    budget: int
    decode: DecodeManager
    prefill: PrefillManager
    retraction: Retraction
    leases: LeasePool
    recorder: Recorder

    def schedule(self) -> tuple[Work, list[Request], list[int]]:
        """Prompts, or chunks of them, with tokens to compute of each; who decodes; their drafts."""
        num_retractions = self.retraction.num_retractions
        decodes, draft_lens, promised = self._running()
        left = self.budget - len(decodes) - sum(draft_lens)
        if self.prefill.chunked_req or self.prefill.waiting_queue:
            self._mark("budget", promised, left, mixed_decode_tokens=len(decodes))
        prompts = self._chunked(left, promised)
        for req, length in prompts:
            left, promised = left - length, promised + self._pages(req, length)
        preempted = self.retraction.num_retractions > num_retractions
        if not (preempted or self.retraction.starved or self.prefill.chunked_req):
            prompts += self._waiting(left, promised)
        else:
            reason = "somebody was preempted or starves, or a prompt is in chunks"
            hold_back(self.recorder, self.prefill.waiting_queue.first(), reason)
        return prompts, decodes, draft_lens

    def _running(self) -> tuple[list[Request], list[int], int]:
        """Those who decode, oldest first; drafts that each may carry; the pages they will take."""
        work: list[Request] = []
        draft_lens: list[int] = []
        promised, left = 0, self.budget
        self.retraction.starved = False
        for req in self.decode.schedule_next_batch():
            if not left:
                break
            if req.lease is None:
                continue  # preempted by an older one just now
            num_drafts = min(req.next_draft_len, left - 1)
            need = self.leases.pages_lacking(req.lease, req.reach_with(num_drafts))
            if self._make_room(req, promised + need):
                promised, left = promised + need, left - 1 - num_drafts
                work.append(req)
                draft_lens.append(num_drafts)
            else:
                self.retraction.starved = True
        return work, draft_lens, promised

    def _make_room(self, req: Request, need: int) -> bool:
        """Whether there are ``need`` pages, once the newest have been preempted for them."""
        chunked = self.prefill.chunked_req
        while (short := need - self.leases.available_pages) > 0:
            if short <= self.leases.pages_returning:
                return False  # they come back by themselves
            newest = self.decode.running_reqs[-1]
            if chunked is not None and chunked.req.lease is not None:
                newest = chunked.req
            elif self.decode.running_reqs == [req]:
                self.retraction.wait([req])
                return False
            self.retraction.retract(newest, "unified")
            if newest is req:
                return False
        return True

    def _chunked(self, left: int, promised: int) -> Work:
        """Go on with the one prompt that has started, as far as budget and memory go."""
        chunked = self.prefill.chunked_req
        if chunked is None or chunked.req.lease is None:
            return []
        req = chunked.req
        assert req.lease is not None
        pages = self.leases.available_pages - promised + len(req.lease.pages)
        room = pages * self._size - req.computed_len
        length = min(req.extend_len, left, room)
        if length <= 0:
            return []
        if length == req.extend_len:
            self.prefill.chunked_req = None
        self._mark_admit(req, length, promised, left)
        return [(req, length)]

    def _waiting(self, left: int, promised: int) -> Work:
        """Newcomers, for as long as there are budget, rows and pages."""
        work: Work = []
        if self.prefill.batch_is_full:
            return work
        for req in self.prefill.waiting_queue.in_order():
            if left <= 0:
                refuse(self.recorder, req, AddReqResult.OTHER, "the token budget", 1, 0)
            elif length := self._try_add(req, left, promised):
                left, promised = left - length, promised + self._pages(req, length)
                work.append((req, length))
        return work

    def _try_add(self, req: Request, left: int, promised: int) -> int:
        """Open a lease for a waiting request; how many tokens to compute now, 0 if it must wait."""
        if not self.leases.table.available_size:
            refuse(self.recorder, req, AddReqResult.NO_TOKEN, "max_running_requests", 1, 0)
            self.prefill.mark_full()
            return 0
        lease = self.leases.open(self.prefill.cache.match_prefix(req), req.rid)
        length = min(req.known_len - lease.settled_len, left)
        free = self.leases.available_pages - promised
        need = self.leases.pages_lacking(lease, lease.settled_len + length)
        if need > free:
            self.leases.close(lease)
            need, free = need * self._size, free * self._size
            refuse(self.recorder, req, AddReqResult.NO_TOKEN, "KV memory", need, free)
            self.prefill.mark_full()
            return 0
        req.start(lease)
        self.prefill.start(req, length)
        self._mark_admit(req, length, promised, left)
        return length

    def _mark_admit(self, req: Request, length: int, promised: int, left: int) -> None:
        """Record an admission, and what it leaves."""
        promised += self._pages(req, length)
        self._mark("admit", promised, left - length, rid=req.rid, hit_len=req.hit_len,
                   extend_len=length, is_chunked=length < req.extend_len)  # fmt: skip

    def _mark(self, name: str, promised: int, left: int, **attrs: Value) -> None:
        """Record a moment of admission with what is left: tokens of memory and of the budget."""
        free = (self.leases.available_pages - promised) * self._size
        self.recorder.mark(
            name, **attrs, rem_total=free, cur_rem=free, rem_input=left, rem_chunk=left
        )

    @property
    def _size(self) -> int:
        return self.leases.allocator.page_size

    def _pages(self, req: Request, length: int) -> int:
        """Pages that ``length`` more positions take."""
        assert req.lease is not None
        return self.leases.pages_lacking(req.lease, req.computed_len + length)
