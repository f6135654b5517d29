"""Memory for the prompt alone: who decodes on and finds none takes it from whoever came last."""

from __future__ import annotations

from ..core import Request
from .rest_budget import RestBudget


class PromptBudget(RestBudget):
    """nano-vllm ``engine/scheduler.py:schedule`` with ``block_manager.py:can_allocate``.

    A request comes if there are pages for all of its prompt, which it then has, also where only a
    part is computed in this step. Nothing is kept back for answers, its own or those of others.
    """

    def reserve(self, req: Request) -> float:
        """Nothing: those who run take pages as they need them."""
        return 0

    def fits(self, req: Request, extend_len: int, to_lock: int) -> bool:
        """Whether there are pages for all of the prompt now."""
        return self.total_tokens(req, extend_len) <= self.cur_rem_tokens - to_lock

    def total_tokens(self, req: Request, extend_len: int) -> int:
        """The whole pages that its prompt lacks; what it found in the cache is whole pages, too."""
        return self.ceil_paged_tokens(extend_len)

    def charge_memory(self, req: Request, extend_len: int) -> None:
        """Take the pages of all of its prompt, and not only of what is computed now."""
        assert req.lease is not None
        pages = self.leases.pages_lacking(req.lease, req.device_len)
        self.cur_rem_token_offset += pages * self.page_size
        self.rem_total_token_offset += pages * self.page_size
