"""What a request leaves in the prefix cache, while it runs and when it ends."""

from __future__ import annotations

from collections.abc import Iterable

from ..core import Lease, Request
from ..core.logprobs import next_logprob_at
from ..trace import Recorder
from .block_pool import BlockPool
from .lease_pool import LeasePool
from .page_cache import Found
from .unsettled import Unsettled


class PrefixCache:
    """Moves pages between leases and the cache (SGLang ``mem_cache/radix_cache.py``).

    Only *settled* positions enter, those whose step has come back: what a launched step is still
    writing, or a failed one has not written, is never shared. vLLM's rules share more. With
    ``prompt_pages`` "scheduled" a page enters when the step is planned that computes the last of
    it, and is taken back if that fails (``unsettled.py``); with ``output_pages`` "running" outputs
    enter while their request runs.
    """

    def __init__(
        self,
        leases: LeasePool,
        recorder: Recorder,
        prompt_pages: str = "settled",
        output_pages: str = "end",
    ) -> None:
        self.leases = leases
        self.recorder = recorder
        self.shares_outputs = leases.cache is not None and output_pages == "running"
        self.unsettled: Unsettled | None = None
        if isinstance(leases.cache, BlockPool) and prompt_pages == "scheduled":
            self.unsettled = Unsettled(leases.cache)

    def match_prefix(self, req: Request) -> Found | None:
        """The longest cached prefix of a request, never its last token: that has to be computed.

        So do the positions whose logits are still wanted for the prompt's log-probabilities
        (SGLang ``Req.init_next_round_input``, where it holds for a retracted request too; vLLM
        reads no cache at all for ``prompt_logprobs``).
        """
        cache = self.leases.cache
        if cache is None:
            return None
        wanted = next_logprob_at(req.params, len(req.prompt), len(req.input_token_logprobs))
        match = cache.match_prefix(req.known_tokens(0, min(wanted, req.known_len - 1)))
        hit_len = len(match.pages) * cache.page_size
        self.recorder.mark("match", rid=req.rid, hit_len=hit_len, prompt_len=req.known_len)
        return match

    def begin(self, lease: Lease) -> None:
        """A request is admitted with a lease on what ``match_prefix`` found."""
        if self.unsettled is not None and isinstance(lease.node, tuple):
            self.unsettled.read(lease, lease.node)

    def cache_scheduled_req(self, req: Request, lease: Lease, end: int, step: int) -> None:
        """Share what ``step`` is to compute, up to ``end``, if the rule says so.

        Tokens that the host does not know yet have no hash.
        """
        if self.unsettled is None:
            return
        at = lease.shared_pages
        self.cache_unfinished_req(req, lease, min(end, req.known_len))
        if lease.shared_pages > at:
            blocks, pages = self.unsettled.pool.blocks, lease.pages[at : lease.shared_pages]
            self.unsettled.share(step, lease, map(blocks.__getitem__, pages))

    def cache_unfinished_req(self, req: Request, lease: Lease, length: int | None = None) -> None:
        """Share what is settled, so that others find it while this request still runs.

        Or ``length`` positions. Somebody may have cached the same prefix since this request was
        admitted. Then the radix tree's pages take the place of the duplicates: the row is rewritten
        from there on (the next step tells the device), and the duplicates are free once no launched
        step can read them. A block pool keeps both.
        """
        cache, size = self.leases.cache, self.leases.allocator.page_size
        num_pages = (lease.settled_len if length is None else length) // size
        if cache is None or num_pages <= lease.shared_pages or lease.is_spoiled:
            return
        tokens = req.known_tokens(0, num_pages * size)
        insertion = cache.insert(tokens, lease.pages[:num_pages])
        num_cached = insertion.num_cached_pages  # what is shared is locked, so it is among them
        duplicates = lease.pages[lease.shared_pages : num_cached]
        self.leases.allocator.disown(lease.pages[num_cached:num_pages])
        self.recorder.mark("insert", rid=req.rid, pages=num_pages, duplicates=len(duplicates))
        if duplicates:
            lease.pages[:num_pages] = cache.match_prefix(tokens).pages
            lease.sent_pages = min(lease.sent_pages, lease.shared_pages)
            self.leases.retire(lease, duplicates)
        cache.move_lock(lease.node, insertion.node)
        lease.node, lease.shared_pages = insertion.node, num_pages

    def cache_finished_req(self, req: Request, lease: Lease) -> None:
        """Leave everything settled to the cache. The lease is locked on it until its release."""
        self.cache_unfinished_req(req, lease)

    def came_back(self, step: int) -> None:
        """A step has come back, and if it failed its leases are spoiled by now."""
        if self.unsettled is not None:
            self.unsettled.settle(step)

    def spoil(self, leases: Iterable[Lease]) -> None:
        """A step that is coming back has failed for these."""
        if self.unsettled is not None:
            self.unsettled.spoil(leases)
