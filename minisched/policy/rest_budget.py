"""Memory kept back in full: who is admitted can say all that it may, and nobody is retracted."""

from __future__ import annotations

from ..core import Request
from .prefill_budget import AddReqResult, PrefillBudget


class RestBudget(PrefillBudget):
    """mini-sglang ``scheduler/prefill.py:PrefillAdder``: no ratio, only ``inflight_tokens``.

    A request is admitted if its prompt and its longest answer fit beside all that those who run
    may still say, and it may take the last token. Everybody is asked, however little is left.

    With pages of one token nobody who runs ever lacks memory. With larger ones those who run keep
    a page less one token back besides, but those admitted in one step do not: two of them can be
    promised a page that is not there. The original stops at an assertion then; here whoever is to
    come waits if its pages are missing now, and if they are missing later somebody is retracted.
    """

    keeps_share = False

    def reserve(self, req: Request) -> float:
        """All that a running request may still say, as far as its steps are not launched yet."""
        remain_len = req.max_device_len - req.device_len
        return remain_len + self.page_size - 1 if remain_len > 0 else 0

    def new_tokens(self, req: Request) -> int:
        """Tokens that a request may still produce."""
        return req.params.max_new_tokens - len(req.output_ids)

    def fits(self, req: Request, extend_len: int, to_lock: int) -> bool:
        """Whether memory reaches for a request, and for the pages of its first step now."""
        pages = self.ceil_paged_tokens(self.cut(extend_len))
        reaches = self.total_tokens(req, extend_len) <= self.rem_total_tokens - to_lock
        return reaches and pages <= self.cur_rem_tokens - to_lock

    def total_tokens(self, req: Request, extend_len: int) -> int:
        """Its prompt and its longest answer, and nothing for a last page that stays half empty."""
        return extend_len + self.new_tokens(req)

    def state(self) -> AddReqResult:
        """Whether the step takes more prompt tokens; of memory each is asked on its own."""
        limits = (self.rem_input_tokens, self.rem_chunk_tokens)
        is_spent = any(left is not None and left <= 0 for left in limits)
        return AddReqResult.OTHER if is_spent else AddReqResult.CONTINUE

    def next_chunk(self) -> int | None:
        """The chunk: memory for all of its prompt was kept back when it began."""
        return self.rem_chunk_tokens

    def charge_memory(self, req: Request, extend_len: int) -> None:
        """Keep back all of its prompt and its answer, and the pages that it takes now."""
        assert req.lease is not None
        pages = self.leases.pages_lacking(req.lease, req.computed_len + extend_len)
        self.cur_rem_token_offset += pages * self.page_size
        self.rem_total_token_offset += self.total_tokens(req, req.extend_len)
