"""What a request finds in the prefix cache, and what it leaves there while it runs and at its end.

A page is shared once it is full and *settled*: the step that computed it has come back. Until then
it may still be written, and if its step fails it holds nothing. vLLM shares earlier, and then has
to know who read what was never written (``Unsettled``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..core import Lease, Request
from ..core.logprobs import next_logprob_at
from ..trace import Recorder
from .block_pool import Block, BlockPool
from .pool import LeasePool
from .radix_cache import Match, RadixCache


class PrefixCache:
    """Moves pages between leases and the cache (SGLang ``mem_cache/radix_cache.py``).

    What enters, and when, are answers of ``policy/rules.py``. ``enters_cache`` other than "settled"
    shares what is launched: a prefix is read by later steps on the same stream. With
    ``prompt_pages`` "scheduled" a page enters when the step is planned that computes the last of
    it; with ``output_pages`` "running" outputs enter while their request runs.
    """

    def __init__(
        self,
        leases: LeasePool,
        recorder: Recorder,
        enters_cache: str = "settled",
        edges_end: str = "prompt",
        prompt_pages: str = "settled",
        output_pages: str = "end",
    ) -> None:
        self.leases = leases
        self.recorder = recorder
        self.enters_cache = enters_cache
        self.edges_end = edges_end
        self.shares_outputs = leases.cache is not None and output_pages == "running"
        self.unsettled: Unsettled | None = None
        if isinstance(leases.cache, BlockPool) and prompt_pages == "scheduled":
            self.unsettled = Unsettled(leases.cache)
        self.shares_early = self.shares_outputs or self.unsettled is not None

    def match_prefix(self, req: Request) -> Match | None:
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

    def cache_chunk(self, req: Request) -> None:
        """The next step is about to be scheduled: share what is launched of a prompt in chunks."""
        if self.enters_cache == "launched" and req.lease is not None:
            req.lease.settled_len = max(req.lease.settled_len, req.computed_len)
            self.cache_unfinished_req(req, req.lease)

    def cache_unfinished_req(self, req: Request, lease: Lease, length: int | None = None) -> None:
        """Share what is settled, or ``length`` positions, so that others find it from now on.

        Somebody may have cached the same prefix since this request was admitted. Then the radix
        tree's pages take the place of the duplicates: the row is rewritten from there on (the next
        step tells the device), and the duplicates are free once no launched step can read them. A
        block pool keeps both. An edge of the tree ends where the prompt does (``edges_end``), so
        that its outputs can be given up and the prompt kept.
        """
        cache, size = self.leases.cache, self.leases.allocator.page_size
        if self.enters_cache == "known":
            lease.settled_len = max(lease.settled_len, min(req.computed_len, req.known_len))
        num_pages = (lease.settled_len if length is None else length) // size
        is_tree = isinstance(cache, RadixCache)  # which counts it as a use, be it new or not
        is_new = num_pages > lease.shared_pages
        if cache is None or not num_pages or lease.is_spoiled or not (is_new or is_tree):
            return
        tokens, pages = req.known_tokens(0, num_pages * size), lease.pages[:num_pages]
        if isinstance(cache, RadixCache):
            insertion = cache.insert(tokens, pages, lease.inserted_pages)
            lease.inserted_pages = num_pages
            prompt_pages = len(req.prompt) // size
            if 0 < prompt_pages < num_pages and self.edges_end == "prompt":
                cache.insert(tokens[: prompt_pages * size], pages[:prompt_pages], prompt_pages)
            pages = cache.match_prefix(tokens).pages  # all of its path counts as just used
        else:
            insertion = cache.insert(tokens, pages)
        num_cached = insertion.num_cached_pages  # what is shared is locked, so it is among them
        duplicates = lease.pages[lease.shared_pages : num_cached]
        if is_new:
            self.leases.allocator.disown(lease.pages[num_cached:num_pages])
            self.recorder.mark("insert", rid=req.rid, pages=num_pages, duplicates=len(duplicates))
        if duplicates:
            lease.pages[:num_pages] = pages
            lease.sent_pages = min(lease.sent_pages, lease.shared_pages)
            self.leases.retire(lease, duplicates)
        cache.move_lock(lease.node, insertion.node)
        lease.node, lease.shared_pages = insertion.node, num_pages

    def cache_finished_req(self, req: Request, lease: Lease) -> None:
        """Leave everything settled to the cache. The lease is locked on it until its release."""
        if self.enters_cache == "launched":
            lease.settled_len = max(lease.settled_len, min(req.computed_len, req.known_len))
        self.cache_unfinished_req(req, lease)

    def came_back(self, step: int) -> None:
        """A step has come back, and if it failed its leases are spoiled by now."""
        if self.unsettled is not None:
            self.unsettled.settle(step)

    def spoil(self, leases: Iterable[Lease]) -> None:
        """A step that is coming back has failed for these."""
        if self.unsettled is not None:
            self.unsettled.spoil(leases)


@dataclass
class Unsettled:
    """Who is to write which shared pages, and who was admitted on them meanwhile.

    vLLM lets a page be found as soon as the step that computes it is planned. On one stream that is
    right: whoever reads the page runs later, or in the same step, which writes before it reads. But
    where a step fails its pages hold nothing, and neither does what was computed from them. vLLM's
    engine ends with such a step; here only those end who were in it, and the others compute again.
    """

    pool: BlockPool
    shared: dict[int, list[Block]] = field(default_factory=dict)  # by step; they come back in order
    readers: dict[Lease, list[Block]] = field(default_factory=dict)  # the blocks not written yet

    def share(self, step: int, lease: Lease, blocks: Iterable[Block]) -> None:
        """``lease`` will have written these once ``step`` has come back."""
        for block in blocks:
            block.writer = lease
            self.shared.setdefault(step, []).append(block)

    def read(self, lease: Lease, blocks: Sequence[Block]) -> None:
        """``lease`` begins with these."""
        if unwritten := [block for block in blocks if block.writer]:
            self.readers[lease] = unwritten

    def settle(self, step: int) -> None:
        """A step has come back: what is left of its blocks holds what it should."""
        for block in self.shared.pop(step, ()):
            block.writer = None
        for lease, blocks in list(self.readers.items()):
            self.readers[lease] = [block for block in blocks if block.writer]
            if not self.readers[lease]:
                del self.readers[lease]

    def spoil(self, leases: Iterable[Lease]) -> None:
        """A step has not written what it should for ``leases``: nobody may find it any more.

        Neither what others have been computing from it: their leases are ``is_spoiled`` as well.
        """
        spoiled = dict.fromkeys(leases)
        todo = list(spoiled)
        while todo:
            lease = todo.pop()
            lease.is_spoiled = True
            for reader, blocks in self.readers.items():
                if reader not in spoiled and any(block.writer is lease for block in blocks):
                    spoiled[reader] = None
                    todo.append(reader)
        for blocks in self.shared.values():
            self.pool.forget([block for block in blocks if block.writer in spoiled])
