"""Share pages: a request finds its prefix in the cache, and leaves its own pages there.

A page is shared once it is full and *settled*: the step that computed it has returned. Until then
it may still be written, and if its step fails it holds nothing.

vLLM shares earlier, when the step is planned. On one stream that is safe: a reader runs later, or
in the same step, which writes before it reads. But after a failed step, its pages hold nothing, and
all that was computed from them is wrong. vLLM's engine ends with such a step. Here its requests
end, and a request that may have read such a page is computed again (``spoil``).
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from ..core import Lease, Request
from ..trace import Recorder
from .block_pool import Block, BlockPool
from .pool import LeasePool
from .radix_cache import Match, RadixCache


class Settled:
    """Share what is settled, and nothing that a failed step may have left unwritten."""

    def on_schedule(self, req: Request, lease: Lease) -> bool:
        """Return whether a launched chunk enters now, before the next step is scheduled."""
        return False

    def on_chunk_result(self, lease: Lease, end: int) -> bool:
        """Count a chunk as settled that ends at ``end``; return whether it may enter now."""
        lease.settled_len = end
        return True

    def on_insert(self, req: Request, lease: Lease) -> None:
        """Prepare ``settled_len`` before a request's prefix enters."""

    def on_finish(self, req: Request, lease: Lease) -> None:
        """Prepare ``settled_len`` before a finished request's tokens enter."""


SETTLED = Settled()


@dataclass(frozen=True)
class SharingRule:
    """The pages that enter the prefix cache, and when; the defaults are SGLang's."""

    entry: Settled = SETTLED
    each_chunk: bool = True  # each chunk of a prompt enters by itself, not all with the last one
    splits_at_prompt: bool = True  # an edge of the tree ends with the prompt, so outputs go first
    planned_prompts: bool = False  # a prompt's page enters when the step that fills it is planned
    running_outputs: bool = False  # pages of outputs enter while their request runs


class PrefixCache:
    """Moves pages between leases and the cache (SGLang ``mem_cache/radix_cache.py``).

    If more enters than is settled, only later steps on the same stream may read it.
    """

    def __init__(
        self,
        leases: LeasePool,
        recorder: Recorder,
        is_off: bool = False,
        sharing: SharingRule | None = None,
    ) -> None:
        self.leases = leases
        self.recorder = recorder
        self.is_off = is_off  # nothing enters and nothing is looked up
        self.sharing = sharing or SharingRule()
        self.shares_outputs = self.sharing.running_outputs and not is_off
        self.shares_planned = self.sharing.planned_prompts and not is_off
        self.shares_early = self.shares_outputs or self.shares_planned
        self.inserted_pages = WeakKeyDictionary[Lease, int]()  # pages inserted so far
        self.unwritten: dict[int, list[tuple[Lease, Block]]] = {}  # by step in flight
        self.readers: dict[int, list[Lease]] = {}  # that began with cached pages, by step in flight

    def match_prefix(self, req: Request) -> Match | None:
        """Return the longest cached prefix of a request, never its last token: it is computed."""
        cache = self.leases.cache
        if self.is_off:
            return None
        length = req.known_len - 1
        for part in req.parts:
            length = part.cacheable_len(length)
        match = cache.match_prefix(req.known_tokens(0, length))
        hit_len = len(match.pages) * cache.page_size
        self.recorder.mark("match", rid=req.rid, hit_len=hit_len, prompt_len=req.known_len)
        return match

    def cache_scheduled_req(self, req: Request, lease: Lease, end: int, step: int) -> None:
        """Share the pages that ``step`` will fill, up to ``end``, if planned prompts are shared.

        Tokens that the host does not know yet have no hash.
        """
        if not self.shares_planned:
            return
        at = lease.shared_pages
        if req.admission.hit_len:
            self.readers.setdefault(step, []).append(lease)
        self.cache_unfinished_req(req, lease, min(end, req.known_len))
        if lease.shared_pages > at and isinstance(self.leases.cache, BlockPool):
            blocks, pages = self.leases.cache.blocks, lease.pages[at : lease.shared_pages]
            self.unwritten.setdefault(step, []).extend((lease, blocks[page]) for page in pages)

    def take_scheduled(self, req: Request, lease: Lease, length: int, end: int) -> None:
        """Take the pages of a planned step, and share them up to ``end`` (vLLM's budget)."""
        self.leases.reserve(lease, length)
        self.cache_scheduled_req(req, lease, end, self.leases.launched_step + 1)

    def cache_chunk(self, req: Request) -> None:
        """Share a launched chunk before the next step is scheduled, if ``sharing.entry`` does."""
        if req.lease is not None and self.sharing.entry.on_schedule(req, req.lease):
            self.cache_unfinished_req(req, req.lease)

    def cache_prompt(self, req: Request, lease: Lease, end: int, is_chunk: bool) -> None:
        """Share a prompt, or its chunk, that a step has computed up to ``end``."""
        if is_chunk:
            if not self.sharing.entry.on_chunk_result(lease, end) or not self.sharing.each_chunk:
                return
        else:
            lease.settled_len = end
        self.cache_unfinished_req(req, lease)

    def cache_unfinished_req(self, req: Request, lease: Lease, length: int | None = None) -> None:
        """Share the settled positions, or ``length``, so that other requests find them.

        Another request may have cached the same prefix since this one was admitted. Then the radix
        tree's pages replace the duplicates in the row, and the next step sends them to the device.
        The duplicates are freed once no launched step can read them. A block pool keeps both.
        """
        cache, size = self.leases.cache, self.leases.allocator.page_size
        self.sharing.entry.on_insert(req, lease)
        num_pages = (lease.settled_len if length is None else length) // size
        is_tree = isinstance(cache, RadixCache)  # an insertion counts as use, also of old pages
        is_new = num_pages > lease.shared_pages
        if self.is_off or not num_pages or lease.is_spoiled or not (is_new or is_tree):
            return
        tokens, pages = req.known_tokens(0, num_pages * size), lease.pages[:num_pages]
        if isinstance(cache, RadixCache):
            insertion = cache.insert(tokens, pages, self.inserted_pages.get(lease, 0))
            self.inserted_pages[lease] = num_pages
            prompt_pages = len(req.prompt) // size
            if 0 < prompt_pages < num_pages and self.sharing.splits_at_prompt:
                cache.insert(tokens[: prompt_pages * size], pages[:prompt_pages], prompt_pages)
            pages = cache.match_prefix(tokens).pages  # all of its path counts as just used
        else:
            insertion = cache.insert(tokens, pages)
        num_cached = insertion.num_cached_pages  # at least the shared pages, which are locked
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
        """Share everything settled. The lease keeps its lock until its release."""
        self.sharing.entry.on_finish(req, lease)
        self.cache_unfinished_req(req, lease)

    def came_back(self, step: int) -> None:
        """Forget the pages of a returned step: they are written, or can't be found."""
        self.unwritten.pop(step, None)
        self.readers.pop(step, None)

    def spoil(self, leases: Iterable[Lease], held: Container[Lease]) -> None:
        """Drop the shared pages of these leases from the cache: a step failed to write them.

        The same for a lease that no request has (``held``) any more: it may have read such pages.
        """
        read = [lease for step in self.readers.values() for lease in step if lease not in held]
        spoiled = dict.fromkeys([*leases, *read])
        for lease in spoiled:
            lease.is_spoiled = True
        for shared in self.unwritten.values():
            assert isinstance(self.leases.cache, BlockPool)
            self.leases.cache.forget(
                [block for lease, block in shared if lease in spoiled or lease not in held]
            )
