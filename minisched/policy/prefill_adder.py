"""Puts prompts into a batch, one after the other, and records why the next one does not fit."""

from __future__ import annotations

from ..core import Lease, Request
from ..memory import LeasePool, PrefixCache
from ..trace import Recorder
from .ends_simulation import EndsSimulation
from .prefill_budget import AddReqResult, PrefillBudget
from .refusal import refuse


class PrefillAdder:
    """One prefill batch in the making (SGLang ``schedule_policy.py:PrefillAdder``)."""

    def __init__(
        self, budget: PrefillBudget, leases: LeasePool, cache: PrefixCache, recorder: Recorder
    ) -> None:
        self.budget = budget
        self.leases = leases
        self.cache = cache
        self.recorder = recorder
        self.can_run_list: list[tuple[Request, int]] = []  # with the tokens to compute now
        self.has_chunk = False  # one of them is cut
        self.ends: EndsSimulation | None = None  # made for the first who ignores EOS

    def add_chunked_req(self, req: Request) -> bool:
        """Go on with a prompt that has started; whether it is still not done after this.

        It goes on even with no memory to spare, as far as there is any: what it holds comes back
        only once it is done.
        """
        rem = self.budget.next_chunk()
        wanted = req.extend_len if rem is None else min(req.extend_len, rem)
        extend_len = max(0, min(wanted, self._room(req)))
        if extend_len:
            self._add(req, extend_len)
        else:
            refuse(self.recorder, req, AddReqResult.OTHER, "the next chunk", 1, min(wanted, 0))
        return extend_len < req.extend_len or not extend_len

    def add_one_req(self, req: Request) -> AddReqResult:
        """Add a waiting request, cut to a chunk if need be, or say why not.

        Locking the prefix that it found would take that out of what can be evicted, so that counts,
        too; it is locked only once nothing speaks against it, as being refused is no use of it.
        """
        keeps_share = self.budget.keeps_share
        if keeps_share and req.params.ignore_eos and self.leases.cache is None:
            return self.add_one_req_ignore_eos(req)
        budget = self.budget
        match = self.cache.match_prefix(req)
        hit_len = len(match.pages) * budget.page_size if match else 0
        extend_len = req.asked_len = req.known_len - hit_len
        to_lock = self.leases.pages_to_lock(match) * budget.page_size
        if (refusal := self._refusal(req, extend_len, to_lock)) is not None:
            return refusal
        return self._start(req, self.leases.open(match, req.rid))

    def add_one_req_ignore_eos(self, req: Request) -> AddReqResult:
        """The same for one whose end is known, where nothing is cached (the same name in SGLang).

        No share of anybody's tokens is kept back: when each who runs ends, and gives back what it
        holds, is simulated, and memory must suffice at each of these moments. Its chunk need not
        end with a page: there is no cache to share it. So it may find a part of a page that the
        chunk of another prompt has left; the original then cuts both, and forgets the first.
        """
        budget, rem = self.budget, self.budget.rem_chunk_tokens
        req.asked_len = req.known_len
        paged = budget.ceil_paged_tokens(req.known_len) + budget.page_size
        left = min(budget.cur_rem_tokens, budget.rem_total_tokens)
        if paged > left:
            return self._no_token(req, paged)
        if self.ends is None:
            others = [*budget.running, *(added for added, _ in self.can_run_list)]
            self.ends = EndsSimulation(budget, [req, *others])
        else:
            self.ends.insert(req)
        if not self.ends.all_fit(budget.cur_rem_tokens - paged):
            return self._no_token(req, paged)
        if rem is not None and rem < req.known_len and (rem <= 0 or self.has_chunk):
            rem = max(0, rem)
            what = "chunked_prefill_size"
            return refuse(self.recorder, req, AddReqResult.OTHER, what, req.known_len, rem)
        req.start(self.leases.open(rid=req.rid))
        self._add(req, req.extend_len if rem is None else min(req.extend_len, rem))
        return budget.state()

    def add_alone(self, req: Request) -> AddReqResult:
        """Add a request that the rules refuse although nobody else holds memory.

        They would refuse it for ever. It fits, or it would not have been received; what does not
        is the page that the rules add. Where those who were to decode beside it have just made way
        for it, their part of the chunk is still taken off; without a page of it, it waits until it
        is asked again.
        """
        lease = self.leases.open(self.cache.match_prefix(req), req.rid)
        if not self.budget.cut(req.known_len - lease.settled_len):
            self.leases.close(lease)
            return self._no_page(req)
        return self._start(req, lease)

    def _refusal(self, req: Request, extend_len: int, to_lock: int) -> AddReqResult | None:
        """What speaks against a request that would lock ``to_lock`` tokens more of the cache."""
        budget = self.budget
        if not budget.fits(req, extend_len, to_lock):
            return self._no_token(req, budget.total_tokens(req, extend_len) + to_lock)
        rem_input, may_be_cut = budget.rem_input_tokens, budget.rem_chunk_tokens is not None
        is_much = budget.ceil_paged_tokens(extend_len) >= rem_input
        if is_much and self.can_run_list and not may_be_cut:
            return refuse(
                self.recorder, req, AddReqResult.OTHER, "max_prefill_tokens", extend_len, rem_input
            )
        cut_len = budget.cut(extend_len)
        may_be_cut = not (budget.cuts_first and self.can_run_list)
        return None if cut_len == extend_len or (cut_len and may_be_cut) else self._no_page(req)

    def _no_page(self, req: Request) -> AddReqResult:
        need, left = self.budget.page_size, self.budget.rem_chunk_tokens or 0
        return refuse(self.recorder, req, AddReqResult.OTHER, "a page of a chunk", need, left)

    def _no_token(self, req: Request, need: int) -> AddReqResult:
        left = int(self.budget.rem_total_tokens)
        return refuse(self.recorder, req, AddReqResult.NO_TOKEN, "KV memory", need, left)

    def _room(self, req: Request) -> int:
        """Positions by which a started prompt could grow, as far as memory goes."""
        assert req.lease is not None
        pages = self.leases.available_pages + len(req.lease.pages)
        return pages * self.budget.page_size - req.computed_len

    def _start(self, req: Request, lease: Lease) -> AddReqResult:
        """Let a request begin where its cached prefix ends."""
        req.start(lease)
        self._add(req, self.budget.cut(req.extend_len))
        return self.budget.state()

    def _add(self, req: Request, extend_len: int) -> None:
        """Put a request into the batch, and charge for it."""
        is_chunked = extend_len < req.extend_len
        self.has_chunk |= is_chunked
        self.can_run_list.append((req, extend_len))
        self.budget.charge(req, extend_len)
        self.recorder.mark(
            "admit", rid=req.rid, hit_len=req.hit_len, extend_len=extend_len,
            is_chunked=is_chunked, **self.budget.remains(),
        )  # fmt: skip
