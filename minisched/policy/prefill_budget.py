"""The four numbers that admission counts down, all in tokens."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from ..core import Request
from ..memory import LeasePool

CLIP_MAX_NEW_TOKENS = 4096  # no request is expected to produce more than this


class AddReqResult(Enum):
    """What became of a request that was offered (SGLang ``schedule_policy.py:AddReqResult``)."""

    CONTINUE = "continue"  # added, and there is room for more
    NO_TOKEN = "no token"  # no KV memory
    OTHER = "other"  # the batch has enough prompt tokens


class PrefillBudget:
    """What is left for one prefill batch (SGLang ``schedule_policy.py:PrefillAdder``).

    ``rem_total_tokens``: memory, less what those who run may still come to need.
    ``cur_rem_tokens``: memory now. ``rem_input_tokens``: prompt tokens of one batch.
    ``rem_chunk_tokens``: the same, but here a prompt is cut instead of refused; None: no limit.
    Whoever runs while batches are mixed is paid first (``num_mixed_decode_tokens``).
    ``reserves_whole``: of one who ignores EOS, who will say all that it may, all is kept back.
    ``counts_tokens``: prompts are paid in tokens, not in whole pages. ``cuts_anywhere``: a chunk
    may end within a page. ``cuts_first``: nobody is cut but the first of a batch.
    """

    keeps_share = True  # of what those who run may say; else all of it (``rest_budget.py``)

    def __init__(
        self,
        leases: LeasePool,
        running: Iterable[Request],
        new_token_ratio: float,
        rem_input_tokens: int,
        rem_chunk_tokens: int | None,
        num_mixed_decode_tokens: int = 0,
        reserves_whole: bool = True,
        counts_tokens: bool = False,
        cuts_anywhere: bool = False,
        cuts_first: bool = False,
    ) -> None:
        self.leases = leases
        self.running = list(running)
        self.reserves_whole = reserves_whole
        self.counts_tokens = counts_tokens
        self.cuts_anywhere = cuts_anywhere
        self.cuts_first = cuts_first
        self.page_size = leases.allocator.page_size
        self.new_token_ratio = new_token_ratio
        mixed = num_mixed_decode_tokens
        self.rem_input_tokens = rem_input_tokens - mixed
        self.rem_chunk_tokens = None if rem_chunk_tokens is None else rem_chunk_tokens - mixed
        self.cur_rem_token_offset = mixed
        self.rem_total_token_offset = mixed + self.inflight_tokens

    @property
    def rem_total_tokens(self) -> float:
        """Memory left once those who run, and those added here, have produced what they may."""
        return self.leases.available_pages * self.page_size - self.rem_total_token_offset

    @property
    def cur_rem_tokens(self) -> int:
        """Memory left right now."""
        return self.leases.available_pages * self.page_size - self.cur_rem_token_offset

    @property
    def inflight_tokens(self) -> float:
        """Tokens kept back for all who run (mini-sglang ``DecodeManager.inflight_tokens``)."""
        return sum(map(self.reserve, self.running))

    def reserve(self, req: Request) -> float:
        """Tokens for which memory is kept back on behalf of a running request."""
        return self.new_tokens(req) * self.share(req)

    def share(self, req: Request) -> float:
        """The part of its tokens that a request is expected to produce."""
        return 1.0 if self.reserves_whole and req.params.ignore_eos else self.new_token_ratio

    def new_tokens(self, req: Request) -> int:
        """Tokens that a request is expected to produce at most."""
        return min(req.params.max_new_tokens - len(req.output_ids), CLIP_MAX_NEW_TOKENS)

    def fits(self, req: Request, extend_len: int, to_lock: int) -> bool:
        """Whether memory reaches for a request that starts with so many tokens to compute.

        ``to_lock``: tokens of the cache that could be evicted until then.
        """
        return self.total_tokens(req, extend_len) < self.rem_total_tokens - to_lock

    def total_tokens(self, req: Request, extend_len: int) -> int:
        """What a request needs that starts with so many tokens to compute."""
        return extend_len + self.new_tokens(req) + self.page_size

    def gave_way(self, req: Request) -> None:
        """A running request has been preempted: nothing is kept back for it any more."""
        self.rem_total_token_offset -= self.reserve(req)
        self.running.remove(req)

    def ceil_paged_tokens(self, tokens: int) -> int:
        """Tokens of the whole pages that these need."""
        return self.leases.allocator.pages_for(tokens) * self.page_size

    def state(self) -> AddReqResult:
        """Whether anybody else can be added."""
        if self.rem_total_tokens <= 0 or self.cur_rem_tokens <= 0:
            return AddReqResult.NO_TOKEN
        no_chunk = self.rem_chunk_tokens is not None and self.rem_chunk_tokens <= 0
        if self.rem_input_tokens <= 0 or no_chunk:
            return AddReqResult.OTHER
        return AddReqResult.CONTINUE

    def spent(self) -> tuple[str, int]:
        """Which number lets nobody in any more, by its limit's name, and what is left of it."""
        if self.state() is AddReqResult.NO_TOKEN:
            return "KV memory", int(min(self.rem_total_tokens, self.cur_rem_tokens))
        if self.rem_chunk_tokens is not None and self.rem_chunk_tokens <= 0:
            return "chunked_prefill_size", self.rem_chunk_tokens
        return "max_prefill_tokens", self.rem_input_tokens

    def cut(self, extend_len: int) -> int:
        """What fits into the chunk: all, or as many whole pages as do.

        Whether all fits is asked in whole pages, too: they are what is charged.
        """
        rem = self.rem_chunk_tokens
        if rem is None or self.paid_tokens(extend_len) <= rem:
            return extend_len
        return max(0, rem if self.cuts_anywhere else rem // self.page_size * self.page_size)

    def next_chunk(self) -> int | None:
        """What a prompt that goes on may take; of memory no more than is left, if any is."""
        rem = self.rem_chunk_tokens
        if rem is not None and self.rem_total_tokens >= 1:
            return min(rem, int(self.rem_total_tokens))
        return rem

    def paid_tokens(self, extend_len: int) -> int:
        """What the budget of a step pays for so many tokens of a prompt."""
        return extend_len if self.counts_tokens else self.ceil_paged_tokens(extend_len)

    def charge(self, req: Request, extend_len: int) -> None:
        """Pay for a request, of whose prompt so many tokens are computed now."""
        self.charge_memory(req, extend_len)
        self.rem_input_tokens -= self.paid_tokens(extend_len)
        if self.rem_chunk_tokens is not None:
            self.rem_chunk_tokens -= self.paid_tokens(extend_len)

    def charge_memory(self, req: Request, extend_len: int) -> None:
        """Keep memory back for it: what it may say is counted with the last of its chunks.

        One that comes back after a retraction is charged for all its tokens again.
        """
        tokens, is_chunked = self.ceil_paged_tokens(extend_len), extend_len < req.extend_len
        most = 0 if is_chunked else min(req.params.max_new_tokens, CLIP_MAX_NEW_TOKENS)
        self.rem_total_token_offset += tokens + most + self.page_size
        self.cur_rem_token_offset += tokens + self.page_size

    def remains(self) -> dict[str, int]:
        """All four, for the trace; -1: no limit."""
        rem_chunk = self.rem_chunk_tokens
        return {
            "rem_total": int(self.rem_total_tokens),
            "cur_rem": self.cur_rem_tokens,
            "rem_input": self.rem_input_tokens,
            "rem_chunk": -1 if rem_chunk is None else rem_chunk,
        }
