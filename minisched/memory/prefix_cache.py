"""What a request leaves in the prefix cache, while it runs and when it ends."""

from __future__ import annotations

from ..core import Lease, Request
from ..core.logprobs import next_logprob_at
from ..trace import Recorder
from .lease_pool import LeasePool
from .radix_cache import Match
from .radix_node import TreeNode


class PrefixCache:
    """Moves pages between leases and the radix tree (SGLang ``mem_cache/radix_cache.py``).

    Only *settled* positions enter, those whose step has come back: what a launched step is still
    writing, or a failed one has not written, is never shared. ``enters_cache`` may say otherwise
    (``policy/rules.py``): a prefix is read by later steps on the same stream.
    """

    def __init__(
        self,
        leases: LeasePool,
        recorder: Recorder,
        enters_cache: str = "settled",
        edges_end: str = "prompt",
    ) -> None:
        self.leases = leases
        self.recorder = recorder
        self.enters_cache = enters_cache
        self.edges_end = edges_end

    def match_prefix(self, req: Request) -> Match | None:
        """The longest cached prefix of a request, never its last token: that has to be computed.

        So do the positions whose logits are still wanted for the prompt's log-probabilities
        (SGLang ``Req.init_next_round_input``, where it holds for a retracted request too; vLLM
        reads no cache at all for ``prompt_logprobs``).
        """
        tree = self.leases.tree
        if tree is None:
            return None
        wanted = next_logprob_at(req.params, len(req.prompt), len(req.input_token_logprobs))
        match = tree.match_prefix(req.known_tokens(0, min(wanted, req.known_len - 1)))
        hit_len = len(match.pages) * tree.page_size
        self.recorder.mark("match", rid=req.rid, hit_len=hit_len, prompt_len=req.known_len)
        return match

    def cache_unfinished_req(self, req: Request, lease: Lease) -> None:
        """Share what is settled, so that others find it while this request still runs.

        Somebody may have cached the same prefix since this request was admitted. Then the tree's
        pages take the place of the duplicates: the row is rewritten from there on (the next step
        tells the device), and the duplicates are free once no launched step can read them. All of
        its prefix counts as just used, whether anything is new or not, and where the prompt ends
        an edge ends (``edges_end``), so that outputs can be given up and the prompt kept.
        """
        tree, size = self.leases.tree, self.leases.allocator.page_size
        if self.enters_cache == "known":
            lease.settled_len = max(lease.settled_len, min(req.computed_len, req.known_len))
        num_pages = lease.settled_len // size
        if tree is None or not num_pages:
            return
        tokens = req.known_tokens(0, num_pages * size)
        insertion = tree.insert(tokens, lease.pages[:num_pages], lease.inserted_pages)
        lease.inserted_pages = num_pages
        prompt_pages = len(req.prompt) // size
        if 0 < prompt_pages < num_pages and self.edges_end == "prompt":
            tree.insert(tokens[: prompt_pages * size], lease.pages[:prompt_pages], prompt_pages)
        num_cached = insertion.num_cached_pages  # what is shared is locked, so it is among them
        duplicates = lease.pages[lease.shared_pages : num_cached]
        match = tree.match_prefix(tokens)
        if num_pages > lease.shared_pages:
            self.leases.allocator.disown(lease.pages[num_cached:num_pages])
            self.recorder.mark("insert", rid=req.rid, pages=num_pages, duplicates=len(duplicates))
        if duplicates:
            lease.pages[:num_pages] = match.pages
            lease.sent_pages = min(lease.sent_pages, lease.shared_pages)
            self.leases.retire(lease, duplicates)
        self._move_lock(lease, match.node)
        lease.shared_pages = num_pages

    def cache_finished_req(self, req: Request, lease: Lease) -> None:
        """Leave everything settled to the cache. The lease is locked on it until its release."""
        if self.enters_cache == "launched":
            lease.settled_len = max(lease.settled_len, min(req.computed_len, req.known_len))
        self.cache_unfinished_req(req, lease)

    def cache_chunk(self, req: Request) -> None:
        """The next step is about to be scheduled: share what is launched of a prompt in chunks."""
        if self.enters_cache == "launched" and req.lease is not None:
            req.lease.settled_len = max(req.lease.settled_len, req.computed_len)
            self.cache_unfinished_req(req, req.lease)

    def _move_lock(self, lease: Lease, node: TreeNode) -> None:
        tree = self.leases.tree
        assert tree is not None and isinstance(lease.node, TreeNode)
        tree.inc_lock_ref(node)
        tree.dec_lock_ref(lease.node)
        lease.node = node
