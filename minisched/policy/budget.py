"""What admission counts: four numbers of tokens, and why somebody is refused.

Prompts take KV memory and the tokens of a step. How much memory must be left for one to start is
where schedulers differ most (``Rules.reserves``): SGLang keeps back a share of what those who run
may still say, mini-sglang all of it, and nano-vllm nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from ..core import Request
from ..memory import LeasePool
from ..trace import Recorder
from .rules import Rules

CLIP_MAX_NEW_TOKENS = 4096  # no request is expected to produce more than this


class AddReqResult(Enum):
    """What became of a request that was offered (SGLang ``schedule_policy.py:AddReqResult``)."""

    CONTINUE = "continue"  # added, and there is room for more
    NO_TOKEN = "no token"  # no KV memory
    OTHER = "other"  # the batch has enough prompt tokens


def refuse(
    recorder: Recorder, req: Request, result: AddReqResult, what: str, need: int, left: int
) -> AddReqResult:
    """Record that ``req`` was refused for want of ``what``; gives ``result`` back."""
    if recorder.is_on:
        unit = "row" if what == "max_running_requests" else "token" if need == 1 else "tokens"
        recorder.mark(
            "refuse", rid=req.rid, result=result.name, need=need, left=left,
            reason=f"{what}: needs {need} {unit}, {left} left",
        )  # fmt: skip
    return result


def hold_back(recorder: Recorder, req: Request | None, reason: str) -> None:
    """Record that ``req``, the first who waits, was not even asked, and why."""
    if req is not None and recorder.is_on:
        other = AddReqResult.OTHER.name
        recorder.mark("refuse", rid=req.rid, result=other, need=0, left=0, reason=reason)


class PrefillBudget:
    """What is left for one prefill batch (SGLang ``schedule_policy.py:PrefillAdder``).

    ``rem_total_tokens``: memory, less what those who run may still come to need.
    ``cur_rem_tokens``: memory now. ``rem_input_tokens``: prompt tokens of one batch.
    ``rem_chunk_tokens``: the same, but here a prompt is cut instead of refused; None: no limit.
    Whoever runs while batches are mixed is paid first (``num_mixed_decode_tokens``).

    What is kept back for those who run is an answer of ``rules`` (``reserves``):

    - ``ratio``: a share of what they may say, ``new_token_ratio``, or all of it for one who ignores
      EOS and so will say it;
    - ``rest``: all that they may say (mini-sglang ``scheduler/prefill.py``, ``inflight_tokens``).
      With pages of one token nobody who runs ever lacks memory. With larger ones those who run keep
      a page less one token back besides, but those admitted in one step do not: two of them can be
      promised a page that is not there. The original stops at an assertion then; here whoever is to
      come waits if its pages are missing now, and if they are missing later somebody is retracted;
    - ``prompt``: nothing (nano-vllm ``block_manager.py:can_allocate``). Who comes gets the pages of
      all of its prompt, also where only a part is computed in this step.
    """

    def __init__(
        self,
        leases: LeasePool,
        running: Iterable[Request],
        new_token_ratio: float,
        rem_input_tokens: int,
        rem_chunk_tokens: int | None,
        num_mixed_decode_tokens: int = 0,
        rules: Rules | None = None,
    ) -> None:
        self.leases = leases
        self.running = list(running)
        self.rules = rules or Rules()
        self.reserves = self.rules.reserves
        self.page_size = leases.allocator.page_size
        self.new_token_ratio = new_token_ratio
        mixed = num_mixed_decode_tokens
        self.rem_input_tokens = rem_input_tokens - mixed
        self.rem_chunk_tokens = None if rem_chunk_tokens is None else rem_chunk_tokens - mixed
        self.cur_rem_token_offset = mixed
        self.rem_total_token_offset = mixed + self.inflight_tokens

    # -- memory

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
        """Tokens for which memory is kept back on behalf of a running request.

        Of ``rest`` those of the steps that are not launched yet.
        """
        if self.reserves == "ratio":
            return self.new_tokens(req) * self.share(req)
        remain_len = req.max_device_len - req.device_len
        is_kept = self.reserves == "rest" and remain_len > 0
        return remain_len + self.page_size - 1 if is_kept else 0

    def share(self, req: Request) -> float:
        """The part of its tokens that a request is expected to produce."""
        return 1.0 if req.params.ignore_eos else self.new_token_ratio

    def new_tokens(self, req: Request) -> int:
        """Tokens that a request is expected to produce at most."""
        left = req.params.max_new_tokens - len(req.output_ids)
        return min(left, CLIP_MAX_NEW_TOKENS) if self.reserves == "ratio" else left

    def total_tokens(self, req: Request, extend_len: int) -> int:
        """What a request needs that starts with so many tokens to compute."""
        if self.reserves == "prompt":
            return self.ceil_paged_tokens(extend_len)
        spare = self.page_size if self.reserves == "ratio" else 0
        return extend_len + self.new_tokens(req) + spare

    def fits(self, req: Request, extend_len: int, to_lock: int) -> bool:
        """Whether memory reaches for a request that starts with so many tokens to compute.

        ``to_lock``: tokens of the cache that could be evicted until then.
        """
        need, left = self.total_tokens(req, extend_len), self.rem_total_tokens - to_lock
        if self.reserves == "ratio":
            return need < left
        now = self.cur_rem_tokens - to_lock
        if self.reserves == "prompt":
            return need <= now
        return need <= left and self.ceil_paged_tokens(self.cut(extend_len)) <= now

    def charge_memory(self, req: Request, extend_len: int) -> None:
        """Keep memory back for one who starts or goes on, of whose prompt so much is computed now.

        With ``ratio`` what it may say is counted with the last of its chunks, and one that comes
        back after a retraction is charged for all its tokens again.
        """
        if self.reserves == "ratio":
            tokens, is_chunked = self.ceil_paged_tokens(extend_len), extend_len < req.extend_len
            most = 0 if is_chunked else min(req.params.max_new_tokens, CLIP_MAX_NEW_TOKENS)
            self.rem_total_token_offset += tokens + most + self.page_size
            self.cur_rem_token_offset += tokens + self.page_size
            return
        assert req.lease is not None
        is_prompt = self.reserves == "prompt"
        end = req.device_len if is_prompt else req.computed_len + extend_len
        pages = self.leases.pages_lacking(req.lease, end) * self.page_size
        self.cur_rem_token_offset += pages
        self.rem_total_token_offset += (
            pages if is_prompt else self.total_tokens(req, req.extend_len)
        )

    def gave_way(self, req: Request) -> None:
        """A running request has been preempted: nothing is kept back for it any more."""
        self.rem_total_token_offset -= self.reserve(req)
        self.running.remove(req)

    def ceil_paged_tokens(self, tokens: int) -> int:
        """Tokens of the whole pages that these need."""
        return self.leases.allocator.pages_for(tokens) * self.page_size

    # -- the tokens of a step

    def cut(self, extend_len: int) -> int:
        """What fits into the chunk: all, or as many whole pages as do (``chunk_ends``).

        Whether all fits is asked in what is charged: whole pages, too, unless ``budget_counts``
        tokens.
        """
        rem = self.rem_chunk_tokens
        if rem is None or self.paid_tokens(extend_len) <= rem:
            return extend_len
        is_anywhere = self.rules.chunk_ends == "anywhere"
        return max(0, rem if is_anywhere else rem // self.page_size * self.page_size)

    def next_chunk(self) -> int | None:
        """What a prompt that goes on may take; of memory no more than is left, if any is.

        Unless its memory was kept back when it began.
        """
        rem = self.rem_chunk_tokens
        if rem is not None and self.reserves == "ratio" and self.rem_total_tokens >= 1:
            return min(rem, int(self.rem_total_tokens))
        return rem

    def paid_tokens(self, extend_len: int) -> int:
        """What the budget of a step pays for so many tokens of a prompt."""
        in_tokens = self.rules.budget_counts == "tokens"
        return extend_len if in_tokens else self.ceil_paged_tokens(extend_len)

    def charge(self, req: Request, extend_len: int) -> None:
        """Pay for a request, of whose prompt so many tokens are computed now."""
        self.charge_memory(req, extend_len)
        self.rem_input_tokens -= self.paid_tokens(extend_len)
        if self.rem_chunk_tokens is not None:
            self.rem_chunk_tokens -= self.paid_tokens(extend_len)

    def state(self) -> AddReqResult:
        """Whether anybody else can be added; unless by ``ratio``, each is asked for its memory."""
        is_ratio = self.reserves == "ratio"
        if is_ratio and (self.rem_total_tokens <= 0 or self.cur_rem_tokens <= 0):
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

    def remains(self) -> dict[str, int]:
        """All four, for the trace; -1: no limit."""
        rem_chunk = self.rem_chunk_tokens
        return {
            "rem_total": int(self.rem_total_tokens),
            "cur_rem": self.cur_rem_tokens,
            "rem_input": self.rem_input_tokens,
            "rem_chunk": -1 if rem_chunk is None else rem_chunk,
        }
