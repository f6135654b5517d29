"""vLLM's policy: one token budget for everybody, those who run first, then those who wait."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import Lease, Request
from ..memory import LeasePool
from ..trace import Recorder
from ..trace.events import Value
from .admission import Plan, PrefillManager, Work
from .decode import DecodeManager
from .prefill_adder import AddReqResult, refuse
from .retraction import Retraction


@dataclass
class UnifiedBudget:
    """vLLM ``v1/core/sched/scheduler.py:schedule``: there is no prefill and no decode phase.

    Every request has tokens to compute, one or many; all take from one budget
    (``max_num_batched_tokens``), so chunks and decodes mix by themselves. Whoever runs gets at most
    what is left of it, and drafts beyond that are not computed (``num_scheduled_spec_tokens``).
    Each takes its pages as it is planned (``allocate_slots``), and may share them from then on.
    Nothing is kept back for the future: who runs out of pages preempts the newest, which recomputes
    everything later. All tokens of a newcomer must find memory, though its first step may compute
    less (``scheduler_reserve_full_isl``), and a chunk that finds none gives way itself. Who wants
    log-probabilities is mixed like everybody else; the rule against that is SGLang's.
    """

    budget: int
    decode: DecodeManager
    prefill: PrefillManager
    retraction: Retraction
    leases: LeasePool
    recorder: Recorder

    def schedule(self) -> Plan:
        """Prompts, or chunks of them, with tokens to compute of each; who decodes; their drafts."""
        num_retractions = self.retraction.num_retractions
        decodes, draft_lens = self._running()
        left = self.budget - len(decodes) - sum(draft_lens)
        if self.prefill.chunked_req or self.prefill.waiting_queue:
            self._mark("budget", left, mixed_decode_tokens=len(decodes))
        prompts = self._chunked(left)
        left -= sum(length for _, length in prompts)
        preempted = self.retraction.num_retractions > num_retractions
        if not (preempted or self.retraction.starved or self.prefill.chunked_req):
            prompts += self._waiting(left)
        else:
            self.prefill.skip("somebody was preempted or starves, or a prompt is in chunks")
        return prompts, decodes, draft_lens

    def _running(self) -> tuple[list[Request], list[int]]:
        """Those who decode, in the order of their admission, and the drafts that each may carry."""
        work: list[Request] = []
        draft_lens: list[int] = []
        left = self.budget
        self.retraction.starved = False
        for req in self.decode.schedule_next_batch():
            if not left:
                break
            if req.lease is None:
                continue  # preempted by an older one just now
            num_drafts = min(req.next_draft_len, left - 1)
            reach = req.reach(num_drafts)
            if self._make_room(req, self.leases.pages_lacking(req.lease, reach)):
                left -= 1 + num_drafts
                shared = req.device_len if self.prefill.cache.shares_outputs else 0
                self._take(req, req.lease, reach, shared)
                work.append(req)
                draft_lens.append(num_drafts)
            else:
                self.retraction.starved = True
        return work, draft_lens

    def _make_room(self, req: Request, need: int) -> bool:
        """Whether there are ``need`` pages, once the newest have been preempted for them."""
        chunked = self.prefill.chunked_req
        while (short := need - self.leases.available_pages) > 0:
            if short <= self.leases.pages_returning:
                return False  # they come back by themselves
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

    def _take(self, req: Request, lease: Lease, reach: int, end: int) -> None:
        """Let a planned row have the pages up to ``reach``, and share what it computes, to ``end``.

        A rule may want nothing to be shared as early as that.
        """
        self.leases.reserve(lease, reach)
        step = self.leases.launched_step + 1
        self.prefill.cache.cache_scheduled_req(req, lease, end, step)

    def _chunked(self, left: int) -> Work:
        """Go on with the one prompt that has started, as far as budget and memory go."""
        chunked = self.prefill.chunked_req
        if chunked is None or chunked.lease is None:
            return []
        req, lease = chunked, chunked.lease
        length = min(req.extend_len, left)
        end = req.computed_len + length
        if length <= 0 or not self._make_room(req, self.leases.pages_lacking(lease, end)):
            return []
        if length == req.extend_len:
            self.prefill.chunked_req = None
        self._compute(req, lease, length, left)
        return [(req, length)]

    def _waiting(self, left: int) -> Work:
        """Newcomers, for as long as there are budget, rows and pages."""
        work: Work = []
        if self.prefill.batch_is_full:
            return work
        for req in self.prefill.waiting_queue.in_order():
            if left <= 0:
                refuse(self.recorder, req, AddReqResult.OTHER, "the token budget", 1, 0)
            elif length := self._try_add(req, left):
                left -= length
                work.append((req, length))
        return work

    def _try_add(self, req: Request, left: int) -> int:
        """Open a lease for a waiting request; how many tokens to compute now, 0 if it must wait."""
        if not self.leases.table.available_size:
            refuse(self.recorder, req, AddReqResult.NO_TOKEN, "max_running_requests", 1, 0)
            self.prefill.mark_full()
            return 0
        match = self.prefill.cache.match_prefix(req)
        hit_pages = len(match.pages) if match else 0
        length = min(req.known_len - hit_pages * self._size, left)
        need = max(0, self.leases.allocator.pages_for(req.known_len) - hit_pages)
        need, free = need + self.leases.pages_to_lock(match), self.leases.available_pages
        if need > free:
            need, free = need * self._size, free * self._size
            refuse(self.recorder, req, AddReqResult.NO_TOKEN, "KV memory", need, free)
            self.prefill.mark_full()
            return 0
        lease = self.leases.open(match, req.rid)
        req.start(lease)
        self.prefill.start(req, length)
        self._compute(req, lease, length, left)
        return length

    def _compute(self, req: Request, lease: Lease, length: int, left: int) -> None:
        """Let so much of a prompt be computed in this step."""
        end = req.computed_len + length
        self._take(req, lease, end, end)
        self._mark("admit", left - length, rid=req.rid, hit_len=req.hit_len,
                   extend_len=length, is_chunked=length < req.extend_len)  # fmt: skip

    def _mark(self, name: str, left: int, **attrs: Value) -> None:
        """Record a moment of admission with what is left: tokens of memory and of the budget."""
        free = self.leases.available_pages * self._size
        self.recorder.mark(
            name, **attrs, rem_total=free, cur_rem=free, rem_input=left, rem_chunk=left
        )

    @property
    def _size(self) -> int:
        return self.leases.allocator.page_size
